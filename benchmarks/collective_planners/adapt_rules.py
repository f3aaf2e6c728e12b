"""The rules by which ranks of a tree pass segments on, driven by arrivals and completed sends, never by a wait for all.

X. Luo et al., "ADAPT: An Event-Based Adaptive Collective Communication Framework", HPDC 2018, section 3, as Open MPI's
coll/adapt carries them out. The rules are pure: from a state and an event come the next state and what to do, so a
simulator (`event_trees`) and a model checker (`interleavings`) follow the very same ones.

Segments are matched by their number, so they may arrive in any order. Two things about the published rules:

* Of a broadcast, the window of sends only binds the root: every other rank has passed on all that it received when
  the next segment arrives, so it always sends at once.
* Of a reduce, a rank may complete segments that its parent does not expect yet, and with its window full of those
  both wait for ever, where a send ends no earlier than its receive begins. `guarded` keeps back such segments; the
  model checker (`benchmarks/collective_planners/interleavings.py`) finds the deadlock without it and none with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

__all__ = [
    "Act",
    "Add",
    "Broadcast",
    "BroadcastState",
    "Post",
    "Reduce",
    "ReduceState",
    "Rules",
    "Send",
    "Windows",
]


class Post(NamedTuple):
    """Be ready for a segment from a rank."""

    peer: int
    segment: int


class Send(NamedTuple):
    """Send a segment to a rank."""

    peer: int
    segment: int


class Add(NamedTuple):
    """Add what a rank sent of a segment to the own sum."""

    peer: int
    segment: int


Act = Post | Send | Add


class Windows(NamedTuple):
    """How much may be under way at once; the defaults of Open MPI."""

    sends: int = 2
    """Segments under way to each child of the root of a broadcast, to the parent of a reduce."""
    receives: int = 3
    """Segments asked of the parent in a broadcast, of each child in a reduce; as many on all ranks."""


class Rules(Protocol):
    """What a rank does in one collective; a state belongs to the rules that made it."""

    def start(self) -> tuple[Any, list[Act]]:
        """State before any event, and what to do first."""
        ...

    def received(self, state: Any, peer: int, segment: int) -> tuple[Any, list[Act]]:
        """A segment has arrived for which `Post` was asked."""
        ...

    def sent(self, state: Any, peer: int, segment: int) -> tuple[Any, list[Act]]:
        """A send has ended."""
        ...

    def done(self, state: Any) -> bool:
        """Whether nothing is left to do."""
        ...


class BroadcastState(NamedTuple):
    """Progress of a rank in a broadcast."""

    order: tuple[int, ...]
    """Segments in the order of their arrival; a leaf, which passes nothing on, only counts them."""
    issued: tuple[int, ...]
    """How many of them were sent to each child, ended or not."""
    sent: int
    """Sends that have ended."""


class Broadcast(NamedTuple):
    """Rules of a broadcast for one rank: each child is served at its own pace."""

    parent: int | None
    """Rank above; none for the root."""
    children: tuple[int, ...]
    """Served in this order."""
    segments: int
    windows: Windows = Windows()

    def start(self) -> tuple[BroadcastState, list[Act]]:
        """The root sends what its window allows, in turns to its children; the others get ready to receive."""
        if self.parent is not None:
            posts = [Post(self.parent, s) for s in range(min(self.segments, self.windows.receives))]
            return BroadcastState((), (0,) * len(self.children), 0), [*posts]
        first = min(self.segments, self.windows.sends)
        sends = [Send(child, s) for s in range(first) for child in self.children]
        state = BroadcastState(tuple(range(self.segments)), (first,) * len(self.children), 0)
        return state, [*sends]

    def received(self, state: BroadcastState, peer: int, segment: int) -> tuple[BroadcastState, list[Act]]:
        """Get ready for one more segment, and pass this one on to the children that have all others."""
        count = len(state.order) + 1
        acts: list[Act] = []
        if count + self.windows.receives - 1 < self.segments:
            acts.append(Post(peer, count + self.windows.receives - 1))
        ready = [issued == count - 1 for issued in state.issued]
        acts += [
            Send(child, segment) for child, is_ready in zip(self.children, ready, strict=True) if is_ready
        ]
        issued = tuple(n + is_ready for n, is_ready in zip(state.issued, ready, strict=True))
        order = (*state.order, segment) if self.children else tuple(range(count))
        return BroadcastState(order, issued, state.sent), acts

    def sent(self, state: BroadcastState, peer: int, segment: int) -> tuple[BroadcastState, list[Act]]:
        """Send the child the next segment that it lacks."""
        place = self.children.index(peer)
        behind = state.issued[place]
        if behind >= len(state.order):
            return state._replace(sent=state.sent + 1), []
        issued = (*state.issued[:place], behind + 1, *state.issued[place + 1 :])
        return BroadcastState(state.order, issued, state.sent + 1), [Send(peer, state.order[behind])]

    def done(self, state: BroadcastState) -> bool:
        """Whether all has been received and all sends have ended."""
        return len(state.order) == self.segments and state.sent == self.segments * len(self.children)


class ReduceState(NamedTuple):
    """Progress of a rank in a reduce."""

    arrived: tuple[int, ...]
    """Children whose value of each segment has come, one bit each."""
    complete: tuple[int, ...]
    """Segments to which all children have added and that are not sent yet, in the order of their completion."""
    sending: int
    """Sends under way."""
    sent: int
    """Sends that have ended."""


class Reduce(NamedTuple):
    """Rules of a reduce for one rank: whatever segment is complete goes up, in any order."""

    parent: int | None
    """Rank above; none for the root."""
    children: tuple[int, ...]
    segments: int
    windows: Windows = Windows()
    guarded: bool = True
    """Whether to keep back segments that the parent may not be ready for."""
    deterministic: bool = False
    """Whether children are added in a fixed order, for sums that are equal to the last bit."""

    def start(self) -> tuple[ReduceState, list[Act]]:
        """Get ready for the first segments of each child; a leaf begins to send."""
        posts = [
            Post(child, s)
            for s in range(min(self.segments, self.windows.receives))
            for child in self.children
        ]
        complete = () if self.children else tuple(range(self.segments))
        state, sends = self._send(ReduceState((0,) * self.segments, complete, 0, 0))
        return state, [*posts, *sends]

    def received(self, state: ReduceState, peer: int, segment: int) -> tuple[ReduceState, list[Act]]:
        """Get ready for one more segment of the child, add this one, and send what is complete."""
        bit = 1 << self.children.index(peer)
        before = state.arrived[segment]
        arrived = (*state.arrived[:segment], before | bit, *state.arrived[segment + 1 :])
        count = sum(mask & bit > 0 for mask in arrived)
        acts: list[Act] = []
        if count + self.windows.receives - 1 < self.segments:
            acts.append(Post(peer, count + self.windows.receives - 1))
        acts += self._adds(before, before | bit, peer, segment)
        complete = state.complete
        if before | bit == (1 << len(self.children)) - 1 and self.parent is not None:
            complete = (*complete, segment)
        state, sends = self._send(ReduceState(arrived, complete, state.sending, state.sent))
        return state, [*acts, *sends]

    def sent(self, state: ReduceState, peer: int, segment: int) -> tuple[ReduceState, list[Act]]:
        """Send another complete segment."""
        state, sends = self._send(state._replace(sending=state.sending - 1, sent=state.sent + 1))
        return state, [*sends]

    def done(self, state: ReduceState) -> bool:
        """Whether all has been added and all sends have ended."""
        whole = (1 << len(self.children)) - 1
        own = 0 if self.parent is None else self.segments
        return state.sent == own and all(mask == whole for mask in state.arrived)

    def _send(self, state: ReduceState) -> tuple[ReduceState, list[Send]]:
        """Send as many complete segments as the window allows."""
        sends: list[Send] = []
        if self.parent is None:
            return state, sends
        while state.sending < self.windows.sends:
            expected = state.sent + self.windows.receives if self.guarded else self.segments
            segment = next((s for s in state.complete if s < expected), None)
            if segment is None:
                break
            left = tuple(s for s in state.complete if s != segment)
            state = state._replace(complete=left, sending=state.sending + 1)
            sends.append(Send(self.parent, segment))
        return state, sends

    def _adds(self, before: int, after: int, peer: int, segment: int) -> list[Add]:
        """The child that came, or in a fixed order all whose turn it is now."""
        if not self.deterministic:
            return [Add(peer, segment)]
        was, now = _leading(before), _leading(after)
        return [Add(child, segment) for child in self.children[was:now]]


def _leading(mask: int) -> int:
    """Number of ones before the first zero, from the lowest bit."""
    return (~mask & (mask + 1)).bit_length() - 1
