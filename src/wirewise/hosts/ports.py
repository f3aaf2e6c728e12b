"""TCP ports of this host."""

from __future__ import annotations

import socket

__all__ = ["free_port", "listen"]

_BACKLOG = 1024


def free_port(address: str = "") -> int:
    """Find a port that is free now; another process may take it before the caller does.

    Args:
        address: Address of this host at which the port is free. Defaults to all.
    """
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


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
