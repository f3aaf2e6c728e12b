"""Start times of messages: as early as chunks, links and ports allow, in a given priority order.

A schedule is converted to a program whose steps keep the order of use of ports and links.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wirewise.collective import Program, Transfer
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.collective.taccl.instance import RoutingInstance, Send
from wirewise.planners.collective.taccl.logical import Logical, Pair

__all__ = ["ChunkMessage", "Clocks", "Schedule", "justify", "place", "program", "schedule"]


class ChunkMessage(NamedTuple):
    """Chunks sent together from one rank to another."""

    pair: Pair
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Messages and their start times."""

    messages: tuple[ChunkMessage, ...]
    starts: tuple[int, ...]
    finish: int
    upwards: bool = False
    """Whether chunks are summed up the trees, each message against the direction of its pair."""

    @property
    def together(self) -> int:
        """Maximum number of chunks in a message."""
        return max((len(m.chunks) for m in self.messages), default=0)


class Clocks:
    """Times from which each parallel link and port is free."""

    def __init__(self, topology: Logical) -> None:
        self._top = topology
        self._links = {pair: [0] * hop.links for pair, hop in topology.hops.items()}
        self._ports = [[0] * port.links for port in topology.ports]

    def free(self, pair: Pair) -> int:
        """Earliest time at which the pair could send a message."""
        ports = self._top.ports_of[pair]
        return (
            max(self._links[pair][0], *(self._ports[p][0] for p in ports)) if ports else self._links[pair][0]
        )

    def take(self, pair: Pair, start: int, chunks: int = 1) -> int:
        """Occupy the pair's link and ports from `start` on; returns the arrival time."""
        heapq.heapreplace(self._links[pair], start + self._top.occupies(pair, chunks))
        for number in self._top.ports_of[pair]:
            heapq.heapreplace(self._ports[number], start + chunks * self._top.ports[number].cost)
        return start + self._top.hops[pair].time(chunks)


def schedule(
    instance: RoutingInstance,
    messages: Sequence[ChunkMessage],
    priorities: Sequence[object],
    upwards: bool = False,
) -> Schedule:
    """Schedule messages by priority, the smallest first among those that are ready.

    Args:
        instance: Chunks and topology.
        messages: Sends of trees, some merged.
        priorities: Priority of each message, comparable. Equal priorities are scheduled together, to preserve symmetry.
        upwards: Whether a message waits for those that leave its target, rather than for the one into its source.
    """
    before = _before(messages, upwards)
    kinds = [instance.kind(m.pair, m.chunks) for m in messages]
    starts, finish = place(instance.topology, messages, before, list(zip(priorities, kinds, strict=True)))
    return Schedule(tuple(messages), tuple(starts), finish, upwards)


def place(
    top: Logical,
    messages: Sequence[ChunkMessage],
    before: Sequence[Sequence[int]],
    priorities: Sequence[object],
) -> tuple[list[int], int]:
    """Schedule the messages; returns their start times and the last arrival. Arguments as in `schedule`."""
    clocks, starts, ready = Clocks(top), [0] * len(messages), [0] * len(messages)
    left, after = [len(set(b)) for b in before], defaultdict[int, list[int]](list)
    for number, earlier in enumerate(before):
        for other in set(earlier):
            after[other].append(number)
    open_ = [(priorities[n], n) for n, count in enumerate(left) if count == 0]
    heapq.heapify(open_)  # type: ignore[arg-type]
    finish = 0
    while open_:
        _, number = heapq.heappop(open_)  # type: ignore[type-var]
        pair, chunks = messages[number]
        starts[number] = max(ready[number], clocks.free(pair))
        end = clocks.take(pair, starts[number], len(chunks))
        finish = max(finish, end)
        for other in after[number]:
            ready[other] = max(ready[other], end)
            left[other] -= 1
            if left[other] == 0:
                heapq.heappush(open_, (priorities[other], other))  # type: ignore[misc]
    return starts, finish


def justify(instance: RoutingInstance, timed: Schedule, rounds: int = 2) -> Schedule:
    """Shift a schedule to its end and back to its start, which closes gaps; returns the best of the rounds.

    Forward and backward improvement (Li and Willis, 1992): messages are scheduled backwards in the order of their
    ends, then forwards in the resulting order.
    """
    best = timed
    top, messages = instance.topology, timed.messages
    forth, back = _before(messages, timed.upwards), _before(messages, not timed.upwards)
    kinds = [instance.kind(m.pair, m.chunks) for m in messages]
    takes = [top.hops[m.pair].time(len(m.chunks)) for m in messages]
    for _ in range(rounds):
        latest = [(-s - t, k) for s, t, k in zip(timed.starts, takes, kinds, strict=True)]
        late, _ = place(top, messages, back, latest)
        earliest = [(-s - t, k) for s, t, k in zip(late, takes, kinds, strict=True)]
        starts, finish = place(top, messages, forth, earliest)
        timed = Schedule(messages, tuple(starts), finish, timed.upwards)
        if finish >= best.finish:
            break
        best = timed
    return best


def _before(messages: Sequence[ChunkMessage], upwards: bool) -> list[list[int]]:
    """Messages that each one waits for."""
    into = {Send(c, *m.pair)[::2]: n for n, m in enumerate(messages) for c in m.chunks}
    before: list[list[int]] = [[] for _ in messages]
    for number, (pair, chunks) in enumerate(messages):
        for chunk in chunks:
            parent = into.get((chunk, pair[0]))
            if parent is None:
                continue
            if upwards:
                before[parent].append(number)
            else:
                before[number].append(parent)
    return before


def program(instance: RoutingInstance, timed: Schedule, problem: CollectiveProblem) -> Program:
    """Build the program of a schedule.

    Messages are assigned to steps in the order of their starts. A step ends before a message that depends on it, that
    is between two ranks with a message in it already, or that uses a port or link a second time; steps therefore keep
    the schedule's order on each port and link.

    Args:
        instance: Chunks and topology of the schedule.
        timed: The schedule. Reductions go up its trees, against the direction of its pairs.
        problem: Problem that the program implements.
    """
    steps, transfers, sums = _Steps(instance), [], timed.upwards
    kinds = [instance.kind(m.pair, m.chunks) for m in timed.messages]
    for _, _, message in sorted(zip(timed.starts, kinds, timed.messages, strict=True)):
        step = steps.of(message, sums)
        s, t = message.pair[::-1] if sums else message.pair
        transfers += [Transfer(chunk, s, t, step, sums) for chunk in message.chunks]
    return problem.program("taccl", len(instance.demands), transfers)


class _Steps:
    """The step that each message enters."""

    def __init__(self, instance: RoutingInstance) -> None:
        self._top, self._step = instance.topology, 0
        self._written: set[tuple[int, int]] = set()
        self._used: set[object] = set()

    def of(self, message: ChunkMessage, upwards: bool) -> int:
        """The current step, or a new one."""
        source, target = message.pair[::-1] if upwards else message.pair
        reads = {(source, chunk) for chunk in message.chunks}
        writes = {(target, chunk) for chunk in message.chunks}
        uses: set[object] = {message.pair, *self._top.ports_of[message.pair]}
        if (reads | writes) & self._written or uses & self._used:
            self._step += 1
            self._written, self._used = set(), set()
        self._written |= writes
        self._used |= uses
        return self._step
