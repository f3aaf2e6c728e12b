"""Every way to group stages, in plain loops: what the search over prefixes is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from wirewise.planners.recovery import RecoveryProblem

Point = tuple[float, float]
"""Price and cost."""


def partitions(stages: int) -> Iterator[list[list[int]]]:
    for count in range(stages):
        for cuts in itertools.combinations(range(1, stages), count):
            bounds = [0, *cuts, stages]
            yield [list(range(a, b)) for a, b in itertools.pairwise(bounds)]


def every_point(problem: RecoveryProblem, helpers: int = 0) -> Iterator[Point]:
    """Price and cost of all groupings, with all ways to lay logs into memory or on disk."""
    count = len(problem.trace.stages)
    known = {
        (first, end, tier): _point(problem, list(range(first, end)), tier, helpers)
        for first, end in itertools.combinations(range(count + 1), 2)
        for tier in ("memory", "disk")
    }
    for groups in partitions(count):
        for tiers in itertools.product(("memory", "disk"), repeat=len(groups)):
            points = [known[own[0], own[-1] + 1, tier] for own, tier in zip(groups, tiers, strict=True)]
            if None not in points:
                yield sum(one[0] for one in points), sum(one[1] for one in points)


def _point(problem: RecoveryProblem, group: list[int], tier: str, helpers: int) -> Point | None:
    trace = problem.trace
    lost = [n for n in group if len(trace.stages[n].ranks) == 1]
    if not lost:
        return 0.0, 0.0
    if sum(trace.stages[n].state_bytes for n in group) > problem.spare_bytes:
        return None
    weights = [stage.failure_weight * len(stage.ranks) for stage in trace.stages]
    wire = 1.0 / problem.links.bandwidth_out_bytes_per_s[0]
    rate = trace.memory_log_bytes_per_s if tier == "memory" else trace.disk_log_bytes_per_s
    price, count = 0.0, trace.microbatches
    # Seconds of one microbatch at each stage and on each link between two of the group.
    places = {n: trace.stages[n].compute_s / count for n in group}
    for one in trace.messages:
        if one.target in group and one.source in group:
            places[one.source, one.target] = one.size_bytes * wire / count
        elif one.target in group:
            places[one.target] += one.size_bytes * max(wire, 1.0 / rate) / count
            price += one.size_bytes * problem.prices[tier]
    most = -(-count // min(helpers + 1, count))
    # Each microbatch starts at a place once it is free and the place before is done.
    free = dict.fromkeys(places, 0.0)
    for _ in range(most):
        at = 0.0
        for place, seconds in places.items():
            at = free[place] = max(at, free[place]) + seconds
    seconds = max(free.values()) + max(trace.stages[n].optimizer_s for n in group)
    if helpers:
        seconds += (count - most) * sum(trace.stages[n].gradient_bytes for n in group) * wire
    return price, seconds * sum(weights[n] for n in lost) / sum(weights)


def best_points(points: list[Point]) -> list[Point]:
    """Points that no other one beats, by rising price."""
    found: list[Point] = []
    for price, cost in sorted(points):
        if not found or cost < found[-1][1] * (1 - 1e-12):
            found.append((price, cost))
    return found
