"""Problem: gradients in the order in which they get ready, options to send groups, and the resulting times.

Back-propagation and encoding share one queue, collectives another, in order. With C the end of a group's compute, M
of its collective, and B, h, g, d the seconds of back-propagation, encoding, sending and decoding:

    C = C' + B + h,    M = max(M', C) + g,    step = A + the last end of all.

Decoding `inline` is part of the collective's slot, M = M + d. Decoding on a `queue` of its own ends at Q = max(Q', M)
+ d. `lazy` decoding runs on the compute thread after back-propagation: its chain is L = max(L', M) + d, and its total
time D follows the last C. Encoding beside back-propagation ends at E = max(E', C' + B) + h and makes C = C' + B +
share * h.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wirewise.cost.curve import Curve
from wirewise.cost.gradients import V100, GradientCosts, count_ranks, group_costs
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.arrays import Vector
from wirewise.planners.faces import expect_links
from wirewise.plans.fusion import DECODES
from wirewise.trace.gradients import GradientTrace

__all__ = [
    "CompressionProblem",
    "GradientGroup",
    "GroupTimes",
    "Option",
    "compression_problem",
    "step_s",
    "times",
]


@dataclass(frozen=True)
class Option:
    """Option to send a group; seconds by elements."""

    codec: str
    scheme: str
    decode: str
    """Thread that decodes, one of `DECODES`."""
    encode_s: Curve
    communicate_s: Curve
    decode_s: Curve


class GradientGroup(NamedTuple):
    """Tensors first to last, and the index of the option that sends them."""

    first: int
    last: int
    option: int


@dataclass(frozen=True, kw_only=True)
class CompressionProblem:
    """Step of data-parallel training whose gradients are sent in groups of adjacent tensors.

    Raises:
        InputError: A value is invalid; the message names the first one.
    """

    elements: Sequence[int]
    """Elements of each tensor, in the order of back-propagation, [tensors]."""
    gaps_s: Sequence[float]
    """Seconds of back-propagation since the previous tensor was ready, [tensors]."""
    options: tuple[Option, ...]
    alone: tuple[Option, ...] = ()
    """Options of plans without compression, whose collectives need not wait for each other: those of `options` without
    a codec, in their order. None if they are the same."""
    forward_s: float = 0.0
    """Seconds of the forward pass and the optimizer."""
    names: Sequence[str] = ()
    """Names of the tensors. Defaults to their indices."""
    splits: Mapping[str, int] = field(default_factory=dict)
    """Tensors that are in pieces, which have names of `plans.splits`, and the elements of each piece but the last."""
    ranks: int = 2
    encode_contention: float | None = None
    """Fraction of the encoding time that delays back-propagation, if encoding has a thread of its own. None if it runs
    on the compute thread, which it delays by all of its time."""

    def __post_init__(self) -> None:
        n = len(self.elements)
        if not n or len(self.gaps_s) != n or len(self.names) not in (0, n):
            raise InputError(
                f"got {n} sizes, {len(self.gaps_s)} times and {len(self.names)} names; expected as many of each"
            )
        times = [self.forward_s, *self.gaps_s]
        if min(self.elements) < 1 or not np.isfinite(times).all() or min(times) < 0:
            raise InputError("a tensor has no elements, or a time is below 0 or not finite; mend the trace")
        if not self.options or any(option.decode not in DECODES for option in self.options):
            raise InputError(f"expected an option or more, each with decode one of {', '.join(DECODES)}")
        plain = [(o.scheme, o.decode) for o in self.options if o.codec == "none"]
        if self.alone and [(o.scheme, o.decode) for o in self.alone if o.codec == "none"] != plain:
            raise InputError(
                "the options of plans that compress nothing are other ways than those without a codec"
            )
        if self.encode_contention is not None and not 0 <= self.encode_contention <= 1:
            raise InputError(f"encode_contention is {self.encode_contention}; expected a share from 0 to 1")

    @cached_property
    def element_sums(self) -> Vector:
        """Total elements of the first j tensors, [tensors + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.elements, dtype=np.float64)])

    @cached_property
    def ready_s(self) -> Vector:
        """Back-propagation time of the first j tensors, in seconds, [tensors + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.gaps_s, dtype=np.float64)])

    def uncompressed(self) -> CompressionProblem:
        """Problem restricted to options without a codec.

        Raises:
            InputError: All options compress.
        """
        kept = self.alone or tuple(option for option in self.options if option.codec == "none")
        if not kept:
            raise InputError("all ways of the problem compress; expected one without a codec to compare with")
        return replace(self, options=kept, alone=())

    @cached_property
    def uncompressed_options(self) -> list[int]:
        """Indices of the options without a codec."""
        return [number for number, option in enumerate(self.options) if option.codec == "none"]

    @cached_property
    def plain(self) -> CompressionProblem:
        """Problem restricted to options without a codec."""
        return self.uncompressed() if self.alone else self


def compression_problem(
    job: GradientTrace,
    links: Links | None = None,
    *,
    codec: str | Iterable[str] = "auto",
    costs: GradientCosts | None = None,
    ranks: int | None = None,
    decodes: Sequence[str] = ("inline",),
    forward_share: float = 0.5,
    encode_contention: float | None = None,
) -> CompressionProblem:
    """Build the problem of a recorded model.

    Args:
        job: Gradients of the model.
        links: Links between the ranks. None to use the collective times measured in the costs.
        codec: A codec to choose from besides none, "auto" for all of the costs, or names, of which "none" allows no
            compression.
        costs: Costs of the codecs. Defaults to `V100`.
        ranks: Expected number of ranks. Defaults to those of the links, or of the measured collectives.
        decodes: Threads on which decoding may run.
        forward_share: Forward time as a fraction of back-propagation time, which traces do not contain.
        encode_contention: Fraction of encoding time by which it delays back-propagation, as in `CompressionProblem`.

    Raises:
        InputError: Raised by `group_costs`; there is no codec, a decode thread is unknown, or links are of another
            type.
    """
    costs, links = costs or V100, links if links is None else expect_links(links)
    names = (
        ([*costs.codecs, "none"] if codec == "auto" else [codec, "none"]) if isinstance(codec, str) else codec
    )
    if unknown := [place for place in decodes if place not in DECODES]:
        raise InputError(f"unknown place to decode {unknown[0]!r}; expected some of {','.join(DECODES)}")

    def options(costs: GradientCosts, names: Iterable[str]) -> tuple[Option, ...]:
        return tuple(
            Option(cost.codec, cost.scheme, decode, *cost[2:])
            for name in dict.fromkeys(names)
            for cost in group_costs(costs, name, links, ranks=ranks)
            # Where nothing is decoded its place does not matter.
            for decode in (decodes if max(cost.decode_s([0.0, 1e9])) > 0 else ("inline",))
        )

    names = tuple(names)
    concurrent = links is None and "none" in names and bool(costs.concurrent)
    alone = options(costs.without_codecs(), ["none"]) if concurrent else ()
    only_plain = alone and set(names) == {"none"}
    gaps = [1e-6 * one.gap_us for one in job.tensors]
    return CompressionProblem(
        elements=[one.elements for one in job.tensors],
        gaps_s=gaps,
        options=alone if only_plain else options(costs, names),
        alone=() if only_plain else alone,
        forward_s=forward_share * sum(gaps),
        names=[one.name for one in job.tensors],
        ranks=count_ranks(costs, links, ranks),
        encode_contention=encode_contention,
    )


class GroupTimes(NamedTuple):
    """End times since the start of the backward pass, in seconds, [groups] each."""

    encoded_s: Vector
    sent_s: Vector
    decoded_s: Vector


def step_s(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> float:
    """Predicted step time with these groups, which cover all tensors in order, in seconds."""
    return problem.forward_s + float(max(max(ends) for ends in times(problem, groups)))


def times(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> GroupTimes:
    """End times of the parts of every group."""
    if problem.alone and (plain := _without_codecs(problem, groups)):
        problem, groups = problem.plain, plain
    costs = _costs(problem, groups)
    share = problem.encode_contention
    computed = sent = queue = encoder = ready = 0.0
    lazy: list[int] = []
    ends = np.empty((3, len(groups)))
    for number, (group, (h, g, d)) in enumerate(zip(groups, costs, strict=True)):
        start = computed + float(problem.ready_s[group.last + 1]) - ready
        ready = float(problem.ready_s[group.last + 1])
        computed = start + (h if share is None else share * h)
        encoder = computed if share is None else max(encoder, start) + h
        sent, place = max(sent, encoder) + g, problem.options[group.option].decode
        sent += d if place == "inline" else 0.0
        ends[:, number] = encoder, sent, sent
        if place == "queue":
            ends[2, number] = queue = max(queue, sent) + d
        elif place == "lazy":
            lazy.append(number)
    end = computed
    for number in lazy:
        ends[2, number] = end = max(end, ends[1, number]) + costs[number][2]
    return GroupTimes(*ends)


def _without_codecs(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> list[GradientGroup]:
    """The groups as `problem.plain` numbers them; none if one compresses."""
    numbers = problem.uncompressed_options
    if any(group.option not in numbers for group in groups):
        return []
    return [group._replace(option=numbers.index(group.option)) for group in groups]


def _costs(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> list[tuple[float, float, float]]:
    """Seconds to encode, send and decode each group."""
    sums, found = problem.element_sums, np.empty((len(groups), 3))
    sizes = np.array([sums[group.last + 1] - sums[group.first] for group in groups])
    used = np.array([group.option for group in groups])
    for number in np.unique(used):
        option, own = problem.options[number], used == number
        curves = (option.encode_s, option.communicate_s, option.decode_s)
        found[own] = np.stack([curve(sizes[own]) for curve in curves], axis=1)
    return [(h, g, d) for h, g, d in found.tolist()]
