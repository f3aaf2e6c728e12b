"""TCP ports of this host."""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

__all__ = ["free_port", "listen"]

_BACKLOG = 1024
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST, _FEWEST, _TRIES = 20_000, 1000, 100
"""Least port to choose; ports that must lie between it and the kernel's own; ports to try."""


def free_port(address: str = "") -> int:
    """Find a port that is free now; another process may take it before the caller does.

    The port is random and below the range from which the kernel gives ports to connections and listeners: a job starts
    seconds after its port was chosen, and the kernel would give that one to somebody else meanwhile.

    Args:
        address: Address of this host at which the port is free. Defaults to all.
    """
    for _ in range(_TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, _random_port()))
            return int(probe.getsockname()[1])
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _random_port() -> int:
    """A port that the kernel gives to nobody; 0 if there are few of those."""
    try:
        end = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return _LEAST + secrets.randbelow(end - _LEAST) if end - _LEAST >= _FEWEST else 0


def listen(address: str, port: int = 0) -> socket.socket:
    """Open a listening socket on one address of this host only.

    Args:
        address: Name or address of this host; "" for all.
        port: Port. Defaults to any free one.

    Raises:
        OSError: The address is not of this host, or the port is in use.
    """
    if address:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    else:
        family, place = socket.AF_INET, ("0.0.0.0", port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As torch's own store does: a job that is started again finds connections of the last one in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
