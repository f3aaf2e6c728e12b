"""Ports of one address."""

from __future__ import annotations

import socket

import pytest

from wirewise.hosts import free_port, listen


def test_a_listener_is_reached_at_its_address_alone():
    with listen("127.0.0.1") as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.1"
        socket.create_connection((address, port)).close()
        # Another address of this host.
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=5).close()


def test_a_port_in_use_is_an_error():
    with listen("127.0.0.1") as listener, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", listener.getsockname()[1])


def test_a_free_port_can_be_listened_at():
    listen("127.0.0.1", free_port("127.0.0.1")).close()
