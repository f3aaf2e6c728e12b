"""Plans with less work whose step is hardly longer.

The shortest step of the model uses all free time of links and CPUs: it leaves a group uncompressed where the link
would otherwise idle. If links and CPUs are slightly slower than their tables, such a step gets longer than that of a
plan with less to encode, send and decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.fusion.cupcake.problem import CompressionProblem, GradientGroup, step_s

__all__ = ["reduce_work"]

_TRIED = 500
"""Changes of a plan that are tried at most for one that is short enough, a tenth of a millisecond each."""


def reduce_work(
    problem: CompressionProblem, groups: Sequence[GradientGroup], slack: float
) -> list[GradientGroup]:
    """Reduce the work of groups greedily, one change at a time: another option of a group, or merging two neighbours.

    No change lengthens the step by more than the work it saves: merging two messages saves little, and ends later.

    Args:
        problem: Gradients, codecs and links.
        groups: Groups of a plan for it.
        slack: Maximum increase of the step, as a fraction of the plan's step.
    """
    limit, found = step_s(problem, groups) * (1 + slack), list(groups)
    while (changed := _eased_once(problem, found, limit)) is not None:
        found = changed
    return found


def _eased_once(
    problem: CompressionProblem, groups: list[GradientGroup], limit: float
) -> list[GradientGroup] | None:
    now = step_s(problem, groups)
    for saved, changed in islice(_easier(problem, groups), _TRIED):
        if step_s(problem, changed) <= min(limit, now + saved):
            return changed
    return None


def _easier(
    problem: CompressionProblem, groups: list[GradientGroup]
) -> Iterator[tuple[float, list[GradientGroup]]]:
    """All changes that save work, and how much, those that save most first."""
    pairs = [GradientGroup(a.first, b.last, a.option) for a, b in pairwise(groups)]
    alone = _work(problem, groups)
    now = alone[[group.option for group in groups], range(len(groups))]
    saved = np.concatenate([now - alone, now[:-1] + now[1:] - _work(problem, pairs)], axis=1)
    for place in np.argsort(-saved, axis=None):
        option, number = divmod(int(place), saved.shape[1])
        if saved[option, number] <= 0:
            return
        merged = number >= len(groups)
        first = number - len(groups) if merged else number
        one = (pairs[first] if merged else groups[first])._replace(option=option)
        yield float(saved[option, number]), [*groups[:first], one, *groups[first + 1 + merged :]]


def _work(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> NDArray[np.float64]:
    """Seconds of each group's work with each option, [options, groups]."""
    sums = problem.element_sums
    sizes = np.array([sums[group.last + 1] - sums[group.first] for group in groups])
    return np.array(
        [o.encode_s(sizes) + o.communicate_s(sizes) + o.decode_s(sizes) for o in problem.options]
    ).reshape(len(problem.options), len(groups))
