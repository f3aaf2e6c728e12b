"""Stage 1 of TACCL: routes of chunks, by an integer program that ignores the order on links.

TACCL (NSDI 2023), section 5.1 and appendix B. Differences that make it fast: one column per orbit of symmetric
variables, no variables for send times, big-M constants from a matched algorithm, and the bound of `cuts` as a lower
bound of the time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from wirewise import work
from wirewise.errors import PlanError
from wirewise.planners.collective.deadline import Deadline, DeadlineReached
from wirewise.planners.collective.taccl.cuts import lower_bound
from wirewise.planners.collective.taccl.greedy import Matching, prune_trees
from wirewise.planners.collective.taccl.instance import RoutingInstance, Send, Tree
from wirewise.planners.collective.taccl.logical import Pair
from wirewise.planners.collective.taccl.milp import Model, Solution

__all__ = ["Routing", "arrivals", "preferred", "relaxed_time", "route", "sends_of"]

_GAP = 0.55
_STATED_S = 2e-5
"""Work of stating the rows of a send."""
"""Times and numbers of connections are integers, and what is added to tell equal ones apart is less than 0.4."""


class Routing(NamedTuple):
    """Routes of all chunks."""

    trees: tuple[Tree, ...]
    time: int
    """Objective: the time of the busiest link or port, or of the longest route, if that is longer."""
    bound: int
    """Lower bound of the objective."""
    seconds: float
    size: tuple[int, int] = (0, 0)
    """Columns and rows of the program. None if the cut proved the matching optimal."""

    @property
    def gap(self) -> float:
        """Relative gap: fraction of the time that an optimal routing may save."""
        return (self.time - self.bound) / self.time if self.time else 0.0


def sends_of(trees: tuple[Tree, ...]) -> list[Send]:
    """All sends of the trees."""
    return [Send(c, s, t) for c, tree in enumerate(trees) for t, s in tree.items()]


def arrivals(instance: RoutingInstance, trees: tuple[Tree, ...]) -> list[dict[int, int]]:
    """Arrival time of each chunk at each rank on idle links, by chunk and rank."""
    found = []
    for demand, tree in zip(instance.demands, trees, strict=True):
        times = {demand.origin: 0}
        for target in tree:
            way = [target]
            while way[-1] not in times:
                way.append(tree[way[-1]])
            for s, t in zip(way[::-1], way[-2::-1], strict=False):
                times[t] = times[s] + instance.topology.hops[s, t].cost
        found.append(times)
    return found


def relaxed_time(instance: RoutingInstance, trees: tuple[Tree, ...]) -> int:
    """Objective of stage 1: the busiest link or port, the longest path, or a rank's fan-out of a chunk."""
    top, sends = instance.topology, sends_of(trees)
    links, ports = defaultdict[Pair, int](int), defaultdict[int, int](int)
    fans = defaultdict[tuple[int, int, int], int](int)
    times = arrivals(instance, trees)
    for c, s, t in sends:
        links[s, t] += top.occupies((s, t))
        for number in top.ports_of[s, t]:
            ports[number] += top.ports[number].cost
            if _leaves(instance, number, s):
                fans[number, c, s] += top.ports[number].cost
    return max(
        [
            0,
            *(max(found.values()) for found in times),
            *(-(-load // top.hops[pair].links) for pair, load in links.items()),
            *(-(-load // top.ports[number].links) for number, load in ports.items()),
            *(times[c][s] + fan for (number, c, s), fan in fans.items() if top.ports[number].links == 1),
        ]
    )


def route(
    instance: RoutingInstance,
    matched: Matching,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    warm: bool = True,
) -> Routing:
    """Route chunks to minimise the time of the busiest link and of the longest path.

    Exponential in the worst case.

    Args:
        instance: Chunks and topology.
        matched: Initial algorithm, whose time bounds the constants.
        time_limit_s: Time limit in seconds, after which the best routing is returned with its gap.
        seed: Seed of the solver's random choices.
        warm: Whether to warm-start the solver with `matched`, and to skip it if a cut proves that optimal.

    Raises:
        PlanError: Without `warm`, the solver found no solution within the limit.
    """
    started, deadline = work.spent_s(), Deadline(time_limit_s)
    bound, most = lower_bound(instance, deadline), relaxed_time(instance, matched.trees)
    best = Routing(matched.trees, most, bound, 0.0)
    program = _stated(instance, bound, most, deadline) if most > bound or not warm else None
    if program is not None:
        found = program.solve(deadline.left_s, seed, matched.trees if warm else None)
        if found is None and not warm:
            raise PlanError(
                f"{instance.topology.name}: HiGHS found no routing within {time_limit_s:.0f} s; raise the limit or "
                "begin with a matching"
            )
        trees, dual = found or (matched.trees, bound)
        made = relaxed_time(instance, trees)
        best = Routing(trees, made, max(bound, min(made, dual)), 0.0, program.model.size)
    return best._replace(seconds=work.spent_s() - started)


def preferred(
    instance: RoutingInstance, routing: Routing, *, time_limit_s: float = 10.0, seed: int = 0
) -> Routing:
    """Find a routing of the same time with the sketch's preferred connections and short paths.

    The paper prices connections in the same objective, at 0.01 time units. Arguments as in `route`.
    """
    started, deadline = work.spent_s(), Deadline(time_limit_s)
    program = _stated(instance, routing.bound, routing.time, deadline)
    if program is None:
        return routing
    program.prefer()
    made = program.solve(deadline.left_s, seed, routing.trees)
    trees = routing.trees if made is None else made[0]
    return routing._replace(trees=trees, seconds=work.spent_s() - started, size=program.model.size)


def _stated(instance: RoutingInstance, bound: int, maximum: int, deadline: Deadline) -> _Program | None:
    """The program; None if it is so large that time ends before it is written down."""
    try:
        return _Program(instance, bound, maximum, deadline)
    except DeadlineReached:
        return None


def _leaves(instance: RoutingInstance, port: int, rank: int) -> bool:
    """Whether all pairs of a port leave the rank."""
    return all(s == rank for s, _ in instance.topology.ports[port].pairs)


@dataclass
class _Program:
    """The integer program.

    Columns: the time; for each orbit of (chunk, source, target) whether it is sent; for each orbit of (chunk, rank)
    when it is there.
    """

    instance: RoutingInstance
    bound: int
    most: int
    deadline: Deadline

    def __post_init__(self) -> None:
        self.model = Model()
        self._time = self.model.column(self.bound, self.most, price=1.0)
        keys = [Send(c, *pair) for c, pairs in enumerate(self.instance.allowed) for pair in sorted(pairs)]
        self._sent_orbit = self.instance.orbits(keys, "crr")
        self._sent = {
            rep: self.model.column(0, 1, integer=True) for rep in sorted(set(self._sent_orbit.values()))
        }
        cells = sorted({(c, r) for c, s, t in keys for r in (s, t)})
        self._there_orbit = self.instance.orbits(cells, "cr")
        self._there = {rep: self._moment(*rep) for rep in sorted(set(self._there_orbit.values()))}
        self._into: dict[tuple[int, int], list[Send]] = defaultdict(list)
        self._out: dict[tuple[int, int], list[Send]] = defaultdict(list)
        for send in keys:
            self._into[send.chunk, send.target].append(send)
            self._out[send.chunk, send.source].append(send)
        for cell in self._there:
            self.deadline.check(_STATED_S)
            self._arrives(*cell)
        for send in self._sent:
            self.deadline.check(_STATED_S)
            self._follows(send)
        self._loads(keys)

    def _moment(self, chunk: int, rank: int) -> int:
        demand = self.instance.demands[chunk]
        if rank == demand.origin:
            return self.model.column(0, 0)
        if rank not in demand.targets:
            return self.model.column(0, self.most)
        return self.model.column(self.instance.distances[chunk][demand.origin, rank], self.most)

    def _x(self, send: Send) -> int:
        return self._sent[self._sent_orbit[send]]

    def _at(self, chunk: int, rank: int) -> int:
        return self._there[self._there_orbit[chunk, rank]]

    def _sum(self, sends: list[Send], weight: float = 1.0) -> dict[int, float]:
        terms = defaultdict[int, float](float)
        for send in sends:
            terms[self._x(send)] += weight
        return terms

    def _arrives(self, chunk: int, rank: int) -> None:
        """A target gets a chunk once, another rank at most once; nothing is there after the end."""
        demand = self.instance.demands[chunk]
        if rank == demand.origin:
            return
        wanted = rank in demand.targets
        self.model.row(self._sum(self._into[chunk, rank]), 1.0 if wanted else 0.0, 1.0)
        self.model.row({self._time: 1.0, self._at(chunk, rank): -1.0}, 0.0)
        if not wanted:
            # A relay passes on only what it got.
            for send in self._out[chunk, rank]:
                terms = self._sum(self._into[chunk, rank])
                terms[self._x(send)] -= 1.0
                self.model.row(terms, 0.0)

    def _follows(self, send: Send) -> None:
        """A chunk arrives after it was at its source, and the time of the link later."""
        chunk, source, target = send
        cost = self.instance.topology.hops[source, target].cost
        # No arrival is later than `most`, so with this constant a chunk that is not sent binds nothing.
        slack = self.most + cost
        here, there = self._at(chunk, source), self._at(chunk, target)
        # Symmetry made one moment of both: a chunk that arrives when it leaves cannot be sent.
        if here == there:
            self.model.limit(self._x(send), 0.0)
            return
        self.model.row({there: 1.0, here: -1.0, self._x(send): -float(slack)}, float(cost - slack))

    def _loads(self, keys: list[Send]) -> None:
        """The time is at least that of each link, of each port, and of a rank's fan-out of each chunk."""
        top = self.instance.topology
        links, ports = defaultdict[Pair, list[Send]](list), defaultdict[int, list[Send]](list)
        fans = defaultdict[tuple[int, int, int], list[Send]](list)
        for send in keys:
            links[send.source, send.target].append(send)
            for number in top.ports_of[send.source, send.target]:
                ports[number].append(send)
                if _leaves(self.instance, number, send.source) and top.ports[number].links == 1:
                    fans[number, send.chunk, send.source].append(send)
        for pair, sends in links.items():
            terms = self._sum(sends, -float(top.occupies(pair)))
            self.model.row({**terms, self._time: float(top.hops[pair].links)}, 0.0)
        for number, sends in ports.items():
            terms = self._sum(sends, -float(top.ports[number].cost))
            self.model.row({**terms, self._time: float(top.ports[number].links)}, 0.0)
        for (number, chunk, source), sends in fans.items():
            terms = self._sum(sends, -float(top.ports[number].cost))
            here = self._at(chunk, source)
            if (
                source == self.instance.demands[chunk].origin
                or source in self.instance.demands[chunk].targets
            ):
                self.model.row({**terms, self._time: 1.0, here: -1.0}, 0.0)

    def prefer(self) -> None:
        """Keep the time as it is; minimise what the sketch prices on the first host, then the longest way."""
        top = self.instance.topology
        self.model.price(self._time, 0.0)
        self.model.limit(self._time, float(self.most))
        longest = self.model.column(0, self.most, price=0.4 / self.most)
        for (chunk, rank), column in self._there.items():
            if rank in self.instance.demands[chunk].targets:
                self.model.row({longest: 1.0, column: -1.0}, 0.0)
        by_pair = defaultdict[Pair, list[Send]](list)
        for send in self._sent_orbit:
            if not top.hops[send[1:]].remote and top.node(send.source) == 0:
                by_pair[send[1:]].append(send)
        if top.connections:
            self._price_connections(list(by_pair.values()), float(top.connections))
        if top.spread:
            extreme = self.model.column(0, self.most, price=float(top.spread))
            for pair, sends in by_pair.items():
                terms = self._sum(sends, -float(top.spread * top.occupies(pair)))
                self.model.row({**terms, extreme: float(top.spread)}, 0.0)

    def _price_connections(self, groups: list[list[Send]], price: float) -> None:
        for sends in groups:
            used = self.model.column(0, 1, integer=True, price=price)
            terms = self._sum(sends)
            if price < 0:
                self.model.row({**terms, used: -1.0}, 0.0)
                continue
            for x in terms:
                self.model.row({used: 1.0, x: -1.0}, 0.0)

    def solve(
        self, time_limit_s: float, seed: int, start: tuple[Tree, ...] | None
    ) -> tuple[tuple[Tree, ...], int] | None:
        """Trees and lower bound; None if nothing was found."""
        # From a matching, or by it alone where the cut proves it best: 0.15 s in place of 2.12 (dgx2-sk-1, 2 chunks).
        given = self._columns(start) if start is not None else None
        solution = self.model.solve(time_limit_s, seed=seed, start=given, gap=_GAP)
        if solution is None:
            return None
        # Times are integers: a bound between two of them holds for the larger one.
        dual = math.ceil(solution.bound - 1e-6) if math.isfinite(solution.bound) else self.bound
        return self._trees(solution), dual

    def _columns(self, trees: tuple[Tree, ...]) -> list[float]:
        """Columns of a routing."""
        values = [0.0] * self.model.size[0]
        values[self._time] = float(relaxed_time(self.instance, trees))
        for send in sends_of(trees):
            values[self._x(send)] = 1.0
        for chunk, times in enumerate(arrivals(self.instance, trees)):
            for rank, moment in times.items():
                if rank != self.instance.demands[chunk].origin:
                    values[self._at(chunk, rank)] = float(moment)
        return values

    def _trees(self, solution: Solution) -> tuple[Tree, ...]:
        trees: list[Tree] = [{} for _ in self.instance.demands]
        for send in self._sent_orbit:
            if solution.values[self._x(send)] > 0.5:
                trees[send.chunk][send.target] = send.source
        return prune_trees(self.instance, trees)
