"""Connections leave BBR where something else can be had, and keep what else they have."""

import socket

import pytest

from wirewise.runtime.connections import leave_bbr


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
