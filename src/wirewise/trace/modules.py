"""Module traces: compute time, memory and gradients of each module in a step of data-parallel training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wirewise.collective.named import ALGORITHMS
from wirewise.errors import InputError

__all__ = ["NO_OVERHEAD", "BucketSpan", "Module", "ModuleTrace", "Overhead"]


class BucketSpan(NamedTuple):
    """Range of gradients, in the order in which they become ready."""

    first: int
    last: int
    chunks: int = 1


class Overhead(NamedTuple):
    """Overhead of an all-reduce on a rank, apart from link time."""

    launch_s: float = 0.0
    """Seconds on the compute thread to launch one."""
    encode_s: float = 0.0
    """Seconds before each all-reduce, on a separate thread."""
    encode_s_per_byte: float = 0.0
    decode_s: float = 0.0
    """Seconds after each all-reduce, on a separate thread."""
    decode_s_per_byte: float = 0.0

    @property
    def has_stages(self) -> bool:
        """Whether there are stages before or after the transfers."""
        return max(self[1:]) > 0.0


NO_OVERHEAD = Overhead()


@dataclass(frozen=True, kw_only=True)
class Module:
    """Module that runs as one op; times in seconds on a rank of slowdown 1."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: float = 0.0
    """Bytes of the gradients that its backward op completes."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters. Defaults to one with the module's name."""
    saved_bytes: float = 0.0
    """Bytes kept from forward to backward, including the input."""
    input_bytes: float = 0.0
    """Bytes kept if the module is recomputed in the backward pass."""
    workspace_bytes: float = 0.0
    """Further bytes while its backward runs."""
    bfloat16_bytes: tuple[float, float, float] | None = None
    """The three measured in bfloat16, without copies of weights. Defaults to half of those in float32."""
    bfloat16_s: tuple[float, float] | None = None
    """Measured forward and backward seconds in bfloat16. Defaults to those in float32."""


@dataclass(frozen=True, kw_only=True)
class ModuleTrace:
    """Step of data-parallel training, input to planners of gradient buckets.

    Raises:
        InputError: A value is invalid; the message names the first one.
    """

    modules: Sequence[Module]
    """Modules in the order of the forward pass; the backward pass is the reverse."""
    hosts: Sequence[int]
    """Host of each rank."""
    slowdown: Sequence[float] = ()
    """Factor on each rank's compute time, [ranks]; empty if all are equal."""
    optimizer_s: float = 0.0
    comm_slots: int = 1
    """Number of collectives that run concurrently."""
    algorithm: str = "ring"
    """Algorithm of the all-reduces (`collective.named`)."""
    overhead: Overhead = NO_OVERHEAD
    """Overhead of each all-reduce."""
    interference: float = 1.0
    """Factor by which compute slows down while its rank communicates (`cost.interference`); times of modules are
    those without."""
    fused_s: Mapping[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    """Measured forward and backward seconds of modules first to last as one op."""
    fused_share: float | None = None
    """Estimate for unmeasured fused ops: fraction of the time of all their modules except the last forward one that
    remains; 0.8 in dPRO. None restricts fusion to measured ops."""
    state_factor: float = 4.0
    """Bytes per byte of parameters: weights, gradients and two moments of Adam."""
    other_bytes: float = 0.0
    """Bytes independent of decisions."""
    fixed_share: float = 0.6
    """Fraction of an op's time that does not shrink with its batch; dPRO's ops take 0.8 of it at half the batch."""
    most_accumulation: int = 8
    recorded: tuple[BucketSpan, ...] = ()
    """Buckets of the run that the trace comes from."""
    measured_step_s: float = 0.0
    """Step time of that run, in seconds; 0 if unknown."""

    def __post_init__(self) -> None:
        for fault in (*self._job_faults(), *self._module_faults()):
            raise InputError(fault)

    def _job_faults(self) -> list[str]:
        faults = []
        if not len(self.hosts) or min(self.hosts) < 0:
            faults.append(f"hosts are {list(self.hosts)}; expected a rank or more, each on a host from 0 on")
        if len(self.slowdown) not in (0, len(self.hosts)) or any(not 0 < f < np.inf for f in self.slowdown):
            faults.append(
                f"slowdown is {list(self.slowdown)}; expected a factor above 0 for each of {len(self.hosts)} ranks"
            )
        if self.comm_slots < 1 or self.most_accumulation < 1:
            faults.append(
                f"comm_slots is {self.comm_slots} and most_accumulation {self.most_accumulation}; expected at least 1"
            )
        if self.algorithm not in ALGORITHMS:
            faults.append(f"algorithm is {self.algorithm!r}; expected one of {', '.join(ALGORITHMS)}")
        if not 1.0 <= self.interference < np.inf:
            faults.append(f"interference is {self.interference}; expected a finite factor of at least 1")
        shares = {"fixed_share": self.fixed_share, "fused_share": self.fused_share or 0.0}
        faults += [f"{k} is {v}; expected a share from 0 to 1" for k, v in shares.items() if not 0 <= v <= 1]
        values = {"optimizer_s": self.optimizer_s, "other_bytes": self.other_bytes}
        values |= {"state_factor": self.state_factor, **self.overhead._asdict()}
        for pair, seconds in self.fused_s.items():
            if not 0 <= pair[0] < pair[1] < len(self.modules):
                faults.append(
                    f"fused_s of modules {pair}; expected two of 0 to {len(self.modules) - 1} in order"
                )
            values |= {f"fused_s of modules {pair}": min(seconds, key=lambda s: s if s >= 0 else -np.inf)}
        return faults + list(_not_finite(values))

    def _module_faults(self) -> list[str]:
        faults, seen = [], set[str]()
        fields = (
            "forward_s",
            "backward_s",
            "gradient_bytes",
            "saved_bytes",
            "input_bytes",
            "workspace_bytes",
        )
        for module in self.modules:
            for name in module.parameters or (module.name,):
                if name in seen:
                    faults.append(f"parameter {name!r} is in two modules; expected each name once")
                seen.add(name)
            values = {f: getattr(module, f) for f in fields}
            values |= {f"bfloat16_s[{i}]": s for i, s in enumerate(module.bfloat16_s or ())}
            values |= {f"bfloat16_bytes[{i}]": b for i, b in enumerate(module.bfloat16_bytes or ())}
            faults += _not_finite({f"{k} of module {module.name!r}": v for k, v in values.items()})
        if not any(module.gradient_bytes > 0 for module in self.modules):
            faults.append("no module has gradients; expected gradient_bytes above 0 in at least one")
        return faults

    @cached_property
    def gradients(self) -> list[int]:
        """Module of each gradient, in the order in which they are ready."""
        found = [i for i, module in enumerate(self.modules) if module.gradient_bytes > 0]
        return found[::-1]

    @cached_property
    def sizes(self) -> list[float]:
        """Size of each gradient, in bytes."""
        return [self.modules[i].gradient_bytes for i in self.gradients]

    @cached_property
    def module_of(self) -> dict[str, int]:
        """Index of the module of each parameter with a gradient."""
        return {
            name: i for i in self.gradients for name in self.modules[i].parameters or (self.modules[i].name,)
        }

    def spans(self, groups: Sequence[Sequence[int]]) -> tuple[BucketSpan, ...]:
        """Buckets from lists of gradients."""
        return tuple(BucketSpan(group[0], group[-1]) for group in groups)

    def size_of(self, span: BucketSpan) -> float:
        """Size of a bucket, in bytes."""
        return sum(self.sizes[span.first : span.last + 1])


def _not_finite(values: Mapping[str, float]) -> Iterator[str]:
    for name, value in values.items():
        if not 0 <= value < np.inf:
            yield f"{name} is {value}; expected a finite number of at least 0"
