"""When messages run: each as early as its chunks, its link and its ports allow, in a given order of preference."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wirewise.planners.collective.taccl.clocks import Clocks
from wirewise.planners.collective.taccl.instance import Instance, Send
from wirewise.planners.collective.taccl.logical import Logical, Pair

__all__ = ["Message", "Schedule", "justified", "place", "schedule"]


class Message(NamedTuple):
    """Chunks that go from one rank to another together."""

    pair: Pair
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Messages and when they start."""

    messages: tuple[Message, ...]
    starts: tuple[int, ...]
    finish: int
    upwards: bool = False
    """Whether chunks are summed up the trees, each message against the direction of its pair."""

    @property
    def together(self) -> int:
        """Most chunks of a message."""
        return max((len(m.chunks) for m in self.messages), default=0)


def schedule(
    instance: Instance, messages: Sequence[Message], wishes: Sequence[object], upwards: bool = False
) -> Schedule:
    """Place messages by their wishes, the smallest first where several could go.

    Args:
        instance: Chunks and topology.
        messages: The sends of trees, some together.
        wishes: Wishes of each message, comparable. Equal ones are placed symmetric ones together, as symmetry asks.
        upwards: Whether a message waits for those that leave its target, instead of for the one into its source.
    """
    before = _before(messages, upwards)
    kinds = [instance.kind(m.pair, m.chunks) for m in messages]
    starts, finish = place(instance.topology, messages, before, list(zip(wishes, kinds, strict=True)))
    return Schedule(tuple(messages), tuple(starts), finish, upwards)


def place(
    top: Logical, messages: Sequence[Message], before: Sequence[Sequence[int]], wishes: Sequence[object]
) -> tuple[list[int], int]:
    """Starts of the messages, and when the last one has arrived; arguments as in `schedule`."""
    clocks, starts, ready = Clocks(top), [0] * len(messages), [0] * len(messages)
    left, after = [len(set(b)) for b in before], defaultdict[int, list[int]](list)
    for number, earlier in enumerate(before):
        for other in set(earlier):
            after[other].append(number)
    open_ = [(wishes[n], n) for n, count in enumerate(left) if count == 0]
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
                heapq.heappush(open_, (wishes[other], other))  # type: ignore[misc]
    return starts, finish


def justified(instance: Instance, found: Schedule, rounds: int = 2) -> Schedule:
    """The schedule pushed to its end and back to its start, which closes gaps; the best of the rounds.

    Forward and backward improvement (Li and Willis, 1992): messages are placed from the end in the order of their
    ends, then from the start in the order that this gives.
    """
    best = found
    top, messages = instance.topology, found.messages
    forth, back = _before(messages, found.upwards), _before(messages, not found.upwards)
    kinds = [instance.kind(m.pair, m.chunks) for m in messages]
    takes = [top.hops[m.pair].time(len(m.chunks)) for m in messages]
    for _ in range(rounds):
        latest = [(-s - t, k) for s, t, k in zip(found.starts, takes, kinds, strict=True)]
        late, _ = place(top, messages, back, latest)
        earliest = [(-s - t, k) for s, t, k in zip(late, takes, kinds, strict=True)]
        starts, finish = place(top, messages, forth, earliest)
        found = Schedule(messages, tuple(starts), finish, found.upwards)
        if finish >= best.finish:
            break
        best = found
    return best


def _before(messages: Sequence[Message], upwards: bool) -> list[list[int]]:
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
