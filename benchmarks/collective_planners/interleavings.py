"""All orders in which the events of a small tree can happen, to prove that its rules always end, each send once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from benchmarks.collective_planners.adapt_rules import Act, Add, Post, Rules, Send

__all__ = ["Explored", "explore"]

_World = tuple[tuple[int, ...], int, int, int, int]
"""Number of each rank's state; then one bit a message: the target is ready for it, its send has begun, it has arrived,
its source knows that the send has ended."""


class Explored(NamedTuple):
    """What was found."""

    states: int
    faults: tuple[str, ...]
    """First fault of each kind; empty where the rules are right in every order."""


class _Effect(NamedTuple):
    """What an event does to a rank; of messages one bit each."""

    state: int
    posts: int
    sends: int
    adds: int
    faults: tuple[str, ...]


def explore(
    rules: Sequence[Rules],
    flow: Literal["down", "up"],
    segments: int,
    *,
    rendezvous: bool = True,
    most_states: int = 2_000_000,
) -> Explored:
    """Visit every state that any order of arrivals and ends of sends can lead to.

    Args:
        rules: Rules of each rank; each has a `parent` and `children`.
        flow: "down": a rank sends what came from its parent; "up": what came from all its children.
        segments: Segments in all.
        rendezvous: Whether a send ends only after its receive; else it may end at any time after it began.
        most_states: States to visit at most; reaching it is a fault.

    Returns:
        Number of states; faults: a message sent twice or before its source has it, a receive posted twice, an add of
        what has not arrived, an end with ranks that are not done.
    """
    checker = _Checker(rules, flow, segments, rendezvous)
    first = checker.begin()
    seen, open_ = {first}, [first]
    while open_ and len(seen) <= most_states:
        world = open_.pop()
        moves = list(checker.moves(world))
        if not moves:
            checker.check_end(world)
        for later in moves:
            if later not in seen:
                seen.add(later)
                open_.append(later)
    if open_:
        checker.fault("size", f"more than {most_states} states; use fewer ranks or segments")
    return Explored(len(seen), tuple(checker.faults.values()))


class _Checker:
    """Rank states are numbered and what events do to them is kept, so that a move is a few operations on bits."""

    def __init__(self, rules: Sequence[Any], flow: str, segments: int, rendezvous: bool) -> None:
        self.rules, self.rendezvous = rules, rendezvous
        self.faults: dict[str, str] = {}
        self.states: list[Any] = []
        self.numbers: dict[tuple[int, Any], int] = {}
        self.effects: dict[tuple[int, int, bool], _Effect] = {}
        edges = [(p, r) for r, rule in enumerate(rules) if (p := rule.parent) is not None]
        ends = edges if flow == "down" else [edge[::-1] for edge in edges]
        self.messages = [(source, target, s) for source, target in ends for s in range(segments)]
        self.bits = {message: 1 << place for place, message in enumerate(self.messages)}
        self.needed = [
            sum(self.bits[s, t, n] for s, t, n in self.messages if t == source and n == segment)
            for source, _, segment in self.messages
        ]

    def begin(self) -> _World:
        world: _World = ((0,) * len(self.rules), 0, 0, 0, 0)
        for rank, rule in enumerate(self.rules):
            world = self._apply(world, rank, self._effect(rank, *rule.start()))
        return world

    def moves(self, world: _World) -> Iterator[_World]:
        """Worlds that one event leads to."""
        states, posted, sent, arrived, told = world
        arrivals = sent & ~arrived & posted
        ends = sent & ~told & (arrived if self.rendezvous else sent)
        for place, (source, target, _) in enumerate(self.messages):
            bit = 1 << place
            if arrivals & bit:
                moved = (states, posted & ~bit, sent, arrived | bit, told)
                yield self._apply(moved, target, self._event(place, states[target], True))
            if ends & bit:
                moved = (states, posted, sent, arrived, told | bit)
                yield self._apply(moved, source, self._event(place, states[source], False))

    def check_end(self, world: _World) -> None:
        states, _, sent, arrived, _ = world
        waiting = [r for r, rule in enumerate(self.rules) if not rule.done(self.states[states[r]])]
        if waiting:
            under_way = [m for m in self.messages if self.bits[m] & sent & ~arrived]
            stuck = "; ".join(f"segment {n} from {s} to {t}" for s, t, n in under_way) or "none"
            self.fault("deadlock", f"ranks {', '.join(map(str, waiting))} wait for ever; under way: {stuck}")

    def fault(self, kind: str, message: str) -> None:
        self.faults.setdefault(kind, f"{kind}: {message}")

    def _event(self, place: int, state: int, arrives: bool) -> _Effect:
        known = self.effects.get((place, state, arrives))
        if known is None:
            source, target, segment = self.messages[place]
            rank, peer = (target, source) if arrives else (source, target)
            rule = self.rules[rank]
            after, acts = (rule.received if arrives else rule.sent)(self.states[state], peer, segment)
            known = self.effects[place, state, arrives] = self._effect(rank, after, acts)
        return known

    def _effect(self, rank: int, state: Any, acts: Sequence[Act]) -> _Effect:
        masks, faults = {Post: 0, Send: 0, Add: 0}, []
        for act in acts:
            ends = (rank, act.peer) if isinstance(act, Send) else (act.peer, rank)
            bit = self.bits.get((*ends, act.segment), 0)
            if masks[type(act)] & bit or not bit:
                faults.append(f"rank {rank} does {act} twice at once, or it has no place in the tree")
            masks[type(act)] |= bit
        number = self.numbers.setdefault((rank, state), len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return _Effect(number, masks[Post], masks[Send], masks[Add], tuple(faults))

    def _apply(self, world: _World, rank: int, effect: _Effect) -> _World:
        states, posted, sent, arrived, told = world
        if effect.posts & (posted | arrived):
            self._tell("posted twice", effect.posts & (posted | arrived))
        if effect.sends & sent:
            self._tell("sent twice", effect.sends & sent)
        if effect.adds & ~arrived:
            self._tell("added early", effect.adds & ~arrived)
        if effect.sends:
            for place, needed in enumerate(self.needed):
                if effect.sends >> place & 1 and needed & ~arrived:
                    self._tell("sent early", 1 << place)
        for fault in effect.faults:
            self.fault("act", fault)
        after = (*states[:rank], effect.state, *states[rank + 1 :])
        return after, posted | effect.posts, sent | effect.sends, arrived, told

    def _tell(self, kind: str, bits: int) -> None:
        source, target, segment = self.messages[bits.bit_length() - 1]
        self.fault(kind, f"segment {segment} from rank {source} to rank {target}")
