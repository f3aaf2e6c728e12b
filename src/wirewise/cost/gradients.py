"""Costs of groups of gradients: encoding, sending, decoding.

Codecs: bytes on the wire, and seconds from a measured table or from the constants released with Espresso (EuroSys
2023). Schemes: how a group is exchanged.

- `all_reduce`: uncompressed, or with a codec whose payloads can be added up.
- `all_gather`: every rank gets all payloads and decodes them, or all gradients and sums them.
- `divisible`: each rank decodes and adds up its share, encodes it again, and all shares are gathered.
- `hierarchical`: reduce-scatter in the host, the codec's payloads among hosts, all-gather in the host.
"""

from __future__ import annotations

import os
from math import ceil, isfinite, isqrt, sqrt
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from wirewise.cost.curve import ZERO, Curve
from wirewise.cost.links import Links
from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.trace.gradients import GradientTrace

__all__ = [
    "BLOCK",
    "MEASURED",
    "V100",
    "WIRES",
    "CodecTimes",
    "GradientCosts",
    "GroupCost",
    "TrainingMeasurements",
    "codec_options",
    "gathered_cost",
    "group_costs",
    "load_costs",
    "payload",
    "wire_bytes",
]

MEASURED = ("all_reduce", "all_gather", "divisible")
"""Schemes of `plans.fusion.SCHEMES` that a table can hold times of; the hierarchical one is computed."""

Knots = tuple[tuple[float, float], ...]


class Wire(NamedTuple):
    """Wire format of a codec for x elements that share a scale or a k."""

    bytes_per_value: float
    fixed_bytes: int = 0
    sparse: bool = False
    """Whether only max(1, share * x) values are sent."""
    linear: bool = False
    """Whether payloads of ranks can be summed, and so be all-reduced."""
    most: float = 1.0
    """Capacity of a sparse codec's payload, as a multiple of its values."""
    block_bytes: int = 0
    """Bytes for each block of `BLOCK` elements."""
    rank: int = 0
    """Rank of the two factors [rank, side] that a group's elements, as a nearly square matrix, are sent as, in two
    rounds."""


WIRES = {
    "none": Wire(4.0, linear=True),
    "fp16": Wire(2.0, linear=True),
    "bf16": Wire(2.0, linear=True),
    "topk": Wire(8.0, sparse=True),
    "dgc": Wire(8.0, 4, sparse=True, most=1.3),
    "randomk": Wire(4.0, sparse=True, linear=True),
    "efsign": Wire(0.125, 4),
    "signsgd": Wire(0.125),
    "signum": Wire(0.125),
    "onebit": Wire(0.125, 8),
    "qsgd": Wire(1.0, 4),
    "terngrad": Wire(0.25, 4),
    "int8": Wire(1.0, block_bytes=2),
    "int4": Wire(0.5, block_bytes=2),
    "powersgd": Wire(4.0, linear=True, rank=4),
}
"""Wire formats by codec; random-k's ranks draw the same indices, so that only values are sent."""

BLOCK = 256
"""Elements of a block with a scale of its own."""


def codec_options(codec: str, ratio: float) -> dict[str, float]:
    """Options of a codec that depend on the fraction of values kept by sparse codecs."""
    return {"ratio": ratio} if codec in WIRES and WIRES[codec].sparse else {}


def wire_bytes(codec: str, elements: int, *, ratio: float = 0.01) -> int:
    """Bytes that a rank passes to the collectives for a group of `elements`, sent as one segment.

    Raises:
        InputError: The codec is unknown.
    """
    wire = _wire(codec)
    values = elements
    if wire.sparse:
        values = min(max(1, int(wire.most * max(1, int(ratio * elements)))), elements)
    elif wire.rank:
        values = _factors(elements, wire.rank)
    return ceil(wire.bytes_per_value * values) + wire.fixed_bytes + wire.block_bytes * -(-elements // BLOCK)


def _factors(elements: int, rank: int) -> int:
    """Values of two factors of a nearly square matrix, or all elements where these are fewer."""
    m = isqrt(elements - 1) + 1
    n = -(-elements // m)
    return min(min(rank, m, n) * (m + n), elements)


def payload(codec: str, *, ratio: float = 0.01) -> Curve:
    """`wire_bytes` as a curve over the number of elements, without rounding to whole values and bytes.

    Raises:
        InputError: The codec is unknown.
    """
    wire = _wire(codec)
    if wire.rank:
        sizes = [2.0**power for power in range(32)]
        return Curve(tuple((x, wire.bytes_per_value * min(x, 2 * wire.rank * sqrt(x))) for x in sizes))
    if not wire.sparse:
        return Curve.line(wire.fixed_bytes, wire.bytes_per_value + wire.block_bytes / BLOCK)
    kept = Curve(((1 / ratio, 1.0), (1e6 / ratio, 1e6)))
    return Curve.line(wire.fixed_bytes, wire.bytes_per_value * wire.most).after(kept)


def _wire(codec: str) -> Wire:
    if codec not in WIRES:
        raise InputError(f"unknown gradient codec {codec!r}; expected one of: {', '.join(WIRES)}")
    return WIRES[codec]


class CodecTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured (elements, seconds) of one codec, including copies to the group's memory and the residual update."""

    encode: Knots
    decode: Knots
    """Seconds to decode one payload and add it to the group."""
    decode_sum: dict[int, Knots] = {}
    """Seconds to decode n payloads together, by n, interpolated between. Defaults to n times `decode`."""

    def encode_s(self) -> Curve:
        """Encode time in seconds, by elements."""
        return Curve(self.encode)

    def decode_s(self, payloads: int) -> Curve:
        """Decode time of `payloads` payloads in seconds, by elements of a payload."""
        known = {1: Curve(self.decode), **{n: Curve(knots) for n, knots in self.decode_sum.items()}}
        if payloads in known:
            return known[payloads]
        if len(known) == 1:
            return known[1].times(payloads)
        counts = sorted(known)
        place = min(int(np.searchsorted(counts, payloads)), len(counts) - 1)
        low, high = counts[place - 1], counts[place]
        share = (payloads - low) / (high - low)
        sizes = sorted({x for n in (low, high) for x, _ in known[n].knots})
        sizes.append(2 * sizes[-1])
        least, most = known[low](sizes), known[high](sizes)
        # More payloads never take less time, whatever the noise of the table.
        seconds = least + share * np.maximum(most - least, 0.0)
        return Curve(tuple(zip(sizes, np.maximum.accumulate(seconds).tolist(), strict=True)))


class GradientCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Codec times on a device, and collective times if they were measured, in seconds."""

    device: str
    codecs: dict[str, CodecTimes]
    """Times by codec name; "none" is the launch of an uncompressed group, if measured."""
    ratio: float = 0.01
    """Fraction of the values that sparse codecs keep."""
    launch_s: float = 150e-6
    """Fixed cost of a collective."""
    latency_s: float = 0.0
    """Fixed time of each of its rounds, in seconds."""
    intra_bytes_per_s: float = 50e9
    """Rate between the ranks of a host."""
    ranks: int = 0
    """Ranks for which `schemes` was measured."""
    schemes: dict[str, Knots] = {}
    """Seconds by bytes of a rank's payload; hierarchical ones are not measured but computed."""
    concurrent: Knots = ()
    """Seconds by bytes of each of several concurrent uncompressed all-reduces; empty if they count as run one after
    another."""
    delays: dict[str, Knots] = {}
    """Seconds by bytes of a rank's payload by which a concurrent collective delays back-propagation, by scheme; empty
    for no delay."""

    def without_codecs(self) -> GradientCosts:
        """Costs for plans without compression, where all-reduces are launched without waiting for earlier ones."""
        if not self.concurrent:
            return self
        return msgspec.structs.replace(self, schemes={**self.schemes, "all_reduce": self.concurrent})

    def check_itself(self) -> None:
        """Raise if a value is invalid.

        Raises:
            InputError: A field is invalid; the message names it.
        """
        for name in ("launch_s", "latency_s"):
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(f"{name} is {getattr(self, name)}; expected finite seconds of at least 0")
        if not 0 < self.ratio <= 1 or not self.intra_bytes_per_s > 0:
            raise InputError(
                f"ratio is {self.ratio} and intra_bytes_per_s {self.intra_bytes_per_s}; expected a share of at most 1 "
                "and a rate, both above 0"
            )
        for what, known in (("measured", self.schemes), ("delaying", self.delays)):
            if unknown := sorted(set(known) - set(MEASURED)):
                raise InputError(
                    f"{what} scheme {unknown[0]!r} is unknown; expected some of {', '.join(MEASURED)}"
                )
        tables = {f"schemes.{name}": knots for name, knots in self.schemes.items()}
        tables |= {f"delays.{name}": knots for name, knots in self.delays.items()}
        tables |= {"concurrent": self.concurrent} if self.concurrent else {}
        for name, times in self.codecs.items():
            _wire(name)
            tables |= {f"codecs.{name}.encode": times.encode, f"codecs.{name}.decode": times.decode}
            tables |= {f"codecs.{name}.decode_sum.{n}": knots for n, knots in times.decode_sum.items()}
        for where, knots in tables.items():
            _check_table(where, knots)


def _check_table(where: str, knots: Knots) -> None:
    if len(knots) < 2:
        raise InputError(f"`$.{where}` has {len(knots)} sizes; expected two or more, better five")
    try:
        Curve(knots)
    except InputError as cause:
        raise InputError(f"`$.{where}`: {cause}") from cause


def _constant(encode_us: float, decode_us: float, *, sparse: bool) -> CodecTimes:
    """Flat up to 2^20 elements, linear above; one scatter adds sparse payloads of all ranks."""

    def knots(us: float) -> Knots:
        return ((2.0**20, 1e-6 * us), (2.0**21, 2e-6 * us))

    decode = knots(decode_us)
    return CodecTimes(knots(encode_us), decode, {2: decode} if sparse else {})


V100 = GradientCosts(
    device="V100",
    codecs={
        "fp16": _constant(4, 22, sparse=False),
        "randomk": _constant(54, 34, sparse=True),
        "dgc": _constant(356, 34, sparse=True),
        "efsign": _constant(130, 140, sparse=False),
        "onebit": _constant(450, 170, sparse=False),
    },
)
"""Constants of Espresso for its GPU."""


class OtherModel(NamedTuple):
    """Further model of a script, which is trained unchanged."""

    name: str
    gradient_bytes: int


class TrainingMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements made by the ranks of a training command: steps, gradients, codecs and links."""

    trace: GradientTrace
    costs: GradientCosts
    ranks: int
    step_s: float
    """Seconds from one optimizer step to the next, median, of the slowest rank."""
    forward_s: float
    """Seconds of a step without its last backward pass: data, forward passes, backward passes under `no_sync`,
    optimizer."""
    others: tuple[OtherModel, ...] = ()
    """Further models of the job; the measured one has the most bytes of gradients."""
    seconds: tuple[float, ...] = ()
    """Seconds of each measured step, of the slowest rank. Empty if not kept."""


def load_costs(source: str | os.PathLike[str]) -> GradientCosts:
    """Load the table "v100", or one from a JSON file with the fields of `GradientCosts`.

    Raises:
        InputError: The file is unreadable or invalid; the message names the place.
    """
    if source == "v100":
        return V100
    try:
        found = decode_json(Path(source).read_bytes(), GradientCosts)
        found.check_itself()
    except (OSError, msgspec.MsgspecError, InputError) as cause:
        raise InputError(
            f'cannot read costs of gradient codecs from {os.fspath(source)}: {cause}; expected "v100" or JSON such as '
            '{"device": "cpu", "codecs": {"efsign": {"encode": [[1024, 5e-5], [65536, 4e-4]], "decode": [...]}}}'
        ) from cause
    return found


class GroupCost(NamedTuple):
    """Seconds of a group by its elements, for a codec and a scheme."""

    codec: str
    scheme: str
    encode_s: Curve
    """Seconds on the compute device, including the delay by the collective. The delay is counted before the group is
    sent, as if back-propagation overlapped every collective to its end: too much, by the last group's."""
    communicate_s: Curve
    """Seconds on the wire, with what the scheme encodes and decodes on the way."""
    decode_s: Curve


def group_costs(
    costs: GradientCosts, codec: str, links: Links | None, *, ranks: int | None = None
) -> list[GroupCost]:
    """List all ways to send a group with the codec.

    Rings run at the bandwidth of the slowest interface, or of the slowest host's internal links; each round takes the
    largest latency of the links or of the costs.

    Args:
        costs: Seconds of codecs, and of collectives if they were measured.
        codec: Name, or "none".
        links: Links between the ranks. None if collectives take the measured times in the costs' `schemes`.
        ranks: Number of ranks. Defaults to those of the links, or of the measured collectives.

    Raises:
        InputError: The codec or every collective lacks times, there are fewer than two ranks, or the links have an
            infinite bandwidth or hosts with different numbers of ranks.
    """
    if codec != "none" and codec not in costs.codecs:
        known = ", ".join(["none", *costs.codecs])
        raise InputError(f"no times of codec {codec!r} on {costs.device}; the table has: {known}")
    count = count_ranks(costs, links, ranks)
    found = _by_name(costs, codec, links, count)
    whole = codec != "none" and _wire(codec).rank > 0
    if links is not None and not whole and (per_host := _ranks_per_host(links)) > 1:
        found.append(_hierarchical(costs, codec, links, per_host))
    if not found:
        raise InputError(
            f"no time of a collective is known for codec {codec!r}; give a bandwidth, or measure one of "
            f"{', '.join(_possible(codec))} into the table's `schemes`"
        )
    return found


def gathered_cost(
    costs: GradientCosts, scheme: str, links: Links | None, *, ranks: int | None = None
) -> GroupCost:
    """Cost of an uncompressed group under "all_gather" or "divisible"; summing the rows is free.

    Such groups are the baseline of codecs under the same scheme. Planners leave them out: they run one after another,
    while uncompressed all-reduces are in flight together.

    Args:
        costs: Seconds of collectives, if they were measured.
        scheme: Name of the scheme.
        links: Links between the ranks. None if collectives take the measured times in `costs`.
        ranks: Number of ranks. Defaults to those of the links or of the measured collectives.

    Raises:
        InputError: The scheme was not measured; otherwise as in `group_costs`.
    """
    known = _collectives(costs, links, count_ranks(costs, links, ranks))
    if scheme not in known or scheme == "all_reduce":
        raise InputError(
            f"no time of {scheme!r} is known; give a bandwidth, or measure it into the table's `schemes`"
        )
    launch = costs.codecs["none"].encode_s() if "none" in costs.codecs else ZERO
    return GroupCost("none", scheme, launch, known[scheme].after(payload("none")), ZERO)


def count_ranks(costs: GradientCosts, links: Links | None, ranks: int | None = None) -> int:
    """Number of ranks that exchange a group, as `group_costs` counts them.

    Raises:
        InputError: There are fewer than two ranks, or not the expected number.
    """
    known = costs.ranks if links is None else links.world_size
    count = known if ranks is None else ranks
    if count < 2:
        raise InputError(f"got {count} ranks; expected at least 2")
    if links is not None and count != known:
        raise InputError(f"got links of {known} ranks; expected those of {count}")
    return count


def _ranks_per_host(links: Links) -> int:
    """Ranks of each host; 1 where all are on one, so that there is nothing between hosts."""
    several = sorted({int(count) for count in links.ranks_of_host if count})
    if len(several) > 1:
        raise InputError(
            f"hosts have {' or '.join(map(str, several))} ranks; the scheme 'hierarchical' needs hosts that are full "
            "alike: expected as many ranks on each"
        )
    return several[0] if several[0] < links.world_size else 1


def _possible(codec: str) -> list[str]:
    wire = _wire(codec)
    names = ["all_reduce"] if wire.linear else []
    return names if codec == "none" or wire.rank else [*names, "all_gather", "divisible"]


def _by_name(costs: GradientCosts, codec: str, links: Links | None, n: int) -> list[GroupCost]:
    sent = payload(codec, ratio=costs.ratio)
    rounds = 2 if _wire(codec).rank else 1
    part = sent.times(1 / rounds)
    wire = {name: curve.after(part).times(rounds) for name, curve in _collectives(costs, links, n).items()}
    late = {name: Curve(knots).after(part).times(rounds) for name, knots in costs.delays.items()}
    if codec == "none":
        launch = costs.codecs["none"].encode_s() if "none" in costs.codecs else ZERO
        launch = launch + late["all_reduce"] if "all_reduce" in late else launch
        return (
            [GroupCost(codec, "all_reduce", launch, wire["all_reduce"], ZERO)] if "all_reduce" in wire else []
        )
    times = costs.codecs[codec]
    encode, shares = times.encode_s(), times.decode_s(n).of_share(1 / n)
    found = []
    for name in _possible(codec):
        if name not in wire:
            continue
        through = wire[name] + shares + encode.of_share(1 / n) if name == "divisible" else wire[name]
        decode = {"all_reduce": times.decode_s(1), "all_gather": times.decode_s(n), "divisible": shares}
        computed = encode + late[name] if name in late else encode
        found.append(GroupCost(codec, name, computed, through, decode[name]))
    return found


def _collectives(costs: GradientCosts, links: Links | None, n: int) -> dict[str, Curve]:
    """Seconds by bytes of a rank's payload."""
    if links is not None:
        rate = min(links.interface_bytes_per_s, links.inside_bytes_per_s)
        if not isfinite(rate):
            raise InputError("no interface of the links has a finite rate; expected one above 0 bytes/s")
        both, a = 2 * (n - 1) / n / rate, max(costs.latency_s, links.round_s)
        return {
            "all_reduce": Curve.line(costs.launch_s + 2 * (n - 1) * a, both),
            "all_gather": Curve.line(costs.launch_s + (n - 1) * a, (n - 1) / rate),
            "divisible": Curve.line(2 * costs.launch_s + 2 * (n - 1) * a, both),
        }
    if costs.schemes and costs.ranks != n:
        raise InputError(
            f"collectives were measured with {costs.ranks} ranks, got {n}; measure again or give a bandwidth"
        )
    return {name: Curve(knots) for name, knots in costs.schemes.items()}


def _hierarchical(costs: GradientCosts, codec: str, links: Links, k: int) -> GroupCost:
    hosts, rate = links.world_size // k, links.interface_bytes_per_s
    a, within = max(costs.latency_s, links.round_s), min(costs.intra_bytes_per_s, links.inside_bytes_per_s)
    share = payload(codec, ratio=costs.ratio).of_share(1 / k)
    inside = Curve.line(2 * costs.launch_s, 2 * 4.0 * (k - 1) / k / within)
    if codec == "none":
        # All ranks of a host send their shares through its one interface.
        between = Curve.line(costs.launch_s + 2 * (hosts - 1) * a, 2 * (hosts - 1) / hosts * k / rate)
        return GroupCost(codec, "hierarchical", ZERO, inside + between.after(share), ZERO)
    between = Curve.line(costs.launch_s + (hosts - 1) * a, (hosts - 1) * k / rate)
    times = costs.codecs[codec]
    decode = times.decode_s(hosts).of_share(1 / k)
    through = inside + between.after(share) + decode
    return GroupCost(codec, "hierarchical", times.encode_s().of_share(1 / k), through, ZERO)
