"""The kernel's own counts of TCP connections: bytes that arrived, and the time with bytes in flight (Linux)."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["ConnectionCounts", "connection_counts", "own_connections"]

# Fields of `struct tcp_info` (linux/tcp.h), by their offsets.
_INFO_BYTES = 192
_ACKNOWLEDGED = struct.Struct("=120xQ")
_MIN_ROUND_TRIP = struct.Struct("=148xI")
_BUSY_AND_LIMITED = struct.Struct("=168xQQ")
_NO_ROUND_TRIP = 0xFFFFFFFF


class ConnectionCounts(NamedTuple):
    """Counts of one connection's sending side since it was opened; zeros where the kernel does not know."""

    acknowledged_bytes: int = 0
    busy_s: float = 0.0
    """Time with bytes in flight that were not acknowledged."""
    receiver_limited_s: float = 0.0
    """Part of `busy_s` in which the receiver had no room, as its program did not read."""
    round_trip_s: float = 0.0
    """Shortest round trip."""


def connection_counts(connection: socket.socket) -> ConnectionCounts:
    """Read the counts of a connection.

    Raises:
        OSError: It is not a TCP connection, or closed.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return ConnectionCounts()
    round_trip_us = _MIN_ROUND_TRIP.unpack_from(info)[0]
    busy_us, limited_us = _BUSY_AND_LIMITED.unpack_from(info)
    return ConnectionCounts(
        _ACKNOWLEDGED.unpack_from(info)[0],
        busy_us * 1e-6,
        limited_us * 1e-6,
        0.0 if round_trip_us == _NO_ROUND_TRIP else round_trip_us * 1e-6,
    )


def own_connections() -> Iterator[tuple[tuple[str, int, int], ConnectionCounts]]:
    """Counts of all IPv4 connections of this process, whichever library opened them.

    Yields:
        Peer's address, peer's port and own port, which stay those of one connection; and its counts.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        number = int(entry.name)
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            # A copy, as another thread may close its own meanwhile.
            copy = os.dup(number)
        except OSError:
            continue
        try:
            connection = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with connection:
            if connection.family != socket.AF_INET or connection.type != socket.SOCK_STREAM:
                continue
            try:
                address, port = connection.getpeername()
                yield (address, port, connection.getsockname()[1]), connection_counts(connection)
            except OSError:
                continue  # it listens, or is closed
