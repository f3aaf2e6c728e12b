"""Connections among the hosts of a job: two to each other host, one for flows and one for words."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from types import TracebackType
from typing import Self

import msgspec

from wirewise.errors import PeerError
from wirewise.runtime.connections import admitted, leave_bbr

__all__ = ["FLOWS", "WORDS", "Connections", "meet"]

FLOWS, WORDS = 0, 1
_HELLO = struct.Struct("!ii32s")
"""Number of the host, purpose, and the key of the job."""
_LENGTH = struct.Struct("!Q")
_LONGEST_BYTES = 256 << 20
"""Most bytes of a message; what hosts gather are times of ops, a few megabytes."""


class Connections:
    """All connections of one host.

    Args:
        rank: Number of this host.
        centre: Connections between host 0 and each other, by host; a host other than 0 has only that to host 0.
        out: Connections to send on, by host and purpose.
        into: Connections to receive from, by host and purpose.
        timeout_s: Most seconds of a wait for another host.
    """

    def __init__(
        self,
        rank: int,
        centre: dict[int, socket.socket],
        out: dict[tuple[int, int], socket.socket],
        into: dict[tuple[int, int], socket.socket],
        timeout_s: float,
    ) -> None:
        self.rank, self.centre, self.out, self.into, self.timeout_s = rank, centre, out, into, timeout_s

    def gather(self, message: bytes) -> list[bytes]:
        """Bring a message of each host to host 0, in the order of hosts; the others get an empty list.

        Returns when all hosts have called it.

        Raises:
            PeerError: A host is gone or silent.
        """
        if self.rank:
            self._send(0, message)
            self._receive(0)
            return []
        found = [message, *(self._receive(host) for host in sorted(self.centre))]
        for host in self.centre:
            self._send(host, b"")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in (*self.centre.values(), *self.out.values(), *self.into.values()):
            connection.close()

    def _send(self, host: int, message: bytes) -> None:
        try:
            self.centre[host].sendall(_LENGTH.pack(len(message)) + message)
        except OSError as error:
            raise PeerError(_gone(host, self.timeout_s, error)) from error

    def _receive(self, host: int) -> bytes:
        try:
            (length,) = _LENGTH.unpack(_exactly(self.centre[host], _LENGTH.size))
            if length > _LONGEST_BYTES:
                raise OSError(f"it announced {length} bytes; expected at most {_LONGEST_BYTES}")
            return _exactly(self.centre[host], length)
        except OSError as error:
            raise PeerError(_gone(host, self.timeout_s, error)) from error


def meet(rank: int, world_size: int, address: str, port: int, *, timeout_s: float = 60.0) -> Connections:
    """Connect all hosts with each other.

    Args:
        rank: Number of this host.
        world_size: Number of hosts.
        address: Address of host 0.
        port: Port at which host 0 listens for the others.
        timeout_s: Most seconds of this, and of every later wait.

    Raises:
        PeerError: A host did not come in time.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        centre = _centre(rank, world_size, address, port, deadline_s)
        own = address if rank == 0 else centre[0].getsockname()[0]
        with socket.create_server((own, 0), backlog=4 * world_size) as listener:
            peers = Connections(rank, centre, {}, {}, timeout_s)
            table = _table(peers, (own, listener.getsockname()[1]), world_size)
            for host in range(world_size):
                for purpose in (FLOWS, WORDS) if host != rank else ():
                    peers.out[host, purpose] = _connected(table[host], deadline_s)
                    peers.out[host, purpose].sendall(_hello(rank, purpose))
            peers.into = _accepted(listener, peers.out, time.monotonic() + timeout_s, timeout_s)
    except OSError as error:
        raise PeerError(
            f"host {rank} of {world_size} did not find the others within {timeout_s:g} s ({error}); check that all "
            f"were started and reach {address}:{port}"
        ) from error
    return peers


def _centre(
    rank: int, world_size: int, address: str, port: int, deadline_s: float
) -> dict[int, socket.socket]:
    """Connections between host 0 and the others."""
    left_s = max(deadline_s - time.monotonic(), 0.1)
    if rank:
        connection = _connected((address, port), deadline_s)
        connection.sendall(_hello(rank, WORDS))
        return {0: connection}
    with socket.create_server((address, port), backlog=world_size) as listener:
        others = [(host, WORDS) for host in range(1, world_size)]
        found = _accepted(listener, others, time.monotonic() + left_s, left_s)
    return {host: connection for (host, _), connection in found.items()}


def _hello(rank: int, purpose: int) -> bytes:
    """What a host says first; the key is that of the job that a launcher of wirewise started, if it did."""
    return _HELLO.pack(rank, purpose, hashlib.sha256(os.environ.get("WIREWISE_JOB", "").encode()).digest())


def _accepted(
    listener: socket.socket, wanted: Iterable[tuple[int, int]], deadline_s: float, timeout_s: float
) -> dict[tuple[int, int], socket.socket]:
    """A connection of each host and purpose that is wanted; whoever else comes is sent away."""
    absent, found = {_hello(*one): one for one in wanted}, dict[tuple[int, int], socket.socket]()

    def fits(hello: bytes) -> bool:
        return any(secrets.compare_digest(hello, one) for one in absent)

    with closing(admitted(listener, _HELLO.size, fits, deadline_s)) as coming:
        while absent:
            hello, connection = next(coming)
            found[absent.pop(hello)] = _ready(connection, timeout_s)
    return found


def _table(peers: Connections, own: tuple[str, int], world_size: int) -> Sequence[tuple[str, int]]:
    """Where each host listens, in the order of hosts; host 0 collects and tells it."""
    if peers.rank:
        peers._send(0, msgspec.json.encode(own))
        return msgspec.json.decode(peers._receive(0), type=list[tuple[str, int]])
    others = [peers._receive(host) for host in sorted(peers.centre)]
    table = [own, *(msgspec.json.decode(text, type=tuple[str, int]) for text in others)]
    assert len(table) == world_size
    for host in peers.centre:
        peers._send(host, msgspec.json.encode(table))
    return table


def _connected(place: tuple[str, int], deadline_s: float) -> socket.socket:
    """A connection to a host that may not listen yet."""
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            return _ready(socket.create_connection(place, timeout=max(left_s, 0.1)), max(left_s, 0.1))
        except ConnectionRefusedError:
            if left_s <= 0:
                raise
            time.sleep(0.05)


def _ready(connection: socket.socket, timeout_s: float) -> socket.socket:
    connection.settimeout(timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    leave_bbr(connection)
    return connection


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionResetError("the other end closed the connection")
        found += piece
    return bytes(found)


def _gone(host: int, timeout_s: float, error: OSError) -> str:
    return f"host {host} is gone or was silent for {timeout_s:g} s ({error}); see its log, then start the job again"
