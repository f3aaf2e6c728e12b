"""The three stages in sequence, for several routings and orderings; the fastest program in simulation wins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from wirewise import work
from wirewise.collective import REDUCING, Program
from wirewise.planners.collective.deadline import DeadlineReached
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.collective.taccl.contiguity import GroupedSchedule, group, least_finish
from wirewise.planners.collective.taccl.greedy import Matching, match
from wirewise.planners.collective.taccl.instance import RoutingInstance, Send, Tree
from wirewise.planners.collective.taccl.ordering import HEURISTICS, order
from wirewise.planners.collective.taccl.routing import Routing, arrivals, preferred, route, sends_of
from wirewise.planners.collective.taccl.timing import ChunkMessage, Schedule, program
from wirewise.sim.programs import simulate

__all__ = ["FirstStage", "Result", "matchings", "solve"]

_MATCHINGS = 6
_FINALISTS = 3
_LEAST_GROUPING_S = 0.5
_RULES_OF_MATCHINGS = (5, 12, 14, 15)
_Ways = tuple[tuple[Tree, ...], dict[Send, int]]


class FirstStage(NamedTuple):
    """Matchings of an instance, fastest first, and the routing made from the first."""

    instance: RoutingInstance
    matched: list[Matching]
    routing: Routing


@dataclass(frozen=True)
class Result:
    """Program and results of the stages; times in units of the logical topology."""

    program: Program
    predicted_s: float
    """Seconds by a replay."""
    routing: Routing
    name: str
    """Name of the routing and order."""
    finish: int
    """Time at which the schedule ends."""
    bound: int
    """Lower bound on the time of schedules with these routes."""
    apart: int
    """Finish time of the same schedule with chunks sent one by one."""
    together: int
    """Maximum number of chunks in a message."""
    seconds: float
    first: FirstStage

    @property
    def gap(self) -> float:
        """Relative gap: fraction of the finish that another schedule with the same routes may save."""
        return (self.finish - self.bound) / self.finish if self.finish else 0.0


def matchings(instance: RoutingInstance, seed: int = 0, *, time_limit_s: float = 10.0) -> list[Matching]:
    """Matched algorithms by both preferences and several seeds, fastest first; at least one, or `DeadlineReached`."""
    stop, found = work.spent_s() + time_limit_s, list[Matching]()
    for number in range(_MATCHINGS):
        if found and work.spent_s() > stop:
            break
        try:
            found.append(match(instance, seed + number // 2, first_come=number % 2 == 0))
        except DeadlineReached:
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
    first: FirstStage | None = None,
) -> Result:
    """Route, order and merge the chunks of an instance.

    Candidates are compared by simulated time; if links are occupied during latencies, which the simulation ignores,
    by the longer of simulated and scheduled time.

    Args:
        instance: Chunks on a logical topology; for a reducing collective, those of its mirror.
        problem: Problem that the program implements.
        time_limit_s: Time limit shared by the stages, in seconds; each returns its best result.
        seed: Seed of matchings and solver.
        heuristic: Ordering heuristic. Defaults to trying all.
        first: First stage of an equal instance with the same seed. Defaults to running it.

    Raises:
        PlanError: The sketch leaves targets unreachable.
        Late: The instance's deadline passed before there was a matching.
    """
    started = work.spent_s()
    if first is None:
        matched = matchings(instance, seed, time_limit_s=0.2 * time_limit_s)
        left_s = time_limit_s - (work.spent_s() - started)
        routing = route(instance, matched[0], time_limit_s=min(0.4 * time_limit_s, left_s), seed=seed)
        first = FirstStage(instance, matched, routing)
    _, matched, routing = first
    ways = dict(_ways(instance, matched, routing, 0.1 * time_limit_s, seed))
    left_s = time_limit_s - (work.spent_s() - started)
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
        seconds=work.spent_s() - started,
        first=first,
    )


def _replayed(
    problem: CollectiveProblem, instance: RoutingInstance, name: str, found: GroupedSchedule
) -> tuple[float, str, GroupedSchedule, Program]:
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
) -> Iterator[tuple[str, GroupedSchedule]]:
    """Schedules of all routings and orders one by one, then with chunks together for the best."""
    stop = work.spent_s() + time_limit_s
    enough = work.spent_s() + 0.5 * time_limit_s
    plain = list[tuple[GroupedSchedule, str, dict[Send, tuple[int, ...]], int]]()
    grouped = dict[tuple[Any, ...], GroupedSchedule]()
    for name, (trees, routed) in ways.items():
        for rule in _rules(name, heuristic):
            # Matchings have an order of their own.
            if (plain or heuristic is None) and work.spent_s() > enough:
                break
            places = order(instance, trees, routed, rule, upwards)
            # Rules often agree: on dgx-1v 22 of 31 orders differ. The same order is replayed once.
            key = tuple(places.items())
            known = grouped.get(key)
            found = known or group(instance, places, time_limit_s=0.0, maximum=1, upwards=upwards)
            grouped[key] = found
            plain.append((found, f"{name}, order {rule}", places, rule))
            if known is None:
                yield plain[-1][1], found
    if heuristic is None:
        for number, each in enumerate(matched):
            yield f"matching {number}", _as_matched(instance, each, upwards)
    plain.sort(key=lambda item: item[0].schedule.finish)
    for number, (_, name, places, rule) in enumerate(plain[:_FINALISTS]):
        left_s = (stop - work.spent_s()) / (_FINALISTS - number)
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


def _as_matched(instance: RoutingInstance, found: Matching, upwards: bool) -> GroupedSchedule:
    """The matching as it is, or from its end to its start."""
    messages = tuple(ChunkMessage((s, t), (c,)) for c, s, t in found.starts)
    starts = list(found.starts.values())
    if upwards:
        hops = instance.topology.hops
        starts = [found.finish - s - hops[m.pair].cost for s, m in zip(starts, messages, strict=True)]
    made = Schedule(messages, tuple(starts), found.finish, upwards)
    return GroupedSchedule(made, found.finish, least_finish(instance, list(found.starts)), 1)
