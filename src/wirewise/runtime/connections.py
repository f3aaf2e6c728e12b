"""TCP connections between ranks: which ones that come to a port belong to the job, and their congestion control."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Generator

__all__ = ["admitted", "leave_bbr"]

_NAME_BYTES = 16
"""Room for the name of a congestion control."""
_MOST_WAITING = 1024
"""Connections that may wait for their hello at once; a flood of more is dropped, oldest first."""


def admitted(
    server: socket.socket, size: int, fits: Callable[[bytes], bool], deadline_s: float
) -> Generator[tuple[bytes, socket.socket]]:
    """Connections whose first `size` bytes fit, each with these bytes, as they come; others are closed.

    A stranger that connects and says nothing, or something else, delays nobody: all connections are heard at once.

    Args:
        server: Socket that listens.
        size: Bytes of a hello.
        fits: Whether a hello is one of this job that is still waited for.
        deadline_s: Time until which to wait, by `time.monotonic`.

    Raises:
        TimeoutError: The time is over.
    """
    heard: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ)
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                ready = selector.select(max(left_s, 0.0))
                if not ready and left_s <= 0:
                    raise TimeoutError("timed out")
                for key, _ in ready:
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    if connection is server:
                        _take(server, selector, heard)
                    elif connection in heard and _listen(connection, size, heard):
                        hello = heard.pop(connection)
                        selector.unregister(connection)
                        if len(hello) == size and fits(hello):
                            yield hello, connection
                        else:
                            connection.close()
        finally:
            for connection in heard:
                connection.close()


def _take(server: socket.socket, selector: selectors.BaseSelector, heard: dict[socket.socket, bytes]) -> None:
    try:
        connection, _ = server.accept()
    except OSError:
        return  # it went away again
    if len(heard) >= _MOST_WAITING:
        oldest = next(iter(heard))
        del heard[oldest]
        selector.unregister(oldest)
        oldest.close()
    connection.setblocking(False)
    heard[connection] = b""
    selector.register(connection, selectors.EVENT_READ)


def _listen(connection: socket.socket, size: int, heard: dict[socket.socket, bytes]) -> bool:
    """Hear more of a hello; whether nothing more is to come."""
    try:
        piece = connection.recv(size - len(heard[connection]))
    except BlockingIOError:
        return False
    except OSError:
        piece = b""
    heard[connection] += piece
    return not piece or len(heard[connection]) == size


def leave_bbr(connection: socket.socket) -> None:
    """Take cubic or reno where BBR is the kernel's default; without them BBR stays.

    BBR needs a second to learn a link's rate, and transfers are shorter, with pauses in between: measured on links of
    100 to 1600 Mbit/s, 16 MB a time, 200 to 230 ms with cubic and 220 to 380 ms with BBR. It also allows no more under
    way than fits the least round trip of the last ten seconds, and where bytes come in as fast as they go out,
    acknowledgements wait behind them: measured at 50 Mbit/s both ways, round trips grow from 0.1 to 50 ms and a lone
    flow gets 0.1 to 0.2 of the link for most of a second, all of it with cubic.
    """
    found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    if found.startswith(b"bbr"):
        for name in (b"cubic", b"reno"):
            with contextlib.suppress(OSError):  # It may be missing, or only for root.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
                return
