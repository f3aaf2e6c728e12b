"""Full mesh of TCP connections between ranks; addresses are exchanged by a torch store."""

from __future__ import annotations

import datetime
import os
import secrets
import selectors
import socket
import struct
import time
from contextlib import suppress
from typing import Any

from wirewise.errors import InputError, PeerError
from wirewise.hosts.interfaces import address_of_interface, address_towards

__all__ = ["interface_address", "join", "leave_bbr"]

_HELLO = struct.Struct("<I16s")
"""Rank of who connects, and the key that the other end put into the store: strangers know none."""
_PATIENCE_S = 0.05
_NAME_BYTES = 16
"""Room for the name of a congestion control."""
_MOST_WAITING = 1024
"""Connections that may wait for their hello at once; a flood of more is dropped, oldest first."""


def join(
    store: Any,
    rank: int,
    size: int,
    *,
    timeout_s: float,
    interface: str | None = None,
    windows: tuple[int, int] | None = None,
) -> dict[int, socket.socket]:
    """Connect this rank with all others.

    Args:
        store: Torch store used only by this group, such as a `PrefixStore`.
        rank: Rank of this process.
        size: Number of ranks.
        timeout_s: Seconds to wait for the others to join.
        interface: Network interface. Defaults to that of GLOO_SOCKET_IFNAME, or the route to MASTER_ADDR.
        windows: Socket buffer sizes in bytes at the sender and at the receiver. Defaults to the kernel's autotuning.

    Returns:
        A socket for each peer, non-blocking.

    Raises:
        PeerError: A rank did not join; the message names it.
        InputError: The interface does not exist or has no IPv4 address.
    """
    if size == 1:
        return {}
    deadline = time.monotonic() + timeout_s
    address = interface_address(interface)
    found: dict[int, socket.socket] = {}
    try:
        with socket.create_server((address, 0), backlog=size) as server:
            key = secrets.token_bytes(16)
            store.set(f"address-{rank}", f"{address}:{server.getsockname()[1]}:{key.hex()}")
            for peer in range(rank):
                found[peer] = _reach(store, rank, peer, deadline)
            _accept(server, rank, size, key, found, deadline)
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    for connection in found.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        leave_bbr(connection)
        for option, size_bytes in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), windows or (), strict=False):
            # The kernel doubles the number, for its own records of the bytes.
            connection.setsockopt(socket.SOL_SOCKET, option, size_bytes // 2)
        connection.setblocking(False)
    return found


def interface_address(interface: str | None = None) -> str:
    """IPv4 address by which peers reach this process; arguments and errors as in `join`."""
    name = interface or os.environ.get("GLOO_SOCKET_IFNAME")
    try:
        if not name:
            return address_towards(os.environ.get("MASTER_ADDR", "127.0.0.1"))
        return address_of_interface(name)
    except OSError as error:
        if not name:
            return "127.0.0.1"
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise InputError(
            f"network interface {name!r} has no IPv4 address ({error.strerror}); set GLOO_SOCKET_IFNAME to "
            f"one of {names}"
        ) from error


def _reach(store: Any, rank: int, peer: int, deadline: float) -> socket.socket:
    key = f"address-{peer}"
    try:
        store.wait([key], datetime.timedelta(seconds=max(deadline - time.monotonic(), _PATIENCE_S)))
        host, port, other = store.get(key).decode().rsplit(":", 2)
        left_s = max(deadline - time.monotonic(), _PATIENCE_S)
        connection = socket.create_connection((host, int(port)), timeout=left_s)
        connection.sendall(_HELLO.pack(rank, bytes.fromhex(other)))
    except (OSError, RuntimeError) as error:
        raise _absent(rank, [peer], str(error)) from error
    return connection


def _accept(
    server: socket.socket,
    rank: int,
    size: int,
    key: bytes,
    found: dict[int, socket.socket],
    deadline_s: float,
) -> None:
    """Add the connections of all ranks above this one to `found`; whoever is none of them is sent away.

    A stranger that connects and says nothing, or something else, delays nobody: all connections are heard at once.
    """
    absent = set(range(rank + 1, size))
    deadline_s = max(deadline_s, time.monotonic() + _PATIENCE_S)
    heard: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ)
        try:
            while absent:
                left_s = deadline_s - time.monotonic()
                ready = selector.select(max(left_s, 0.0))
                if not ready and left_s <= 0:
                    raise _absent(rank, sorted(absent), "timed out")
                for event, _ in ready:
                    connection = event.fileobj
                    assert isinstance(connection, socket.socket)
                    if connection is server:
                        _take(server, selector, heard)
                    elif connection in heard and _listen(connection, heard):
                        hello = heard.pop(connection)
                        selector.unregister(connection)
                        peer = _peer(hello, key)
                        if peer in absent:
                            found[peer] = connection
                            absent.remove(peer)
                        else:
                            connection.close()
        finally:
            for connection in heard:
                connection.close()


def _peer(hello: bytes, key: bytes) -> int | None:
    """Rank that says hello; None for a stranger."""
    if len(hello) != _HELLO.size:
        return None
    peer, given = _HELLO.unpack(hello)
    return peer if secrets.compare_digest(given, key) else None


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


def _listen(connection: socket.socket, heard: dict[socket.socket, bytes]) -> bool:
    """Hear more of a hello; whether nothing more is to come."""
    try:
        piece = connection.recv(_HELLO.size - len(heard[connection]))
    except BlockingIOError:
        return False
    except OSError:
        piece = b""
    heard[connection] += piece
    return not piece or len(heard[connection]) == _HELLO.size


def leave_bbr(connection: socket.socket) -> None:
    """Switch a connection from BBR, if it is the kernel's default, to cubic or reno, if available.

    BBR needs a second to learn a link's rate, and transfers are shorter, with pauses in between: measured on links of
    100 to 1600 Mbit/s, 16 MB a time, 200 to 230 ms with cubic and 220 to 380 ms with BBR. It also limits bytes in
    flight by the minimum round trip of the last ten seconds, and with traffic in both directions acknowledgements
    queue behind data: measured at 50 Mbit/s both ways, round trips grow from 0.1 to 50 ms and a single flow gets 0.1
    to 0.2 of the link for most of a second, all of it with cubic.
    """
    found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    if found.startswith(b"bbr"):
        for name in (b"cubic", b"reno"):
            with suppress(OSError):  # It may be missing, or only for root.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
                return


def _absent(rank: int, peers: list[int], cause: str) -> PeerError:
    names = ", ".join(map(str, peers))
    return PeerError(
        f"rank {rank} waited for a connection with rank {names}, which did not appear; look at the log of that "
        f"rank, and let all ranks call `connect` in the same order. [{cause.splitlines()[0][:160] if cause else ''}]"
    )
