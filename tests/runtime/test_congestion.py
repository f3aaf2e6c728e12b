"""Connections leave BBR, and keep what else they have."""

import socket

import pytest

from wirewise.runtime.congestion import leave_bbr


@pytest.fixture
def connection():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        yield one


def control(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.mark.parametrize(("before", "after"), [(b"bbr", {b"cubic", b"reno"}), (b"reno", {b"reno"})])
def test_bbr_is_left_and_others_stay(connection, before, after):
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, before)
    except OSError:
        pytest.skip(f"this kernel gives no {before.decode()}")
    leave_bbr(connection)
    assert control(connection) in after
