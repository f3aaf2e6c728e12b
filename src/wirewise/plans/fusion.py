"""Gradient buckets, their chunks, and further changes of a data-parallel training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import ClassVar, NamedTuple

import msgspec

from wirewise.errors import InputError, PlanError
from wirewise.plans.base import Plan
from wirewise.plans.splits import PIECE_BLOCK, piece_name, piece_of

__all__ = [
    "DDP_BUCKET_BYTES",
    "DDP_FIRST_BUCKET_BYTES",
    "DECODES",
    "LOSSES",
    "PRECISIONS",
    "SCHEMES",
    "Bucket",
    "FusionPlan",
    "ParameterSpan",
    "ddp_buckets",
]

PRECISIONS = ("float32", "bfloat16")
"""Types in which forward and backward passes may compute."""

SCHEMES = ("all_reduce", "all_gather", "divisible", "hierarchical")
"""Methods of exchanging the payloads of a bucket, or its gradients without a codec (`wirewise.cost.gradients`)."""

DECODES = ("inline", "lazy", "queue")
"""Threads that may decode a bucket: that of its collective, the compute thread once back-propagation is over, or a
thread of its own."""


_EACH_ALONE = ("cupcake", "layer-wise", "even", "bucket", "mg-wfbp", "mergecomp")
"""Planners of gradients, whose `baseline_step_s` sends each gradient alone."""

LOSSES = {
    "fp16": "16 bits of each value",
    "bf16": "16 bits of each value",
    "topk": "the largest values, 1 % of them by default",
    "dgc": "the largest values, 1 % of them by default",
    "randomk": "random values, 1 % of them by default",
    "efsign": "signs and a scale",
    "signsgd": "signs",
    "signum": "signs of the momentum",
    "onebit": "signs and two scales",
    "qsgd": "8 bits of each value",
    "terngrad": "-1, 0 or 1 for each value",
    "int8": "8 bits of each value",
    "int4": "4 bits of each value",
    "powersgd": "two factors of rank 4",
}
"""Fraction of the gradients that is sent, by codec."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gradients communicated together."""

    parameters: tuple[str, ...]
    """Names as in `model.named_parameters()`, in the order in which their gradients get ready; of a parameter that the
    plan splits, names of pieces."""
    size_bytes: int
    """Bytes of the gradients."""
    chunks: int = 1
    """Number of collectives of about equal size that the bucket is sent as (tensor partition)."""
    codec: str = "none"
    """Name of the gradient codec that compresses the bucket."""
    scheme: str = "all_reduce"
    """One of `SCHEMES`."""
    decode: str = "inline"
    """One of `DECODES`; nothing is decoded without a codec."""

    @property
    def way(self) -> str:
        """Codec and scheme, in words."""
        return self.scheme if self.codec == "none" else f"{self.codec} by {self.scheme}"


DDP_BUCKET_BYTES = 25 * 2**20
"""Default cap of DistributedDataParallel's buckets, in bytes."""
DDP_FIRST_BUCKET_BYTES = 2**20
"""Size at which the first bucket of DistributedDataParallel is closed, in bytes, so that communication begins early."""


def ddp_buckets(
    sizes: Sequence[float], cap_bytes: float | None = None, first_bytes: float | None = None
) -> list[list[int]]:
    """Bucket gradients, in the order in which they get ready, by the rule of DistributedDataParallel.

    A bucket is closed as soon as it holds at least its cap.

    Args:
        sizes: Size of each gradient, in bytes.
        cap_bytes: Bucket cap, in bytes. Defaults to 25 MiB.
        first_bytes: Cap of the first bucket, in bytes. Defaults to 1 MiB if the cap is the default, else to the cap.

    Returns:
        Indices of the gradients of each bucket.

    Raises:
        InputError: The cap is not positive.
    """
    first = first_bytes if first_bytes is not None else (cap_bytes or DDP_FIRST_BUCKET_BYTES)
    cap_bytes = DDP_BUCKET_BYTES if cap_bytes is None else cap_bytes
    if not cap_bytes > 0 or not first > 0:
        raise InputError(f"bucket caps are {first} and {cap_bytes} bytes; expected sizes above 0")
    found: list[list[int]] = [[]]
    held, cap = 0.0, min(first, cap_bytes)
    for number, size in enumerate(sizes):
        found[-1].append(number)
        held += size
        if held >= cap:
            found.append([])
            held, cap = 0.0, cap_bytes
    return [bucket for bucket in found if bucket]


class ParameterSpan(NamedTuple):
    """Range of a bucket: its first and last parameter in launch order, and the piece of each, 0 if it is not split."""

    first: int
    first_piece: int
    last: int
    last_piece: int


class FusionPlan(Plan, frozen=True, kw_only=True, tag="fusion"):
    """Gradient buckets, and the decisions made together with them (dPRO, MLSys 2022)."""

    family: ClassVar[str] = "fusion"

    buckets: tuple[Bucket, ...]
    """Buckets in the order of launch, the same on all ranks."""
    splits: dict[str, int] = msgspec.field(default_factory=dict)
    """Parameters sent in pieces, and the elements of each piece but the last (`plans.splits`); buckets list "NAME[0]",
    "NAME[1]", ..., one after another."""
    fused_ops: tuple[tuple[str, ...], ...] = ()
    """Groups of module names; each group runs as one compiled op."""
    regions: tuple[tuple[str, ...], ...] = ()
    """Groups of operators of the captured step that run as one compiled kernel each, in the order of launch. An
    operator in several of them is computed in each, and those outside read the first one's; one in none runs alone."""
    precision: str = "float32"
    """Compute type of forward and backward, one of `PRECISIONS`; parameters and gradients keep their type."""
    recompute: tuple[str, ...] = ()
    """Names of modules whose activations are recomputed in the backward pass."""
    accumulation: int = 1
    """Number of micro-steps before the gradients are reduced."""
    predicted_step_s: float = 0.0
    """Simulated seconds of a step under the plan; 0 if not simulated."""
    baseline_step_s: float = 0.0
    """Predicted step without the plan, in seconds: a recorded run's own buckets, a captured step unfused, or gradients
    each alone, compressed if the planner had a codec to choose."""
    lower_bound_s: float = 0.0
    """Lower bound of the step in the planner's cost model, in seconds; 0 if unknown."""
    compressed_step_s: float = 0.0
    """Simulated time of the best step with codecs, if compression had to reach a minimum gain, in seconds; 0 if not
    compared."""
    uncompressed_step_s: float = 0.0
    """Predicted seconds of a step without codecs."""
    unsplit_step_s: float = 0.0
    """Simulated time of the best step without splits, in seconds; 0 if not compared."""
    predicted_memory_bytes: int = 0
    """Estimated peak memory of a rank under the plan, in bytes; 0 if not estimated."""

    @classmethod
    def by_size(cls, sizes: Mapping[str, int], world_size: int, bucket_bytes: float = inf) -> FusionPlan:
        """Bucket by size, without a search.

        Args:
            sizes: Bytes of each parameter by name, in launch order.
            world_size: Number of ranks.
            bucket_bytes: Minimum size of each bucket but the last, in bytes. Defaults to one bucket.
        """
        groups: list[list[str]] = []
        filled = inf
        for name, size_bytes in sizes.items():
            if filled >= bucket_bytes or not groups:
                groups.append([])
                filled = 0
            groups[-1].append(name)
            filled += size_bytes
        buckets = [Bucket(parameters=tuple(g), size_bytes=sum(sizes[name] for name in g)) for g in groups]
        return cls(world_size=world_size, planner="by size", buckets=tuple(buckets))

    @property
    def parameters(self) -> list[str]:
        """Names of all parameters in launch order, split ones once."""
        return list(dict.fromkeys(self.parameter_of(name) for name in self._listed))

    @property
    def spans(self) -> list[ParameterSpan]:
        """Parameter span of each bucket."""
        number = {name: i for i, name in enumerate(self.parameters)}

        def place(name: str) -> tuple[int, int]:
            piece = piece_of(name, self.splits)
            return number[self.parameter_of(name)], piece.number if piece else 0

        return [ParameterSpan(*place(one.parameters[0]), *place(one.parameters[-1])) for one in self.buckets]

    def parameter_of(self, name: str) -> str:
        """Parameter of a bucket entry, which may be a piece of it."""
        piece = piece_of(name, self.splits)
        return piece.parameter if piece else name

    @property
    def _listed(self) -> list[str]:
        return [name for bucket in self.buckets for name in bucket.parameters]

    @property
    def size_bytes(self) -> int:
        """Total size of the buckets, in bytes."""
        return sum(bucket.size_bytes for bucket in self.buckets)

    @property
    def decisions(self) -> tuple[str, ...]:
        """Fields of the plan and its buckets that change more than the bucketing."""
        buckets = {
            "chunks": any(bucket.chunks > 1 for bucket in self.buckets),
            "codec": self.compresses,
            "scheme": any(bucket.scheme != "all_reduce" for bucket in self.buckets),
            "decode": any(bucket.decode != "inline" for bucket in self.buckets),
        }
        others = {
            "splits": bool(self.splits),
            "fused_ops": bool(self.fused_ops),
            "regions": bool(self.regions),
            "precision": self.precision != "float32",
            "recompute": bool(self.recompute),
            "accumulation": self.accumulation > 1,
        }
        return tuple(name for name, decided in (buckets | others).items() if decided)

    @property
    def compresses(self) -> bool:
        """Whether a bucket has a codec."""
        return any(bucket.codec != "none" for bucket in self.buckets)

    @property
    def predicted_gain_s(self) -> float:
        """Predicted reduction of the step time, in seconds; 0 if either time is unknown."""
        known = self.predicted_step_s > 0 and self.baseline_step_s > 0
        return self.baseline_step_s - self.predicted_step_s if known else 0.0

    def check_itself(self) -> None:
        """Raise if a value is out of range or a name occurs twice; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in (
            *self._bucket_faults(),
            *self._split_faults(),
            *self._name_faults(),
            *self._value_faults(),
        ):
            raise PlanError(fault)

    def _bucket_faults(self) -> Iterator[str]:
        if not self.buckets:
            yield "there are no buckets - at `$.buckets`; expected every trained parameter in one"
        seen: dict[str, int] = {}
        for number, bucket in enumerate(self.buckets):
            where = f"bucket {number} - at `$.buckets[{number}]`"
            if not bucket.parameters or not all(bucket.parameters):
                yield f"{where}: an empty list of parameters or an empty name; name them or remove the bucket"
            for name in bucket.parameters:
                if name in seen:
                    yield f"{where}: {name!r} is in bucket {seen[name]} as well; remove one of them"
                seen[name] = number
            if bucket.size_bytes < 1:
                yield f"{where}: size_bytes is {bucket.size_bytes}; expected at least 1"
            if not 1 <= bucket.chunks <= max(bucket.size_bytes, 1):
                yield f"{where}: {bucket.chunks} chunks; expected 1 to one for each of {bucket.size_bytes} bytes"
            if not bucket.codec or bucket.scheme not in SCHEMES or bucket.decode not in DECODES:
                yield (
                    f"{where}: codec {bucket.codec!r}, scheme {bucket.scheme!r}, decode {bucket.decode!r}; expected a "
                    f"name, one of {', '.join(SCHEMES)}, and one of {', '.join(DECODES)}"
                )
            elif bucket.codec == "none" and bucket.chunks > 1 and bucket.scheme != "all_reduce":
                yield f"{where}: {bucket.chunks} chunks by {bucket.scheme!r}; expected 1, or several buckets"
            elif bucket.codec == "none" and bucket.decode != "inline":
                yield f"{where}: decode {bucket.decode!r} has no codec to decode; name the codec, or expect inline"

    def _pieces_of(self, parameter: str) -> tuple[str, ...]:
        return tuple(name for name in self._listed if self.parameter_of(name) == parameter)

    def _split_faults(self) -> Iterator[str]:
        listed = self._listed
        owners = [self.parameter_of(name) for name in listed]
        for name, size in self.splits.items():
            where = f"{name!r} - at `$.splits`"
            if not name or size < 1 or size % PIECE_BLOCK:
                yield f"{where}: pieces of {size} elements; expected a name, and a multiple of {PIECE_BLOCK}"
            count, first = owners.count(name), owners.index(name) if name in owners else 0
            if count < 2 or listed[first : first + count] != [piece_name(name, i) for i in range(count)]:
                yield (
                    f"{where}: buckets list {count} pieces of it; expected two or more, and all of them one behind the "
                    f"other as {piece_name(name, 0)!r}, {piece_name(name, 1)!r}, ..."
                )

    def _name_faults(self) -> Iterator[str]:
        groups = [(f"$.fused_ops[{i}]", group) for i, group in enumerate(self.fused_ops)]
        regions = [(f"$.regions[{i}]", group) for i, group in enumerate(self.regions)]
        for where, group in (*groups, *regions):
            if not group:
                yield f"an empty group - at `{where}`; expected at least one member, remove the group"
        for where, group in regions:
            if "" in group or len(set(group)) < len(group):
                yield f"an operator - at `{where}`: an empty name or one that is listed twice"
        for fused in (groups, [("$.recompute", self.recompute)]):
            seen: set[str] = set()
            for where, names in fused:
                for name in names:
                    if not name or name in seen:
                        yield f"module {name!r} - at `{where}`: an empty name or one that is listed twice"
                    seen.add(name)

    def _value_faults(self) -> Iterator[str]:
        if self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            yield f"precision is {self.precision!r} - at `$.precision`; expected one of {known}"
        if self.accumulation < 1:
            yield f"accumulation is {self.accumulation} - at `$.accumulation`; expected at least 1"
        for name in (
            "predicted_step_s",
            "baseline_step_s",
            "lower_bound_s",
            "compressed_step_s",
            "uncompressed_step_s",
            "unsplit_step_s",
            "predicted_memory_bytes",
        ):
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                yield f"{name} is {value} - at `$.{name}`; expected a finite figure of at least 0"

    @property
    def codecs(self) -> tuple[str, ...]:
        """Lossy codecs of the buckets, without duplicates."""
        return tuple(dict.fromkeys(bucket.codec for bucket in self.buckets if bucket.codec != "none"))

    @property
    def headline(self) -> str:
        """Kind of the plan, and what each of its lossy codecs keeps of the gradients."""
        lossy = "; ".join(f"{codec} sends {LOSSES.get(codec, 'less')}" for codec in self.codecs)
        return f"{super().headline}, lossy: {lossy}" if lossy else super().headline

    @property
    def _from_gradients(self) -> bool:
        return self.planner.partition(":")[0] in _EACH_ALONE

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per bucket, then one for each other decision that changes the step."""
        plain = all(bucket.way == "all_reduce" for bucket in self.buckets)
        rows = [
            _row(
                f"bucket {number}" if plain else f"bucket {number}: {bucket.way}",
                bucket.parameters,
                f"{bucket.size_bytes / 1e6:.3f}",
                str(bucket.chunks),
            )
            for number, bucket in enumerate(self.buckets)
        ]
        rows += [_row(f"split {i}", self._pieces_of(name)) for i, name in enumerate(self.splits)]
        rows += [_row(f"fused {number}", group) for number, group in enumerate(self.fused_ops)]
        rows += [_row(f"region {i}", group) for i, group in enumerate(self.regions) if len(group) > 1]
        if self.recompute:
            rows.append(_row("recompute", self.recompute))
        if self.precision != "float32":
            rows.append(["precision", "-", self.precision, "-", "-", "-"])
        if self.accumulation > 1:
            rows.append(["accumulation", str(self.accumulation), "micro-steps", "-", "-", "-"])
        for codec in self.codecs:
            rows.append([f"lossy: {codec}", "-", f"sends {LOSSES.get(codec, 'less')}", "-", "-", "-"])
        baseline = "each gradient alone, compressed if offered" if self._from_gradients else "without plan"
        if self.codecs:
            baseline = f"each gradient alone, {', '.join(self.codecs)}"
        figures = {"predicted": self.predicted_step_s, baseline: self.baseline_step_s}
        figures |= {"best with codecs": self.compressed_step_s, "best without": self.uncompressed_step_s}
        figures["best without splits"] = self.unsplit_step_s
        for label, seconds in {**figures, "lower bound": self.lower_bound_s}.items():
            if seconds > 0:
                rows.append([label, "-", f"{seconds * 1e3:.3f} ms a step", "-", "-", "-"])
        return ["decision", "members", "first", "last", "MB", "chunks"], rows


def _row(label: str, names: tuple[str, ...], size: str = "-", chunks: str = "-") -> list[str]:
    return [label, str(len(names)), names[0] if names else "-", names[-1] if names else "-", size, chunks]
