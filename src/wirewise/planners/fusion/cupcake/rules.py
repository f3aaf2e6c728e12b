"""Baseline groupings by rule, each with the best single option for all groups."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.fusion.cupcake.problem import CompressionProblem, GradientGroup, step_s

__all__ = ["RULES", "bucket", "by_rule", "even_groups", "layer_wise", "mergecomp", "mg_wfbp"]

Rule = Callable[[CompressionProblem, int], list[GradientGroup]]

_PROBE = 2
"""Tensors between the two cuts that MergeComp compares."""
_MOST_GROUPS = 3
"""MergeComp's groups; it stops at 2 in practice, and one more costs n times the search."""


def layer_wise(problem: CompressionProblem, option: int) -> list[GradientGroup]:
    """Group every tensor separately."""
    return [GradientGroup(i, i, option) for i in range(len(problem.elements))]


def even_groups(problem: CompressionProblem, option: int, count: int) -> list[GradientGroup]:
    """Divide into `count` groups with nearly equal numbers of tensors."""
    n = len(problem.elements)
    parts = np.array_split(np.arange(n), min(count, n))
    return [GradientGroup(int(part[0]), int(part[-1]), option) for part in parts]


def bucket(problem: CompressionProblem, option: int, size_bytes: float) -> list[GradientGroup]:
    """Close a group as soon as it holds `size_bytes` of float32, like DistributedDataParallel."""
    found, first, held = [], 0, 0.0
    for i, elements in enumerate(problem.elements):
        held += 4.0 * elements
        if held >= size_bytes or i == len(problem.elements) - 1:
            found.append(GradientGroup(first, i, option))
            first, held = i + 1, 0.0
    return found


def mg_wfbp(problem: CompressionProblem, option: int) -> list[GradientGroup]:
    """Merge a tensor into the previous group if it is ready before that group's collective starts, or alpha later.

    MG-WFBP (INFOCOM 2019) has no encoding; here earlier encoding delays the readiness of tensors.
    """
    own, sums, ready = problem.options[option], problem.element_sums, problem.ready_s
    alpha = float(own.communicate_s(0.0))
    found, first, encoded, sent = [], 0, 0.0, 0.0
    for j in range(1, len(problem.elements) + 1):
        size = sums[j] - sums[first]
        begins = max(sent, ready[j] + encoded + float(own.encode_s(size)))
        if j < len(problem.elements) and ready[j + 1] + encoded <= begins + alpha:
            continue
        found.append(GradientGroup(first, j - 1, option))
        encoded += float(own.encode_s(size))
        sent = begins + float(own.communicate_s(size))
        first = j
    return found


def mergecomp(problem: CompressionProblem, option: int, *, margin: float = 0.01) -> list[GradientGroup]:
    """Increase the number of groups from 2 while the step gains `margin`; boundaries by binary search or enumeration.

    MergeComp (2021), also Cupcake's released scheduler, there with one boundary.
    """
    whole = [GradientGroup(0, len(problem.elements) - 1, option)]
    best, best_s = whole, step_s(problem, whole)
    for count in range(2, min(_MOST_GROUPS, len(problem.elements)) + 1):
        groups, seconds = _best_of(problem, option, count)
        if seconds >= best_s * (1 - margin):
            return min((best, groups), key=lambda found: step_s(problem, found))
        best, best_s = groups, seconds
    return best


def _best_of(problem: CompressionProblem, option: int, count: int) -> tuple[list[GradientGroup], float]:
    others = combinations(range(1, len(problem.elements)), count - 2)
    tried = (_searched(problem, option, fixed) for fixed in others)
    return min(tried, key=lambda found: found[1])


def _searched(
    problem: CompressionProblem, option: int, fixed: tuple[int, ...]
) -> tuple[list[GradientGroup], float]:
    """One more cut behind the fixed ones: towards the better of two cuts that are `_PROBE` tensors apart."""
    n = len(problem.elements)

    def tried(cut: int) -> tuple[list[GradientGroup], float]:
        groups = _at_cuts(n, option, (*fixed, cut))
        return groups, step_s(problem, groups)

    low, high = (fixed[-1] if fixed else 0) + 1, n - 1
    if low > high:
        return tried(n - 1)
    seen = [tried(low)]
    while high - low > 0:
        middle = (low + high) // 2
        left, right = tried(middle), tried(min(middle + _PROBE, high))
        seen += [left, right]
        low, high = (low, middle) if left[1] <= right[1] else (middle + 1, high)
    return min([*seen, tried(low)], key=lambda found: found[1])


def _at_cuts(n: int, option: int, cuts: tuple[int, ...]) -> list[GradientGroup]:
    return [GradientGroup(a, b - 1, option) for a, b in pairwise(sorted({0, *cuts, n}))]


RULES: dict[str, Callable[..., list[GradientGroup]]] = {
    "layer-wise": layer_wise,
    "even": even_groups,
    "bucket": bucket,
    "mg-wfbp": mg_wfbp,
    "mergecomp": mergecomp,
}
"""Rules by name; `even_groups` takes a number of groups and `bucket` a number of MiB after a colon."""


def by_rule(problem: CompressionProblem, name: str) -> list[GradientGroup]:
    """Group by a rule such as "layer-wise", "even:4", "bucket:25"; all compressed if any option compresses.

    Raises:
        PlanError: The rule is unknown, or its number is missing or not positive.
    """
    rule, options = _rule(name), [o for o, option in enumerate(problem.options) if option.codec != "none"]
    found = (rule(problem, option) for option in options or range(len(problem.options)))
    return min(found, key=lambda groups: step_s(problem, groups))


def _rule(name: str) -> Rule:
    word, _, number = name.partition(":")
    known = ", ".join(f"{rule}:NUMBER" if rule in ("even", "bucket") else rule for rule in RULES)
    if word not in RULES or (word in ("even", "bucket")) != bool(number):
        raise PlanError(f"unknown rule {name!r} for groups of gradients; expected one of: {known}")
    if not number:
        return RULES[word]
    try:
        value = int(number) if word == "even" else float(number) * 2**20
    except ValueError:
        value = 0
    if not 0 < value < np.inf:
        raise PlanError(
            f"got {name!r}; expected a number above 0 behind the colon, such as even:4 or bucket:25"
        )
    return lambda problem, option: RULES[word](problem, option, value)
