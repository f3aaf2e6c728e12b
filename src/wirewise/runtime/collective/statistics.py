"""What the transport and the kernel saw on each edge: bytes, rates and who came late."""

from __future__ import annotations

import socket
import struct

import msgspec

__all__ = ["EdgeStatistics", "of_kernel"]

# Fields of the kernel's `struct tcp_info` (linux/tcp.h): its length, the least round trip and the time busy sending.
_INFO_BYTES = 192
_MIN_ROUND_TRIP = struct.Struct("=148xI")
_BUSY = struct.Struct("=168xQ")
_NO_ROUND_TRIP = 0xFFFFFFFF


class EdgeStatistics(msgspec.Struct, kw_only=True):
    """Counts of one direction between this rank and a peer, since the group was made."""

    source: int
    target: int
    messages: int = 0
    size_bytes: int = 0
    """Payload."""
    busy_s: float = 0.0
    """At the source: time in which the kernel had bytes under way that were not acknowledged."""
    round_trip_s: float = 0.0
    """At the source: the shortest that the kernel saw."""
    late_s: float = 0.0
    """At the target: time that it could have taken messages in and they had not arrived, summed up."""
    latest_s: float = 0.0
    """The longest of these times."""

    @property
    def bytes_per_s(self) -> float:
        """Rate while busy, at the source; of many bytes it is what the link carries. 0: nothing was sent."""
        return self.size_bytes / self.busy_s if self.busy_s > 0 else 0.0


def of_kernel(connection: socket.socket) -> tuple[float, float]:
    """Seconds busy sending and the shortest round trip of a connection; zeros where the kernel does not tell."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return 0.0, 0.0
    round_trip_us, busy_us = _MIN_ROUND_TRIP.unpack_from(info)[0], _BUSY.unpack_from(info)[0]
    return busy_us * 1e-6, 0.0 if round_trip_us == _NO_ROUND_TRIP else round_trip_us * 1e-6
