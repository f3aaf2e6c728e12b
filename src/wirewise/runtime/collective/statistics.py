"""What the transport saw on each edge: bytes, rates and who came late."""

from __future__ import annotations

import msgspec

__all__ = ["EdgeStatistics"]


class EdgeStatistics(msgspec.Struct, kw_only=True):
    """Counts of one direction between this rank and a peer, since the group was made."""

    source: int
    target: int
    messages: int = 0
    size_bytes: int = 0
    """Payload."""
    busy_s: float = 0.0
    """At the source: time with something to send. At the target: time from a message's header to its end."""
    late_s: float = 0.0
    """At the target: time that it could have taken messages in and they had not arrived, summed up."""
    latest_s: float = 0.0
    """The longest of these times."""

    @property
    def bytes_per_s(self) -> float:
        """Rate while busy; of an edge that was always filled, that of its link. 0: nothing was sent."""
        return self.size_bytes / self.busy_s if self.busy_s > 0 else 0.0
