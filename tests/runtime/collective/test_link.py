"""One connection: how often a rank is woken while a message comes in, and that nothing of it is left unread."""

from __future__ import annotations

import select
import socket

import pytest
import torch

from wirewise.runtime.collective.link import _FORM, DATA, FrameHeader, PeerLink
from wirewise.runtime.collective.memory import Pool

PIECE = 4096
LARGE = 1 << 20


class Receiver:
    """Takes in frames in place of an engine."""

    def __init__(self):
        self.pool, self.sizes = Pool(), []

    def opened(self, link, header):
        scratch = self.pool.take(header.size_bytes)
        return [scratch.view[: header.size_bytes]], scratch

    def arrived(self, link, header, scratch):
        assert bytes(scratch.view[: header.size_bytes]) == bytes(body(header.size_bytes))
        self.sizes.append(header.size_bytes)


def body(size_bytes):
    return (torch.arange(size_bytes) % 251).to(torch.uint8).numpy()


def frame(size_bytes):
    return _FORM.pack(*FrameHeader(DATA, 0, 0, 0, 0, size_bytes)) + bytes(body(size_bytes))


@pytest.fixture
def ends():
    """A sender's socket, the link of a receiver, and what polls it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname(), timeout=10)
        own = server.accept()[0]
    own.setblocking(False)
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link = PeerLink(0, 1, own, Receiver())
    poll = select.epoll()
    poll.register(own, select.EPOLLIN)
    yield sender, link, poll
    poll.close()
    sender.close()
    own.close()


def woken(link, poll, timeout_s):
    found = bool(poll.poll(timeout_s))
    if found:
        link.read()
    return found


def test_a_rank_is_woken_for_large_parts_of_a_message(ends):
    sender, link, poll = ends
    wakes, sent = 0, frame(LARGE)
    for start in range(0, len(sent), PIECE):
        sender.sendall(sent[start : start + PIECE])
        wakes += woken(link, poll, 0)
    while not link._engine.sizes and woken(link, poll, 10):
        wakes += 1
    assert link._engine.sizes == [LARGE]
    # 257 pieces; four quarters, and the ends of the first and the last.
    assert wakes <= 16 and not link.sleeps


@pytest.mark.parametrize("size_bytes", [1, 40_000, 300_000])
def test_what_follows_a_large_message_wakes_at_once(ends, size_bytes):
    sender, link, poll = ends
    for size in (LARGE, size_bytes):
        sender.sendall(frame(size))
        while (not link._engine.sizes or link._engine.sizes[-1] != size) and woken(link, poll, 10):
            pass
    assert link._engine.sizes == [LARGE, size_bytes]


def test_bytes_that_wake_nobody_can_be_read(ends):
    sender, link, poll = ends
    sent = frame(LARGE)
    sender.sendall(sent[:PIECE])
    assert woken(link, poll, 10) and link.sleeps
    before = link.moved_s
    sender.sendall(sent[PIECE : 2 * PIECE])
    assert not woken(link, poll, 0.05)
    link.read()
    assert link.moved_s > before
