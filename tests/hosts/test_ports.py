"""Ports of one address."""

from __future__ import annotations

import socket

import pytest

from wirewise.hosts import free_port, listen, ports


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


def test_a_free_port_is_none_that_the_kernel_gives_away(tmp_path, monkeypatch):
    file = tmp_path / "range"
    monkeypatch.setattr(ports, "_EPHEMERAL", file)
    file.write_text("32768\t60999\n")
    assert all(20_000 <= free_port("127.0.0.1") < 32_768 for _ in range(50))
    # Without a range, or with few ports below it, it is one of the kernel's.
    for text in ("1024 65535", "", None):
        file.unlink() if text is None else file.write_text(text)
        listen("127.0.0.1", free_port("127.0.0.1")).close()


def test_a_port_in_use_is_not_free(monkeypatch):
    with listen("127.0.0.1") as listener:
        held, free = listener.getsockname()[1], free_port("127.0.0.1")
        drawn = iter([held, held, free])
        monkeypatch.setattr(ports, "_random_port", lambda: next(drawn))
        assert free_port("127.0.0.1") == free
