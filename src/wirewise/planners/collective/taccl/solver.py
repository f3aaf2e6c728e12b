"""The three stages one after the other, for several routings and orders; the program that is quickest in replay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from wirewise.collective import REDUCING, Program
from wirewise.planners.collective.deadline import Late
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.collective.taccl.contiguity import Grouped, group, least_finish
from wirewise.planners.collective.taccl.greedy import Matching, match
from wirewise.planners.collective.taccl.instance import RoutingInstance, Send, Tree
from wirewise.planners.collective.taccl.ordering import HEURISTICS, order
from wirewise.planners.collective.taccl.routing import Routing, arrivals, preferred, route, sends_of
from wirewise.planners.collective.taccl.timing import ChunkMessage, Schedule, program
from wirewise.sim.programs import simulate

__all__ = ["Result", "matchings", "solve"]

_MATCHINGS = 6
_FINALISTS = 3
_LEAST_GROUPING_S = 0.5
_RULES_OF_MATCHINGS = (5, 12, 14, 15)
_Ways = tuple[tuple[Tree, ...], dict[Send, int]]


@dataclass(frozen=True)
class Result:
    """A program and what the stages say of it; times in units of the logical topology."""

    program: Program
    predicted_s: float
    """Seconds by a replay."""
    routing: Routing
    name: str
    """Which routing and order it is."""
    finish: int
    """Time at which the schedule ends."""
    bound: int
    """Time before which no schedule with these ways ends."""
    apart: int
    """Finish of the same schedule with all chunks sent one by one."""
    together: int
    """Most chunks that are sent together."""
    seconds: float

    @property
    def gap(self) -> float:
        """Part of the finish that another schedule with these ways may save."""
        return (self.finish - self.bound) / self.finish if self.finish else 0.0


def matchings(instance: RoutingInstance, seed: int = 0, *, time_limit_s: float = 10.0) -> list[Matching]:
    """Matched algorithms by both preferences and several seeds, the quickest first; at least one, or `Late`."""
    stop, found = time.perf_counter() + time_limit_s, list[Matching]()
    for number in range(_MATCHINGS):
        if found and time.perf_counter() > stop:
            break
        try:
            found.append(match(instance, seed + number // 2, first_come=number % 2 == 0))
        except Late:
            if not found:
                raise
            break
    return sorted(found, key=lambda m: m.finish)


def solve(
    instance: RoutingInstance,
    problem: CollectiveProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    heuristic: int | None = None,
) -> Result:
    """Route, order and group the chunks of an instance.

    Among candidates the least simulated time decides; where links are taken during latencies, which a simulation does
    not know, the time of the schedule counts if it is longer.

    Args:
        instance: Chunks on a logical topology; of a collective that sums up, those of its mirror.
        problem: What the program carries out.
        time_limit_s: Shared among the stages; each returns the best that it has.
        seed: Seed of matchings and solver.
        heuristic: The one rule of order; None: all are tried.

    Raises:
        PlanError: The sketch leaves targets out of reach.
        Late: The instance's deadline passed before there was a matching.
    """
    started = time.perf_counter()
    matched = matchings(instance, seed, time_limit_s=0.2 * time_limit_s)
    left_s = time_limit_s - (time.perf_counter() - started)
    routing = route(instance, matched[0], time_limit_s=min(0.4 * time_limit_s, left_s), seed=seed)
    ways = dict(_ways(instance, matched, routing, 0.1 * time_limit_s, seed))
    left_s = time_limit_s - (time.perf_counter() - started)
    upwards = problem.collective in REDUCING
    candidates = _candidates(instance, matched, ways, heuristic, upwards, left_s)
    top = instance.topology
    unit_s = top.unit_s if top.alpha_occupies else 0.0
    predicted_s, name, chosen, made = min(
        (_replayed(problem, instance, name, found) for name, found in candidates),
        key=lambda tried: max(tried[0], tried[2].schedule.finish * unit_s),
    )
    return Result(
        program=made,
        predicted_s=predicted_s,
        routing=routing,
        name=name,
        finish=chosen.schedule.finish,
        bound=chosen.bound,
        apart=chosen.apart,
        together=chosen.schedule.together,
        seconds=time.perf_counter() - started,
    )


def _replayed(
    problem: CollectiveProblem, instance: RoutingInstance, name: str, found: Grouped
) -> tuple[float, str, Grouped, Program]:
    made = program(instance, found.schedule, problem)
    return simulate(made, problem.network, problem.size_bytes).finish_s, name, found, made


def _ways(
    instance: RoutingInstance, matched: list[Matching], routing: Routing, policy_s: float, seed: int
) -> Iterator[tuple[str, _Ways]]:
    """Routings with the starts that they suggest."""
    for number, found in enumerate(matched):
        yield f"matching {number}", (found.trees, found.starts)
    if routing.trees != matched[0].trees:
        yield "program", (routing.trees, _suggested(instance, routing.trees))
    if instance.topology.connections or instance.topology.spread:
        chosen = preferred(instance, routing, time_limit_s=policy_s, seed=seed)
        yield "program with connections", (chosen.trees, _suggested(instance, chosen.trees))


def _suggested(instance: RoutingInstance, trees: tuple[Tree, ...]) -> dict[Send, int]:
    times = arrivals(instance, trees)
    return {send: times[send.chunk][send.source] for send in sends_of(trees)}


def _candidates(
    instance: RoutingInstance,
    matched: list[Matching],
    ways: dict[str, _Ways],
    heuristic: int | None,
    upwards: bool,
    time_limit_s: float,
) -> Iterator[tuple[str, Grouped]]:
    """Schedules of all routings and orders one by one, then with chunks together for the best."""
    stop = time.perf_counter() + time_limit_s
    enough = time.perf_counter() + 0.5 * time_limit_s
    plain = list[tuple[Grouped, str, dict[Send, tuple[int, ...]], int]]()
    for name, (trees, routed) in ways.items():
        for rule in _rules(name, heuristic):
            # Matchings have an order of their own.
            if (plain or heuristic is None) and time.perf_counter() > enough:
                break
            places = order(instance, trees, routed, rule, upwards)
            found = group(instance, places, time_limit_s=0.0, most=1, upwards=upwards)
            plain.append((found, f"{name}, order {rule}", places, rule))
            yield plain[-1][1], found
    if heuristic is None:
        for number, each in enumerate(matched):
            yield f"matching {number}", _as_matched(instance, each, upwards)
    plain.sort(key=lambda item: item[0].schedule.finish)
    for number, (_, name, places, rule) in enumerate(plain[:_FINALISTS]):
        left_s = (stop - time.perf_counter()) / (_FINALISTS - number)
        left_s = left_s if number else max(left_s, _LEAST_GROUPING_S)
        if left_s > 0 and any(hop.remote and hop.alpha for hop in instance.topology.hops.values()):
            yield (
                f"{name}, together",
                group(instance, places, time_limit_s=left_s, own_apart=rule == 11, upwards=upwards),
            )


def _rules(name: str, heuristic: int | None) -> tuple[int, ...]:
    """Orders to try: matchings have one already, which most rules keep."""
    if heuristic is not None:
        return (heuristic,)
    return _RULES_OF_MATCHINGS if name.startswith("matching") else tuple(HEURISTICS)


def _as_matched(instance: RoutingInstance, found: Matching, upwards: bool) -> Grouped:
    """The matching as it is, or from its end to its start."""
    messages = tuple(ChunkMessage((s, t), (c,)) for c, s, t in found.starts)
    starts = list(found.starts.values())
    if upwards:
        hops = instance.topology.hops
        starts = [found.finish - s - hops[m.pair].cost for s, m in zip(starts, messages, strict=True)]
    made = Schedule(messages, tuple(starts), found.finish, upwards)
    return Grouped(made, found.finish, least_finish(instance, list(found.starts)), 1)
