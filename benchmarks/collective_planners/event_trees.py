"""Trees of segments under noise: event-driven ranks against ranks that wait for all; every figure is simulated.

X. Luo et al., "ADAPT", HPDC 2018, section 5; noise after P. Beckman et al., "Benchmarking the effects of operating
system interference on extreme-scale parallel machines", 2008: each rank is interrupted ten times a second for a
random while, in which it starts nothing, though what is on the wire goes on. A message starts once it is sent, its
target is ready, and both ports are free; it holds both for its bytes. A rank takes one event at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from benchmarks.collective_planners.adapt_rules import Act, Broadcast, Post, Reduce, Rules, Send, Windows

from wirewise.errors import InputError

__all__ = ["Noise", "Tree", "WaitForAll", "binomial", "chain", "mean_s", "rules_of"]

_AHEAD = 2
"""Receives posted ahead for each peer, as Open MPI's generic trees do."""


class WaitState(NamedTuple):
    """Progress of a rank."""

    came: tuple[int, ...]
    """Segments that each source has sent."""
    passed: int
    """Segments passed on to all, ended."""
    pending: int
    """Sends under way."""


class WaitForAll(NamedTuple):
    """A segment goes to all targets at once, and only when all these sends have ended the next one goes."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    segments: int

    def start(self) -> tuple[WaitState, list[Act]]:
        """Get ready for the first segments; a rank without sources sends its first one."""
        posts = [Post(peer, s) for s in range(min(_AHEAD, self.segments)) for peer in self.sources]
        state, acts = self._pass_on(WaitState((0,) * len(self.sources), 0, 0))
        return state, [*posts, *acts]

    def received(self, state: WaitState, peer: int, segment: int) -> tuple[WaitState, list[Act]]:
        """Pass the segment on if it is its turn."""
        place = self.sources.index(peer)
        came = (*state.came[:place], state.came[place] + 1, *state.came[place + 1 :])
        return self._pass_on(state._replace(came=came))

    def sent(self, state: WaitState, peer: int, segment: int) -> tuple[WaitState, list[Act]]:
        """Start the next segment once the last send of this one has ended."""
        state = state._replace(pending=state.pending - 1)
        if state.pending:
            return state, []
        state, posts = self._passed(state)
        state, acts = self._pass_on(state)
        return state, [*posts, *acts]

    def done(self, state: WaitState) -> bool:
        """Whether all segments are passed on."""
        return state.passed == self.segments

    def _passed(self, state: WaitState) -> tuple[WaitState, list[Act]]:
        ahead = state.passed + _AHEAD
        posts = [Post(peer, ahead) for peer in self.sources] if ahead < self.segments else []
        return state._replace(passed=state.passed + 1), [*posts]

    def _pass_on(self, state: WaitState) -> tuple[WaitState, list[Act]]:
        acts: list[Act] = []
        while not state.pending and state.passed < min(state.came, default=self.segments):
            if self.targets:
                acts += [Send(peer, state.passed) for peer in self.targets]
                state = state._replace(pending=len(self.targets))
            else:
                state, posts = self._passed(state)
                acts += posts
        return state, acts


class Noise(NamedTuple):
    """Interruptions of each rank, which has its own phase."""

    longest_s: float
    """Each lasts between 0 and this, uniformly."""
    rate_hz: float = 10.0
    seed: int = 0


class Tree(NamedTuple):
    """Parents of ranks, and children in the order in which they are served."""

    parents: tuple[int | None, ...]
    children: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(parents: Sequence[int | None]) -> Tree:
        """Children are served in ascending order."""
        ranks = range(len(parents))
        return Tree(tuple(parents), tuple(tuple(c for c in ranks if parents[c] == r) for r in ranks))


def binomial(ranks: int) -> Tree:
    """A tree in rank order: the parent of a rank lacks its lowest bit; the largest subtree is served first."""
    tree = Tree.of([None, *(r & (r - 1) for r in range(1, ranks))])
    return Tree(tree.parents, tuple(c[::-1] for c in tree.children))


def chain(ranks: int) -> Tree:
    """Each rank passes on to the next."""
    return Tree.of([None, *range(ranks - 1)])


def rules_of(
    tree: Tree,
    collective: Literal["broadcast", "reduce"],
    segments: int,
    *,
    windows: Windows | None = None,
    synchronous: bool = False,
) -> list[Rules]:
    """The rules of each rank of a tree; `synchronous`: those that wait for all sends of a segment."""
    found: list[Rules] = []
    for parent, children in zip(tree.parents, tree.children, strict=True):
        up = () if parent is None else (parent,)
        if synchronous:
            sources, targets = (up, children) if collective == "broadcast" else (children, up)
            found.append(WaitForAll(sources, targets, segments))
        elif collective == "broadcast":
            found.append(Broadcast(parent, children, segments, windows or Windows()))
        else:
            found.append(Reduce(parent, children, segments, windows or Windows()))
    return found


def mean_s(
    rules: Sequence[Rules],
    rounds: int,
    *,
    segment_bytes: float = 65536.0,
    bandwidth_bytes_per_s: float = 1.25e9,
    latency_s: float = 2e-6,
    event_s: float = 1e-6,
    noise: Noise | None = None,
) -> float:
    """Mean seconds of a collective where ranks take `rounds` of them one after the other, without a barrier.

    Args:
        rules: Rules of each rank.
        rounds: Number of collectives.
        segment_bytes: Bytes of each message.
        bandwidth_bytes_per_s: Rate of each rank's port, each way.
        latency_s: Seconds of a message beside its bytes.
        event_s: A rank is busy for this with each event.
        noise: Interruptions; None: none.

    Raises:
        InputError: Interruptions that may last longer than the time between two of them.
    """
    if noise is not None and noise.longest_s * noise.rate_hz > 1:
        raise InputError(
            f"got interruptions of up to {noise.longest_s:g} s at {noise.rate_hz:g} Hz; expected shorter ones, as "
            "only one at a time interrupts a rank"
        )
    run = _Run(rules, rounds, segment_bytes / bandwidth_bytes_per_s, latency_s, event_s, noise)
    return run.finish_s() / rounds


_TICKS = 8192
"""Lengths of interruptions drawn for each rank; they repeat afterwards."""


class _Clock:
    """When a rank gets to do things."""

    def __init__(self, rank: int, event_s: float, noise: Noise | None) -> None:
        self.event_s, self.free_s, self.noise = event_s, 0.0, noise
        if noise is not None:
            random = np.random.default_rng([noise.seed, rank])
            self.phase_s = float(random.random() / noise.rate_hz)
            self.lengths = random.uniform(0, noise.longest_s, _TICKS).tolist()

    def take(self, now: float) -> float:
        """The rank is told of something now: when it has dealt with it."""
        start = max(now, self.free_s)
        if self.noise is not None and start >= self.phase_s:
            tick = int((start - self.phase_s) * self.noise.rate_hz)
            begin = self.phase_s + tick / self.noise.rate_hz
            start = max(start, begin + self.lengths[tick % _TICKS])
        self.free_s = start + self.event_s
        return self.free_s


class _Message(NamedTuple):
    round: int
    source: int
    target: int
    segment: int


_PORTS, _TOLD, _ARRIVED, _SENT = range(4)
"""Kinds of events: ports come free; both ends are told; the target, then the source deals with it."""


@dataclass
class _Rank:
    clock: _Clock
    state: Any = None
    round: int = -1
    queue: list[_Message] = field(default_factory=list)
    """Matched messages that this rank is to send, the first first."""
    feeders: set[int] = field(default_factory=set)
    """Ranks that have had a message for this one."""
    sends: bool = False
    receives: bool = False


class _Run:
    def __init__(
        self,
        rules: Sequence[Rules],
        rounds: int,
        hold_s: float,
        latency_s: float,
        event_s: float,
        noise: Noise | None,
    ) -> None:
        self.rules, self.rounds, self.hold_s, self.latency_s = rules, rounds, hold_s, latency_s
        self.ranks = [_Rank(_Clock(rank, event_s, noise)) for rank in range(len(rules))]
        self.events: list[tuple[float, int, int, _Message]] = []
        self.count = 0
        self.half_matched: set[_Message] = set()

    def finish_s(self) -> float:
        """When the last rank has ended its last round."""
        for number in range(len(self.ranks)):
            self._begin(0.0, number)
        while self.events:
            now, _, kind, message = heapq.heappop(self.events)
            if kind == _PORTS:
                self._free_ports(now, message)
            elif kind == _TOLD:
                self._at(self.ranks[message.target].clock.take(now), _ARRIVED, message)
                self._at(self.ranks[message.source].clock.take(now), _SENT, message)
            else:
                self._deal(now, message, arrived=kind == _ARRIVED)
        return max(rank.clock.free_s for rank in self.ranks)

    def _at(self, time_s: float, kind: int, message: _Message) -> None:
        self.count += 1
        heapq.heappush(self.events, (time_s, self.count, kind, message))

    def _begin(self, now: float, number: int) -> None:
        rank = self.ranks[number]
        rank.round += 1
        if rank.round < self.rounds:
            rank.state, acts = self.rules[number].start()
            self._carry_out(now, number, acts)

    def _deal(self, now: float, message: _Message, *, arrived: bool) -> None:
        number, peer = (message.target, message.source) if arrived else (message.source, message.target)
        rank, rule = self.ranks[number], self.rules[number]
        step = rule.received if arrived else rule.sent
        rank.state, acts = step(rank.state, peer, message.segment)
        self._carry_out(now, number, acts)
        if rule.done(rank.state):
            self._begin(now, number)

    def _carry_out(self, now: float, number: int, acts: Sequence[Act]) -> None:
        """A message is matched when its source has sent it and its target is ready, in either order."""
        now_round = self.ranks[number].round
        for act in acts:
            if isinstance(act, Send):
                self._match(now, _Message(now_round, number, act.peer, act.segment))
            elif isinstance(act, Post):
                self._match(now, _Message(now_round, act.peer, number, act.segment))

    def _match(self, now: float, message: _Message) -> None:
        if message in self.half_matched:
            self.half_matched.remove(message)
            self.ranks[message.source].queue.append(message)
            self.ranks[message.target].feeders.add(message.source)
            self._start(now, message.source)
        else:
            self.half_matched.add(message)

    def _start(self, now: float, number: int) -> None:
        """The first message in the queue of the rank whose target can receive now."""
        rank = self.ranks[number]
        if rank.sends:
            return
        for place, message in enumerate(rank.queue):
            target = self.ranks[message.target]
            if not target.receives:
                del rank.queue[place]
                rank.sends = target.receives = True
                self._at(now + self.hold_s, _PORTS, message)
                self._at(now + self.hold_s + self.latency_s, _TOLD, message)
                return

    def _free_ports(self, now: float, message: _Message) -> None:
        self.ranks[message.source].sends = self.ranks[message.target].receives = False
        self._start(now, message.source)
        for feeder in sorted(self.ranks[message.target].feeders):
            self._start(now, feeder)
