"""Network interfaces of this host and their addresses."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["address_of_interface", "address_towards", "interface_of", "interface_towards"]

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def address_of_interface(interface: str) -> str:
    """IPv4 address of an interface.

    Raises:
        OSError: The interface does not exist, or has no IPv4 address.
    """
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])


def address_towards(host: str) -> str:
    """Address of this host on the interface by which it reaches another host.

    Raises:
        OSError: The other host's name is unknown, or there is no route to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing; the kernel only looks up the way.
        probe.connect((host, _ANY_PORT))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Interface of this host that has the given address or host name. None if none has it."""
    try:
        own = socket.gethostbyname(address)
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        try:
            if address_of_interface(name) == own:
                return name
        except OSError:
            continue  # it has no such address
    return None


def interface_towards(hosts: tuple[str, ...], host: int) -> str | None:
    """Interface by which one of the given hosts reaches the others. None if they cannot be resolved.

    A host's own name may resolve to its loopback address, which other hosts cannot reach.

    Args:
        hosts: Names of the hosts, in order.
        host: Index of the host of this process.
    """
    others = [name for number, name in enumerate(hosts) if number != host]
    try:
        return interface_of(address_towards(others[0]))
    except (OSError, IndexError):
        return None
