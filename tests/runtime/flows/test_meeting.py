"""Hosts find each other whatever else connects to their ports."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from tests.runtime.flows.hosts import free_port, on_hosts
from wirewise.errors import PeerError
from wirewise.runtime.flows import meeting
from wirewise.runtime.flows.meeting import Connections, meet


def reach(port: int) -> socket.socket:
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_strangers_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIREWISE_JOB", "0123456789abcdef")
    port, gathered, size = free_port(), {}, 3

    def host(rank: int) -> None:
        with meet(rank, size, "127.0.0.1", port, timeout_s=20) as peers:
            gathered[rank] = peers.gather(bytes([rank]))

    threads = [threading.Thread(target=host, args=(rank,)) for rank in range(size)]
    threads[0].start()
    wrong = [b"", b"\xff" * 60, struct.pack("!ii32s", 1, 1, b""), struct.pack("!ii32s", 9, 1, b"")]
    strangers = []
    for words in wrong:
        strangers.append(reach(port))
        strangers[-1].sendall(words)
    assert strangers[2].recv(1) == b""
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert gathered == {0: [b"\0", b"\1", b"\2"], 1: [], 2: []}
    for stranger in strangers:
        stranger.close()


def test_a_length_that_makes_no_sense_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("!Q", meeting._LONGEST_BYTES + 1))
        with pytest.raises(PeerError, match=r"host 1 is gone.*announced 268435457 bytes"):
            Connections(0, {1: ours}, {}, {}, 5.0).gather(b"")


def test_messages_of_all_hosts_are_gathered_in_order():
    found = on_hosts(4, lambda peers: [peers.gather(bytes([peers.rank]) * 3) for _ in range(2)])
    assert found == [[[b"\0\0\0", b"\1\1\1", b"\2\2\2", b"\3\3\3"]] * 2, [[], []], [[], []], [[], []]]


def test_a_host_that_never_comes_is_said():
    with pytest.raises(PeerError, match=r"host 1 of 2 did not find the others within 0\.3 s"):
        meet(1, 2, "127.0.0.1", free_port(), timeout_s=0.3)
