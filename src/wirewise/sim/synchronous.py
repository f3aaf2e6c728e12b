"""Segment-synchronous rules of a tree: what event-driven ones are compared with."""

from __future__ import annotations

from typing import NamedTuple

from wirewise.collective.adapt import Act, Post, Send

__all__ = ["WaitForAll", "WaitState"]

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
        """With the last send of a segment the next one's turn comes."""
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
