"""What the simulator returns: who does what from when to when."""

from __future__ import annotations

import msgspec

__all__ = ["Span", "Timeline"]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that one rank does."""

    rank: int
    phase: str
    """pack, wire, unpack, central or marginal."""
    exchange: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.end_s - self.start_s


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of all ranks, in order of start within a rank."""

    spans: tuple[Span, ...]
    world_size: int
    source: str = "simulated"
    """"simulated", "emulated" or "measured"; reports print it beside every figure."""

    @property
    def seconds(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.spans:
            return 0.0
        return max(s.end_s for s in self.spans) - min(s.start_s for s in self.spans)

    def phase_s(self, phase: str, rank: int | None = None) -> float:
        """Seconds in a phase: of one rank, or the mean over ranks."""
        chosen = [s.seconds for s in self.spans if s.phase == phase and rank in (None, s.rank)]
        return sum(chosen) / (1 if rank is not None else max(self.world_size, 1))

    def of(self, rank: int) -> list[Span]:
        """Spans of one rank by start."""
        return sorted((s for s in self.spans if s.rank == rank), key=lambda s: (s.start_s, s.end_s))
