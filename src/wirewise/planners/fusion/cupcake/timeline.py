"""When each group is encoded, sent and decoded.

Back-propagation and encoding share one queue, collectives another, in order. With C the end of what is computed for
a group, M of its collective, and B, h, g, d the seconds of back-propagation, encoding, sending and decoding:

    C = C' + B + h,    M = max(M', C) + g,    step = A + the last end of all.

Decoding `inline` is part of the collective's slot, M = M + d. Decoding on a `queue` of its own ends at
Q = max(Q', M) + d. `lazy` decoding runs on the computing thread once back-propagation is over: its chain is
L = max(L', M) + d, and what it takes in all, D, follows the last C.
Encoding beside back-propagation ends at E = max(E', C' + B) + h and makes C = C' + B + share * h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.fusion.cupcake.problem import CompressionProblem, GradientGroup

__all__ = ["GroupTimes", "step_s", "times"]

Vector = NDArray[np.float64]


class GroupTimes(NamedTuple):
    """Ends since the backward pass began, [groups] each."""

    encoded_s: Vector
    sent_s: Vector
    decoded_s: Vector


def step_s(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> float:
    """Seconds of a step with these groups, which hold all tensors in order."""
    return problem.forward_s + float(max(max(ends) for ends in times(problem, groups)))


def times(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> GroupTimes:
    """Ends of every group's parts."""
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
    numbers = problem.plain_numbers
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
