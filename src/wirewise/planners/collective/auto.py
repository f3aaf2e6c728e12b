"""Fastest program for a size: known algorithms and planners, each pipelined and simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.collective import ROOTED, Collective, Network, Program
from wirewise.collective.bounds import BoundPair, bound_pair
from wirewise.collective.builders import algorithms, build
from wirewise.collective.regular import REGULAR, RegularProgram, regular
from wirewise.errors import InputError, PlanError, ProgramError, TopologyError, WirewiseError
from wirewise.planners.collective.adapt import cluster_ranks, distances
from wirewise.planners.collective.combine import assign_ranks
from wirewise.planners.collective.deadline import Deadline
from wirewise.planners.collective.problem import CollectiveProblem, Proposal, proposal
from wirewise.planners.collective.segments import LEAST_BYTES, LEAST_TIME_S, messages_of, with_best_segments
from wirewise.plans import Candidate

__all__ = ["BUILTIN", "AlgorithmChoice", "choose", "near_order"]

BUILTIN: dict[Collective, str] = {
    "broadcast": "binomial",
    "reduce": "reduce_scatter_gather",
    "scatter": "flat",
    "gather": "flat",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_reduce": "ring",
    "all_to_all": "linear",
}
"""Algorithms of process groups (gloo's defaults), whatever the network; the candidate "builtin"."""
_NEAR_BOUND = 1.02
"""Where the best program is so near the bound, further planners are not asked; with many ranks, where nothing could
save the share of its time that was asked for."""
_NO_HANDLING_S, _GPU_HANDLING_S, _TCP_HANDLING_S = 1e-9, 2e-6, 1e-4
"""Processor time of a message that a network does not tell: of a kernel that waits for a flag; of a TCP message (4 MB
on h4-quarter: 768 messages of four ranks were 17 ms slower than simulated beside 176). Fewer messages win a tie."""
_ALIKE = 1e-9
"""Relative difference of programs that are equally quick."""
_MANY_RANKS = 64
"""Above it, only the quick planners are asked."""
_QUICK = ("adapt", "greedy")
"""Planners that end by themselves within seconds, asked before the others, with half of the time each: cut short, they
may be far from what they find alone."""
_FOR_HOSTS = ("hierarchical_bruck", "hierarchical")
"""Algorithms for hosts, the one of fewer messages first; tried before others among many ranks."""
_IN_WAVES = "host_ring"
"""Algorithm for few ranks that gains by waves, where PCIe is hardly wider than the network."""
_WAVES = (32, 64)
_MOST_MESSAGES = 40_000
"""Messages of a program in waves, above which it is not simulated: 31 thousand take a second."""
_MOST_VISITS = 20_000
"""Places that the search for a ring of near ranks visits."""


class AlgorithmChoice(NamedTuple):
    """Chosen program, with the reason."""

    program: Program
    candidates: tuple[Candidate, ...]
    """All simulated candidates, fastest first; `program` is as fast as the first, unless a gain was requested."""
    seconds: float
    """Simulated time of `program`."""
    bounds: BoundPair
    """Lower bounds on the time of any algorithm, and of any program."""
    notes: tuple[str, ...]
    """Reason for the choice, and planners without a program."""


class _Tried(NamedTuple):
    name: str
    program: Program | RegularProgram
    seconds: float


def choose(
    problem: CollectiveProblem,
    planners: Mapping[str, Callable[..., Program | Proposal]],
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    gain: float = 0.05,
) -> AlgorithmChoice:
    """Choose the program with the least simulated time among known algorithms and planners, preferring simple ones.

    Each known algorithm is tried with ranks in ascending order and in an order of near neighbours, and each program in
    the number of segments that suits it best.

    Args:
        problem: Collective to choose for.
        planners: Functions `(problem, *, time_limit_s, seed)` by name that return a program, optionally with notes;
            called in this order, fast ones first. A planner that fails is skipped with a note.
        time_limit_s: Total work, in seconds of an unloaded CPU (`wirewise.work`); a fast planner gets half of the
            rest, the others equal parts.
        seed: Seed of the planners.
        gain: Minimum saving, as a fraction of the time, over the process group's own algorithm, "builtin". Among
            programs within it, the fastest is chosen with the CPU cost of messages included, if the network does not
            define that.

    Raises:
        InputError: The gain is not in [0, 1).
        PlanError: No program was found.
    """
    if not 0 <= gain < 1:
        raise InputError(f"gain is {gain}; expected a share of a program's time from 0 to below 1")
    clock = Deadline(time_limit_s)
    least = bound_pair(
        problem.network,
        problem.collective,
        problem.size_bytes,
        root=problem.root,
        members=problem.members,
    )
    few = len(problem.group) <= _MANY_RANKS
    near = _NEAR_BOUND if few else 1 / (1 - gain)
    search = _Search(problem, clock, [], few, least.programs.seconds, near)
    tried = list(search.known())
    tried += search.asked(planners, seed, min((t.seconds for t in tried), default=inf))
    return _chosen(problem, sorted(tried, key=lambda t: t.seconds), least, gain, search.notes)


class _Search(NamedTuple):
    """Candidates for a problem, with notes on those that have no program."""

    problem: CollectiveProblem
    clock: Deadline
    notes: list[str]
    few: bool
    """Whether there are so few ranks that all is tried."""
    least_s: float
    near: float
    """Times the bound that a program takes which is near enough to it."""

    def asked(
        self,
        planners: Mapping[str, Callable[..., Program | Proposal]],
        seed: int,
        best_s: float,
    ) -> Iterator[_Tried]:
        """Programs of planners, until time is up or the best is near the bound."""
        ordered = sorted(planners, key=lambda name: name not in _QUICK)
        asked = [name for name in ordered if self.few or name in _QUICK]
        for number, name in enumerate(asked):
            left_s = self.clock.left_s
            # A quick one finds something, however late it is.
            late = left_s <= 0 and (best_s < inf or name not in _QUICK)
            if late or best_s <= self.near * self.least_s:
                self._left_out("asked", late, asked[number:])
                return
            share = max(left_s, 0.0) / (2 if name in _QUICK else len(asked) - number)
            found = self._tried(name, partial(planners[name], self.problem, time_limit_s=share, seed=seed))
            if found:
                best_s = min(best_s, found.seconds)
                yield found

    def known(self) -> Iterator[_Tried]:
        """Algorithms of process groups, then those of `collective.builders` in both orders of ranks.

        With many ranks those for hosts come next, and the others are not tried once one is near the bound.
        """
        problem = self.problem
        builtin = BUILTIN[problem.collective]
        ascending = tuple(range(len(problem.group)))
        distance = distances(problem.network)
        near = near_order(distance, problem.group)
        hosts = _known_hosts(problem) or _hosts(
            problem, cluster_ranks(distance, problem.group, most_levels=2)
        )
        orders = {"": ascending} | ({"near ranks": near} if near != ascending else {})
        wanted = [("builtin", builtin, ascending)] + [
            (f"{name}, {label}" if label else name, name, order)
            for name in algorithms(problem.collective)
            for label, order in orders.items()
            if (name, order) != (builtin, ascending) and name != _IN_WAVES
        ]
        if not self.few:
            wanted[1:] = sorted(wanted[1:], key=lambda one: (*_FOR_HOSTS, one[1]).index(one[1]))
        best_s = inf
        for number, (label, name, order) in enumerate(wanted):
            late = best_s < inf and self.clock.left_s < 0
            if late or (not self.few and best_s <= self.near * self.least_s):
                self._left_out("tried", late, [one[0] for one in wanted[number:]])
                return
            found = self._by_rule(label, name, order, hosts) or self._tried(
                label, partial(_built, problem, name, order, hosts)
            )
            if found:
                best_s = min(best_s, found.seconds)
                yield found
        if self.few and hosts and _IN_WAVES in algorithms(problem.collective):
            yield from self._in_waves(ascending, hosts)

    def _in_waves(self, order: tuple[int, ...], hosts: list[list[int]]) -> Iterator[_Tried]:
        """The ring of each host joined to the others, in segments and in waves of parts that are large enough."""
        problem = self.problem
        hops = len(order) ** 2 * (2 if problem.collective == "all_reduce" else 1)
        block_bytes = problem.size_bytes / len(order)
        for waves in (1, *_WAVES):
            if waves > 1 and (block_bytes < waves * LEAST_BYTES or hops * waves > _MOST_MESSAGES):
                return
            label = _IN_WAVES if waves == 1 else f"{_IN_WAVES}, {waves} waves"
            found = self._tried(label, partial(_built, problem, _IN_WAVES, order, hosts, waves))
            if found:
                yield found

    def _left_out(self, what: str, late: bool, names: list[str]) -> None:
        near = f"the best is within {self.near - 1:.0%} of the bound"
        why = "the time limit was reached" if late else near
        self.notes.append(f"not {what}, as {why}: {', '.join(names)}")

    def _by_rule(
        self, label: str, name: str, order: tuple[int, ...], hosts: list[list[int]]
    ) -> _Tried | None:
        """Algorithm tried by its rule, on classes of links, where hosts are alike and there are many ranks."""
        problem, size = self.problem, len(hosts[0]) if hosts else 0
        alike = hosts == [list(range(first, first + size)) for first in range(0, len(order), size or 1)]
        if self.few or not alike or order != tuple(range(problem.network.ranks)):
            return None
        if (problem.collective, name) not in REGULAR:
            return None
        try:
            rule = regular(problem.collective, name, len(order), period=size)
            program, seconds = with_best_segments(
                rule,
                problem.network,
                problem.size_bytes,
                time_limit_s=max(self.clock.left_s, LEAST_TIME_S),
            )
        except (ProgramError, TopologyError):
            # Hosts that differ, or share a link: only simulating all ranks tells.
            return None
        return _Tried(label, program.changed(name=label), seconds)

    def _tried(self, name: str, make: Callable[[], Program | Proposal]) -> _Tried | None:
        problem = self.problem
        try:
            made, own_notes, _ = proposal(make())
            left_s = max(self.clock.left_s, LEAST_TIME_S)
            program, seconds = with_best_segments(
                made, problem.network, problem.size_bytes, time_limit_s=left_s
            )
        except WirewiseError as error:
            self.notes.append(f"{name}: {error}")
            return None
        except Exception as error:  # One planner's defect must not take the programs of the others away.
            self.notes.append(
                f"{name}: failed by a defect of its own ({type(error).__name__}: {error}); please report it"
            )
            return None
        self.notes.extend(f"{name}: {note}" for note in own_notes)
        return _Tried(name, msgspec.structs.replace(program, name=name), seconds)


def _known_hosts(problem: CollectiveProblem) -> list[list[int]]:
    """Places of the group by the hosts that the network tells; none where each host, or all, is one."""
    found: dict[int, list[int]] = {}
    for place, rank in enumerate(problem.group):
        if problem.network.host_of_rank:
            found.setdefault(problem.network.host_of_rank[rank], []).append(place)
    return list(found.values()) if 1 < len(found) < len(problem.group) else []


def _hosts(problem: CollectiveProblem, groups: tuple[Any, ...]) -> list[list[int]]:
    """Groups of near ranks as places of the group; one group of all: none."""
    place = {rank: number for number, rank in enumerate(problem.group)}
    if all(isinstance(part, int) for part in groups):
        return []
    return [[place[r] for r in ([part] if isinstance(part, int) else part)] for part in groups]


def _built(
    problem: CollectiveProblem, name: str, order: tuple[int, ...], hosts: list[list[int]], waves: int = 1
) -> Program:
    place = {member: number for number, member in enumerate(order)}
    root = place[problem.group.index(problem.root)] if problem.collective in ROOTED else 0
    own = [[place[member] for member in host] for host in hosts] if name in (*_FOR_HOSTS, _IN_WAVES) else None
    made = build(problem.collective, name, len(order), root=root, hosts=own, waves=waves)
    return assign_ranks(made, order, problem)


def _chosen(
    problem: CollectiveProblem, tried: list[_Tried], least: BoundPair, gain: float, notes: list[str]
) -> AlgorithmChoice:
    if not tried:
        raise PlanError(
            f"nothing has a program for {problem.collective} on {problem.network.name!r}: {'; '.join(notes)}"
        )
    quickest_s = tried[0].seconds
    alike = [t for t in tried if (1 - gain) * t.seconds <= (1 + _ALIKE) * quickest_s]
    builtin = next((t for t in tried if t.name == "builtin"), None)
    handling_s = _handling_s(problem.network)
    best = min(
        alike,
        key=lambda t: t.seconds + handling_s * messages_of(t.program) * t.program.segments / t.program.ranks,
    )
    if builtin is not None and builtin in alike:
        best = builtin
    if builtin is None:
        why = f"{best.name} takes {best.seconds:.3g} s; builtin has no routes here"
    elif best is not builtin:
        why = f"{best.name} takes {best.seconds:.3g} s, {builtin.seconds / best.seconds:.2f} times as fast as builtin"
    elif gain:
        why = f"builtin takes {best.seconds:.3g} s, {tried[0].name} {quickest_s:.3g} s: no gain of {gain:.0%}"
    else:
        why = f"builtin takes {best.seconds:.3g} s, and nothing less"
    if least.network.seconds > 0:
        why += f"; {best.seconds / least.network.seconds:.3f} of the bound"
    if least.routes is not None:
        why += f", {best.seconds / least.routes.seconds:.3f} of that of the routes"
    candidates = tuple(
        Candidate(name=t.name, predicted_s=t.seconds, segments=t.program.segments) for t in tried
    )
    chosen = best.program.expand() if isinstance(best.program, RegularProgram) else best.program
    return AlgorithmChoice(chosen, candidates, best.seconds, least, (why, *notes))


def _handling_s(network: Network) -> float:
    """Processor time of a message at a rank, which the simulation of the network does not count."""
    if network.message_s:
        return _NO_HANDLING_S
    return _TCP_HANDLING_S if network.shares else _GPU_HANDLING_S


def near_order(distance: NDArray[np.float64], group: Sequence[int]) -> tuple[int, ...]:
    """Ring order of the group with the shortest longest hop that a bounded search finds.

    Args:
        distance: Message time from rank to rank, in seconds, [ranks, ranks]; infinite if there is no path.
        group: Ranks of the group.

    Returns:
        Permutation of the group ranks, 0 first; ascending if no ring was found.
    """
    places = range(len(group))
    own = distance[np.ix_(group, group)]
    levels = np.unique(own[np.isfinite(own) & ~np.eye(len(group), dtype=np.bool_)])
    low, high, best = 0, len(levels) - 1, (ascending := tuple(places))
    longest_s = own[ascending, np.roll(ascending, -1)].max()
    while low <= high:
        middle = (low + high) // 2
        found = ascending if longest_s <= levels[middle] else _ring(own, float(levels[middle]))
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle - 1
    return best


def _ring(own: NDArray[np.float64], longest_s: float) -> tuple[int, ...] | None:
    """A ring over all places without longer hops: depth first, the place with the fewest ways on first."""
    count = len(own)
    onward = [[t for t in range(count) if t != s and own[s, t] <= longest_s] for s in range(count)]
    path, used, visits = [0], {0}, 0
    options = [_by_freedom(onward, 0, used)]
    while options and visits < _MOST_VISITS:
        visits += 1
        if len(path) == count and 0 in onward[path[-1]]:
            return tuple(path)
        if options[-1]:
            here = options[-1].pop()
            path.append(here)
            used.add(here)
            options.append(_by_freedom(onward, here, used))
        else:
            options.pop()
            used.discard(path.pop())
    return None


def _by_freedom(onward: Sequence[Sequence[int]], here: int, used: set[int]) -> list[int]:
    """Places that can follow, the last one first: the one with the fewest ways on, then the lowest."""
    free = [t for t in onward[here] if t not in used]
    return sorted(free, key=lambda t: (-sum(n not in used for n in onward[t]), -t))
