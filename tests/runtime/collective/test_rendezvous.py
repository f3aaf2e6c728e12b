"""Ranks find each other whatever else connects to their ports, and leave BBR where something else can be had."""

from __future__ import annotations

import datetime
import socket
import struct
import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from wirewise.errors import PeerError
from wirewise.runtime.collective.rendezvous import join, leave_bbr

_S = datetime.timedelta(seconds=20)


def address(store: Any, rank: int) -> tuple[str, int]:
    store.wait([f"address-{rank}"], _S)
    host, port, _ = store.get(f"address-{rank}").decode().rsplit(":", 2)
    return host, int(port)


def test_strangers_do_not_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    store, found, size = dist.HashStore(), {}, 3

    def rank(number: int) -> None:
        found[number] = join(store, number, size, timeout_s=20)

    threads = [threading.Thread(target=rank, args=(0,))]
    threads[0].start()
    said = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n" * 3,
        struct.pack("<I16s", 7, b""),
        struct.pack("<I16s", 1, b"x" * 16),
        b"\1",
    ]
    strangers = []
    for words in said:
        strangers.append(socket.create_connection(address(store, 0), timeout=10))
        strangers[-1].sendall(words)
    gone = socket.create_connection(address(store, 0), timeout=10)
    gone.close()
    # Those who said something wrong are sent away while the ranks are still awaited.
    assert strangers[3].recv(1) == b""
    threads += [threading.Thread(target=rank, args=(number,)) for number in (1, 2)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert {number: sorted(peers) for number, peers in found.items()} == {0: [1, 2], 1: [0, 2], 2: [0, 1]}
    for number, peers in found.items():
        for peer, connection in peers.items():
            connection.sendall(bytes([number, peer]))
    for number, peers in found.items():
        for peer, connection in peers.items():
            connection.setblocking(True)
            assert connection.recv(2, socket.MSG_WAITALL) == bytes([peer, number])
    for connection in [*strangers, *(c for peers in found.values() for c in peers.values())]:
        connection.close()


def test_a_silent_stranger_does_not_hide_who_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    store, errors, started = dist.HashStore(), [], time.monotonic()

    def rank() -> None:
        try:
            join(store, 0, 2, timeout_s=1.0)
        except PeerError as error:
            errors.append(str(error))

    thread = threading.Thread(target=rank)
    thread.start()
    with socket.create_connection(address(store, 0), timeout=10):
        thread.join(timeout=30)
    assert not thread.is_alive() and time.monotonic() - started < 20
    assert "rank 0 waited for a connection with rank 1, which did not appear" in errors[0]


class Connection:
    """A connection of a kernel that has some congestion controls."""

    def __init__(self, control, known):
        self.control, self._known = control, known

    def getsockopt(self, level, option, size):
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION) and size >= 16
        return self.control.ljust(size, b"\0")

    def setsockopt(self, level, option, value):
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        if value not in self._known:
            raise FileNotFoundError(2, "No such file or directory")
        self.control = value


@pytest.mark.parametrize(
    ("before", "known", "after"),
    [
        (b"bbr", {b"bbr", b"cubic", b"reno"}, b"cubic"),
        (b"bbr", {b"bbr", b"reno"}, b"reno"),
        (b"bbr", {b"bbr"}, b"bbr"),
        (b"reno", {b"bbr", b"cubic", b"reno"}, b"reno"),
        (b"dctcp", {b"cubic", b"dctcp"}, b"dctcp"),
    ],
)
def test_bbr_is_left_and_others_stay(before, known, after):
    connection = Connection(before, known)
    leave_bbr(connection)
    assert connection.control == after


def test_a_connection_of_this_kernel():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        leave_bbr(one)
        found = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
    # Reno is in every kernel.
    assert found and found != b"bbr"
