"""Segment-wise dynamic programming over points where a single tensor joins the model's front to its back.

The sharding at a joint is common to both sides; inside a segment the choices are solved exactly for the cheapest pairs
of shardings at its ends. Other edges between segments, such as those of gradients, are charged their minimum cost; the
choices are then improved one segment at a time, with all others fixed. The sum of the minimum costs of the segments is
a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise import work
from wirewise.planners.parallel.rhino.choices import Assignment, ChoiceProblem
from wirewise.planners.parallel.rhino.shardings import LEAVES, ShardingProblem

__all__ = ["joints_of", "segments_of", "solve_by_segments"]

_MOST_ENDS = 4
"""Decisions at an end of a segment that are looked at."""
_ROUNDS = 6


def joints_of(problem: ShardingProblem) -> list[int]:
    """Forward nodes after which no earlier forward tensor of the batch is read, in order."""
    graph, found, latest = problem.graph, list[int](), -1
    ends = {
        number: max((u for u in graph.users[number] if graph.nodes[u].phase == "forward"), default=number)
        for number, node in enumerate(graph.nodes)
        if node.phase == "forward" and node.computes | (node.op == "getitem")
    }
    for number in ends:
        if graph.nodes[number].op == "output":
            continue
        if latest <= number and ends[number] > number and graph.nodes[number].computes:
            found.append(number)
        latest = max(latest, ends[number])
    return found


def segments_of(problem: ShardingProblem) -> tuple[list[int], list[int]]:
    """Segment of each variable, and the variable of the tensor at which each segment but the last ends.

    Segments start and end at joints with a substantial part of the work in between.
    """
    graph, nodes = problem.graph, problem.graph.nodes
    work = np.cumsum([node.time_s * (node.phase == "forward") for node in nodes])
    repeated = {n for block in graph.repeats for copy in block.nodes[1:] for n in copy}
    cuts, last = list[int](), 0.0
    for joint in joints_of(problem):
        if (
            nodes[joint].shape
            and joint not in repeated
            and work[joint] - last > 0.1 * work[-1] / max(_copies(problem), 1)
        ):
            cuts.append(joint)
            last = float(work[joint])
    number_of = np.searchsorted(cuts, np.arange(len(nodes)), side="left")
    segment: dict[int, int] = {}
    for number, node in enumerate(nodes):
        if node.op == "output":
            continue
        if node.op in LEAVES:
            first = [user for user in graph.users[number] if nodes[user].phase == "forward"]
            segment[number] = int(number_of[min(first)]) if first else 0
        elif node.phase == "forward":
            segment[number] = int(number_of[number])
        else:
            forward = [segment[i] for i in node.inputs if nodes[i].phase == "forward"]
            backward = [segment[i] for i in node.inputs if nodes[i].phase == "backward"]
            segment[number] = max(forward) if forward else min(backward, default=len(cuts))
    found = [segment[node] for node in problem.variables]
    versions = {variable: node for node, (variable, _) in problem.versions.items()}
    found += [segment[versions[v]] for v in range(len(found), len(problem.problem.cost))]
    ends = [problem.versions[cut][0] if cut in problem.versions else problem.variables[cut] for cut in cuts]
    return found, ends


def _copies(problem: ShardingProblem) -> int:
    return max((len(block.nodes) for block in problem.graph.repeats), default=1)


def solve_by_segments(
    problem: ShardingProblem, *, price: float = 0.0, time_limit_s: float = 60.0
) -> Assignment | None:
    """Solve segment by segment; returns values of all variables with a bound. None if infeasible.

    Args:
        problem: Training step on a mesh.
        price: Price of a byte of memory.
        time_limit_s: Work limit, in seconds of an unloaded CPU.
    """
    whole = problem.problem
    segment, ends = segments_of(problem)
    until = work.spent_s() + time_limit_s
    unary = [cost + price * memory for cost, memory in zip(whole.cost, whole.memory, strict=True)]
    count = len(ends) + 1
    before: NDArray[np.float64] = np.zeros(1)
    led: list[NDArray[np.int64]] = []
    parts, bound = [], 0.0
    for number in range(count):
        head = ends[number - 1] if number else None
        tail = ends[number] if number < len(ends) else None
        sub, own = _part(whole, unary, segment, number, head)
        parts.append((sub, own, head, tail))
        free = sub.solve(time_limit_s=max(until - work.spent_s(), 1.0))
        if free is None:
            return None
        bound += free.bound
        left = max(until - work.spent_s(), 1.0)
        if head is None and tail is None:
            table = np.array([[free.bound]])
        elif tail is None:
            table = sub.table(own[head or 0], own[head or 0], maximum=_MOST_ENDS, time_limit_s=left)
        elif head is None:
            table = sub.table(own[tail], own[tail], maximum=_MOST_ENDS, time_limit_s=left).T
        else:
            table = sub.table(own[head], own[tail], maximum=_MOST_ENDS, time_limit_s=left)
        both = before[:, None] + table
        led.append(both.argmin(axis=0))
        before = both.min(axis=0)
    if not np.isfinite(before[0]):
        # Decisions at the ends that look cheap do not go together.
        return whole.solve(time_limit_s=max(until - work.spent_s(), 1.0))
    values, at = [0] * len(whole.cost), 0
    for number in reversed(range(count)):
        sub, own, head, tail = parts[number]
        fixed = {} if tail is None else {own[tail]: at}
        at = int(led[number][at])
        if head is not None:
            fixed[own[head]] = at
        found = sub.solve(fixed=fixed, time_limit_s=max(until - work.spent_s(), 1.0))
        if found is None:
            return None
        for variable, place in own.items():
            if segment[variable] == number:
                values[variable] = found.values[place]
    values = _improved(whole, unary, segment, count, values, until)
    cost, memory = whole.total(values)
    return (
        Assignment(values, cost, memory, min(bound, cost + price * memory), linear=True)
        if np.isfinite(cost)
        else None
    )


def _part(
    whole: ChoiceProblem,
    unary: Sequence[NDArray[np.float64]],
    segment: Sequence[int],
    number: int,
    head: int | None,
) -> tuple[ChoiceProblem, dict[int, int]]:
    """Variables of a segment and its head; edges to others count with their least in the segment of their first."""
    sub, own = ChoiceProblem(), dict[int, int]()
    for variable, of in enumerate(segment):
        if of == number:
            own[variable] = sub.add(unary[variable])
    if head is not None:
        own[head] = sub.add(np.where(np.isfinite(unary[head]), 0.0, np.inf))
    for (a, b), pair in whole.pairs.items():
        if a in own and b in own:
            if not (head in (a, b) and segment[a] != number and segment[b] != number):
                sub.join(own[a], own[b], pair)
        elif a in own and segment[a] == number:
            sub.cost[own[a]] = sub.cost[own[a]] + pair.min(axis=1)
    return sub, own


def _improved(
    whole: ChoiceProblem,
    unary: Sequence[NDArray[np.float64]],
    segment: Sequence[int],
    count: int,
    values: list[int],
    until: float,
) -> list[int]:
    """Values after each segment was solved with all others as they are, until none gets better."""

    def cost(of: Sequence[int]) -> float:
        pairs = sum(float(pair[of[a], of[b]]) for (a, b), pair in whole.pairs.items())
        return pairs + sum(float(one[v]) for one, v in zip(unary, of, strict=True))

    best, groups = cost(values), [{n} for n in range(count)] + [{n, n + 1} for n in range(count - 1)]
    for _ in range(_ROUNDS):
        start = best
        for group in groups:
            own, sub = dict[int, int](), ChoiceProblem()
            for variable, of in enumerate(segment):
                if of in group:
                    own[variable] = sub.add(unary[variable])
            for (a, b), pair in whole.pairs.items():
                if a in own and b in own:
                    sub.join(own[a], own[b], pair)
                elif a in own:
                    sub.cost[own[a]] = sub.cost[own[a]] + pair[:, values[b]]
                elif b in own:
                    sub.cost[own[b]] = sub.cost[own[b]] + pair[values[a]]
            found = sub.solve(time_limit_s=max(until - work.spent_s(), 1.0))
            if found is not None:
                tried = list(values)
                for variable, at in own.items():
                    tried[variable] = found.values[at]
                if (reached := cost(tried)) < best or not np.isfinite(best):
                    values, best = tried, reached
        if not best < start or work.spent_s() > until:
            break
    return values
