"""Cupcake (MLSys 2023): which gradients to compress together.

Codecs cost the same for all small tensors, so compressing each tensor separately costs more than it saves, and
compressing all at once overlaps nothing with back-propagation. Groups of adjacent tensors are chosen to minimise the
step of `problem`, here together with each group's codec or none, scheme, and place of decoding; exactly, with a lower
bound for the optimality gap of any plan.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from wirewise.errors import InputError, PlanError
from wirewise.planners.fusion.cupcake.cuts import cuts, lower_bound_s
from wirewise.planners.fusion.cupcake.easing import reduce_work
from wirewise.planners.fusion.cupcake.labels import search
from wirewise.planners.fusion.cupcake.linear import lines, solve_linear
from wirewise.planners.fusion.cupcake.plane import applies, plane
from wirewise.planners.fusion.cupcake.problem import (
    CompressionProblem,
    GradientGroup,
    GroupTimes,
    Option,
    compression_problem,
    step_s,
    times,
)
from wirewise.planners.fusion.cupcake.rules import RULES, bucket, by_rule, even_groups, layer_wise, mg_wfbp
from wirewise.planners.fusion.cupcake.splitting import Split, choose, parse_split, with_splits
from wirewise.planners.fusion.cupcake.trials import (
    LEAST_GAIN,
    candidates,
    fastest,
    gain,
    trial_candidates,
    without_codecs,
)
from wirewise.plans.fusion import DDP_BUCKET_BYTES, Bucket, FusionPlan

__all__ = [
    "LEAST_GAIN",
    "RULES",
    "SLACK",
    "CompressionProblem",
    "GradientGroup",
    "GroupTimes",
    "Grouping",
    "Option",
    "Split",
    "by_rule",
    "candidates",
    "compression_problem",
    "cupcake",
    "fastest",
    "gain",
    "lower_bound_s",
    "parse_split",
    "plan_groups",
    "solve",
    "step_s",
    "times",
    "trial_candidates",
    "with_splits",
    "without_codecs",
]

SLACK = 0.02
"""Fraction of the shortest step that is given up for less work: cost tables are hardly more accurate than that."""
_CLOSE = 1e-10
"""Relative gain that is not worth another plan."""
_ROOMS = (8, 32)
"""Labels a tensor of the first searches, which make the last one fast."""
_PLANE_ROOMS = (16, 64, 256, 1024, 4096)
"""Labels a tensor of the first searches where all is decoded inline."""
_WORK = 1e9
"""Comparisons of labels that the default room leads to at most, by orders of magnitude: a few seconds."""


class Grouping(NamedTuple):
    """Best groups found, with the lower bound."""

    groups: list[GradientGroup]
    step_s: float
    lower_bound_s: float
    """Lower bound of the step, in seconds, to 1e-10: the shortest step if proved optimal, else the best known
    bound."""
    optimal: bool
    """Whether the plan is proved optimal, to 1e-10 of the step, by the search or by the bound."""
    labels: int
    """Labels that the search kept."""

    @property
    def gap(self) -> float:
        """Relative optimality gap of the step: step / bound - 1."""
        return max(self.step_s / self.lower_bound_s - 1.0, 0.0) if self.lower_bound_s > 0 else 0.0


def plan_groups(
    problem: CompressionProblem,
    *,
    method: str = "cupcake",
    seed: int = 0,
    least_gain: float = 0.0,
    slack: float = 0.0,
    split: Split = "none",
) -> FusionPlan:
    """Plan with `cupcake`, or by a rule such as "layer-wise", "even:4", "bucket:25", "mg-wfbp", "mergecomp".

    All plans of a problem record the same bound, that of `solve`; for rules, it takes longer than the groups
    themselves.

    Args:
        problem: Gradients, codecs and links.
        method: Name of the planner.
        seed: Recorded in the plan.
        least_gain: Minimum gain of `cupcake`. By default its plan is the optimum of the model, however small the
            gain.
        slack: Slack of `cupcake`. By default its step is the shortest of the model, whatever the work.
        split: Tensors to send in pieces; with "auto", rules keep tensors whole.

    Raises:
        InputError: A gain or a slack is not in [0, 1], or the split is invalid.
        PlanError: No planner or rule has this name.
    """
    if method == "cupcake":
        return choose(problem, lambda one: cupcake(one, seed=seed, least_gain=least_gain, slack=slack), split)
    if method.partition(":")[0] not in RULES:
        raise PlanError(f"unknown planner {method!r}; expected cupcake or one of: {', '.join(RULES)}")
    plan = choose(
        problem,
        lambda one: _plan(one, by_rule(one, method), method, seed, 0.0),
        "none" if split == "auto" else split,
    )
    planned = with_splits(problem, plan.splits) if plan.splits else problem
    return replace(plan, lower_bound_s=solve(planned).lower_bound_s)


def cupcake(
    problem: CompressionProblem,
    *,
    seed: int = 0,
    room: int | None = None,
    least_gain: float = LEAST_GAIN,
    slack: float = SLACK,
) -> FusionPlan:
    """Choose the groups with the shortest step, or nearly so with less work; without codecs if they gain little.

    Args:
        problem: Gradients, codecs and links.
        seed: Recorded in the plan; the search is deterministic.
        room: Maximum number of labels to keep, as in `solve`.
        least_gain: Fraction of the best uncompressed step that compression must save, if the problem has options
            without a codec. Both steps are recorded in the plan.
        slack: Fraction of the shortest step to give up for less encoding, sending and decoding (see `reduce_work`).

    Raises:
        InputError: A gain or a slack is not in [0, 1].
    """
    for name, share in (("least_gain", least_gain), ("slack", slack)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} is {share}; expected a share of the step from 0 to 1")
    found = _solved(problem, room, slack)
    plan = _plan(problem, found.groups, "cupcake", seed, found.lower_bound_s)
    if not problem.uncompressed_options or not plan.compresses:
        return plan
    without = _solved(problem.uncompressed(), room, slack)
    if gain(found.step_s, without.step_s) < least_gain:
        groups = _renumbered(problem, without.groups)
        plan = _plan(problem, groups, "cupcake", seed, found.lower_bound_s)
    return replace(plan, compressed_step_s=found.step_s, uncompressed_step_s=without.step_s)


def _solved(problem: CompressionProblem, room: int | None, slack: float) -> Grouping:
    found = solve(problem, room=room)
    groups = reduce_work(problem, found.groups, slack) if slack else found.groups
    return found._replace(groups=groups, step_s=step_s(problem, groups))


def _renumbered(problem: CompressionProblem, plain: list[GradientGroup]) -> list[GradientGroup]:
    """Groups of the problem without codecs, with the options as the problem numbers them."""
    return [group._replace(option=problem.uncompressed_options[group.option]) for group in plain]


def solve(problem: CompressionProblem, *, room: int | None = None) -> Grouping:
    """Minimise the step over all divisions into groups and all options of each group.

    Exact: dynamic programming if there is one option with linear costs, bidirectional walks if everything is decoded
    inline, else label setting. The result is never worse than that of a rule.

    Args:
        problem: Gradients, codecs and links.
        room: Maximum number of labels per tensor; if a problem needs more, the result may be suboptimal, and says so.
            Defaults to as many as take a few seconds.
    """
    if problem.alone:
        # Two problems: a step is that of the one as soon as a group compresses.
        mixed = solve(dataclasses.replace(problem, alone=()), room=room)
        plain = solve(problem.uncompressed(), room=room)
        kinds = [mixed.groups, _renumbered(problem, plain.groups)]
        best = min(kinds, key=lambda groups: step_s(problem, groups))
        bound = min(mixed.lower_bound_s, plain.lower_bound_s)
        proved = mixed.optimal and plain.optimal and bound >= step_s(problem, best) * (1 - 2 * _CLOSE)
        return _solution(problem, best, bound, proved, mixed.labels + plain.labels)
    straight = lines(problem)
    if straight is not None:
        starts = _starts(problem)
        limit = min(step_s(problem, groups) for groups in starts) - problem.forward_s
        best = min(
            [solve_linear(problem, straight, limit), *starts], key=lambda groups: step_s(problem, groups)
        )
        return _solution(problem, best, 0.0, True, 0)
    return _by_plane(problem, room) if applies(problem) else _by_labels(problem, room)


def _by_plane(problem: CompressionProblem, room: int | None) -> Grouping:
    n, options = len(problem.elements), range(len(problem.options))
    if room is None:
        room = int(min(max(0.4 * _WORK / n**2, 64), _PLANE_ROOMS[-1]))
    few = [even_groups(problem, option, min(count, n)) for option in options for count in (1, 8, n)]
    best = min(few, key=lambda groups: step_s(problem, groups))
    rooms = [width for width in _PLANE_ROOMS if width <= room] or [room]
    best, bound, labels = plane(problem, best, _CLOSE, rooms)
    optimal = bound >= step_s(problem, best) * (1 - 2 * _CLOSE)
    if not optimal:
        best = min([best, *_starts(problem)], key=lambda groups: step_s(problem, groups))
        bound = max(bound, lower_bound_s(problem))
    return _solution(problem, best, bound, optimal, labels)


def _by_labels(problem: CompressionProblem, room: int | None) -> Grouping:
    if room is None:
        pairs = len(problem.elements) ** 2 * len(problem.options) / 2
        room = int(min(max((_WORK / pairs) ** 0.5, 16), 512))
    bound, best = lower_bound_s(problem), min(_starts(problem), key=lambda groups: step_s(problem, groups))
    below, labels, optimal = cuts(problem), 0, True
    for width in (*(few for few in _ROOMS if few < room), room):
        limit = step_s(problem, best) * (1 - _CLOSE)
        if limit <= bound:
            optimal = True
            break
        found = search(problem, below, limit - problem.forward_s, width)
        labels, optimal = labels + found.labels, found.complete
        if found.groups is not None:
            best = found.groups
        if found.complete:
            break
    return _solution(problem, best, bound, optimal, labels)


def _solution(
    problem: CompressionProblem, best: list[GradientGroup], bound_s: float, optimal: bool, labels: int
) -> Grouping:
    """Solution with the step as its own bound if it is the shortest: the search proves more than a bound knows."""
    shortest_s = step_s(problem, best)
    return Grouping(best, shortest_s, shortest_s if optimal else min(bound_s, shortest_s), optimal, labels)


def _starts(problem: CompressionProblem) -> list[list[GradientGroup]]:
    """Plans that are known without a search."""
    counts = [1, 2, 4, 8, 16, 32]
    found = []
    for option in range(len(problem.options)):
        found += [even_groups(problem, option, count) for count in counts if count <= len(problem.elements)]
        found += [
            layer_wise(problem, option),
            mg_wfbp(problem, option),
            bucket(problem, option, DDP_BUCKET_BYTES),
        ]
    return found


def _plan(
    problem: CompressionProblem, groups: list[GradientGroup], planner: str, seed: int, bound_s: float
) -> FusionPlan:
    names = list(problem.names) or [str(i) for i in range(len(problem.elements))]
    sizes = 4.0 * np.diff(problem.element_sums)
    buckets = tuple(
        Bucket(
            parameters=tuple(names[group.first : group.last + 1]),
            size_bytes=int(sizes[group.first : group.last + 1].sum()),
            codec=problem.options[group.option].codec,
            scheme=problem.options[group.option].scheme,
            decode=problem.options[group.option].decode,
        )
        for group in groups
    )
    return FusionPlan(
        world_size=problem.ranks,
        planner=planner,
        seed=seed,
        buckets=buckets,
        splits=dict(problem.splits),
        predicted_step_s=step_s(problem, groups),
        baseline_step_s=step_s(problem, by_rule(problem, "layer-wise")),
        lower_bound_s=bound_s,
    )
