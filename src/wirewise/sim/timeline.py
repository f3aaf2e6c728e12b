"""Result of the simulator: activities of each rank over time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

__all__ = ["Span", "Timeline", "rank_classes"]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of one rank over a time span."""

    rank: int
    phase: str
    """Name of the phase: pack, wire, unpack, central or marginal."""
    exchange: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.end_s - self.start_s


def rank_classes(keys: Sequence[Hashable]) -> tuple[tuple[int, ...], ...]:
    """Classes of equivalent ranks, in the order of their first ranks.

    Args:
        keys: Key of each rank's activity, [ranks].
    """
    found: dict[Hashable, list[int]] = {}
    for rank, own in enumerate(keys):
        found.setdefault(own, []).append(rank)
    return tuple(map(tuple, found.values()))


class Timeline(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Spans of ranks, ordered by start within a rank; of equivalent ranks, only those of the first."""

    spans: tuple[Span, ...]
    """Spans of the first rank of each class."""
    world_size: int
    classes: tuple[tuple[int, ...], ...] = ()
    """Partition of the ranks into classes with equal spans; empty if each rank is a class."""
    source: str = "simulated"
    """"simulated", "emulated" or "measured"; reports print it with every figure."""

    @property
    def seconds(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.spans:
            return 0.0
        return max(s.end_s for s in self.spans) - min(s.start_s for s in self.spans)

    def phase_s(self, phase: str, rank: int | None = None) -> float:
        """Seconds in a phase, of one rank or averaged over ranks."""
        if rank is not None:
            return sum(s.seconds for s in self.of(rank) if s.phase == phase)
        found = sum(len(self._class_of[s.rank]) * s.seconds for s in self.spans if s.phase == phase)
        return found / max(self.world_size, 1)

    def of(self, rank: int) -> list[Span]:
        """Spans of one rank, by start."""
        first = self._class_of[rank][0]
        own = sorted(self._spans_of.get(first, ()), key=lambda s: (s.start_s, s.end_s))
        return own if first == rank else [replace(span, rank=rank) for span in own]

    @cached_property
    def all_classes(self) -> tuple[tuple[int, ...], ...]:
        """Classes of equivalent ranks, including those of a single rank."""
        return self.classes or tuple((rank,) for rank in range(self.world_size))

    @cached_property
    def _class_of(self) -> dict[int, tuple[int, ...]]:
        return {rank: own for own in self.all_classes for rank in own}

    @cached_property
    def _spans_of(self) -> dict[int, list[Span]]:
        found: dict[int, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.rank, []).append(span)
        return found
