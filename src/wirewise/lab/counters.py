"""Kernel byte counters of network interfaces."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["HostBytes", "interface_bytes"]


class HostBytes(msgspec.Struct, frozen=True):
    """Bytes that a network interface has sent and received.

    Headers are counted as the interface sees them: a large segment that real hardware would split later (GSO) carries
    its headers once, so the counters are up to 5 % below the bytes on a real wire.
    """

    tx_bytes: int
    rx_bytes: int

    def __sub__(self, earlier: HostBytes) -> HostBytes:
        """Bytes sent and received since an earlier reading."""
        return HostBytes(self.tx_bytes - earlier.tx_bytes, self.rx_bytes - earlier.rx_bytes)


def interface_bytes(interface: str | None = None) -> HostBytes | None:
    """Read the counters of an interface in this process's network namespace.

    They are read from /proc, which always shows the reader's namespace, while /sys shows that of the process that
    mounted it.

    Args:
        interface: Name of the interface. Defaults to gloo's interface, as set in a lab.

    Returns:
        None if the interface does not exist, or is the loopback interface, which is no network.
    """
    interface = interface or os.environ.get("GLOO_SOCKET_IFNAME")
    return None if interface in (None, "", "lo") else read_counters(Path("/proc/self/net/dev"), interface)


def read_counters(path: Path, interface: str) -> HostBytes | None:
    """Read the counters of an interface from a file in the format of /proc/net/dev. None if it is not listed."""
    for line in path.read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            fields = numbers.split()
            return HostBytes(tx_bytes=int(fields[8]), rx_bytes=int(fields[0]))
    return None
