from pathlib import Path

from wirewise.lab import counters
from wirewise.lab.counters import HostBytes, interface_bytes, read_counters

TEXT = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0
  net0: 5000000000    9    0    0    0     0          0         0 7000000001       8    0    0    0     0
"""


def test_columns_are_the_right_ones(tmp_path):
    file = tmp_path / "dev"
    file.write_text(TEXT)
    assert read_counters(file, "net0") == HostBytes(tx_bytes=7_000_000_001, rx_bytes=5_000_000_000)
    assert read_counters(file, "net") is None


def test_loopback_and_no_interface_are_no_network(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert interface_bytes() is None
    assert interface_bytes("lo") is None
    assert interface_bytes("no-such-interface") is None
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert interface_bytes() is None


def test_the_interface_of_the_variable_is_read(monkeypatch):
    asked = []
    monkeypatch.setattr(
        counters, "read_counters", lambda path, name: asked.append((path, name)) or HostBytes(4, 3)
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "net0")
    assert interface_bytes() == HostBytes(4, 3)
    interface_bytes("net1")
    assert asked == [(Path("/proc/self/net/dev"), "net0"), (Path("/proc/self/net/dev"), "net1")]


def test_readings_subtract():
    assert HostBytes(10, 7) - HostBytes(4, 2) == HostBytes(6, 5)
