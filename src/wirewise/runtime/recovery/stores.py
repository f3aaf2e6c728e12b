"""Store of a job, at an address of host 0, with keys under a name known only to the job's processes."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from wirewise.errors import InputError, PeerError
from wirewise.hosts import listen

__all__ = ["join_store", "open_store"]

_CONNECT_S, _RETRY_S = 5.0, 0.2
_DIGEST = "wirewise/token"
"""The one key that all see: a digest of the token, from which another host sees that it has a wrong one."""


def open_store(
    address: str, port: int, token: str, *, host: int, hosts: int, timeout_s: float
) -> tuple[Any, int]:
    """Open the store of a job on host 0, or connect to it from another host.

    Args:
        address: Address of host 0.
        port: Port of the store. 0 on host 0 for any free one.
        token: Secret of the job.
        host: Index of this host.
        hosts: Number of hosts.
        timeout_s: Seconds to wait for host 0.

    Returns:
        The store, and its port.

    Raises:
        InputError: The token is not that of host 0, or the address is not of this host.
        PeerError: The store did not become available in time.
    """
    timeout, master = timedelta(seconds=timeout_s), host == 0
    if not master:
        _await_host(address, port, host, timeout_s)
    descriptor = _listener(address, port, alone=hosts == 1) if master else None
    try:
        store = TCPStore(
            address,
            port if descriptor is None else descriptor.getsockname()[1],
            None,
            master,
            timeout,
            wait_for_workers=False,
            master_listen_fd=None if descriptor is None else descriptor.detach(),
        )
        _check(store, token, host)
    except RuntimeError as error:
        raise PeerError(
            f"host {host} has no store at {address}:{port} within {timeout_s:g} s; expected the agent of host 0 "
            f"there, and a free port: {str(error).splitlines()[0]}"
        ) from error
    return PrefixStore(_prefix(token), store), store.port


def join_store(address: str, port: int, token: str) -> Any:
    """Connect a rank to the store of its job."""
    return PrefixStore(_prefix(token), TCPStore(address, port, is_master=False, wait_for_workers=False))


def _listener(address: str, port: int, *, alone: bool) -> socket.socket:
    try:
        # Many systems let a host's own name stand for 127.0.1.1, at which no other host reaches it.
        reached = alone or not _is_loopback(address) or _is_literal(address)
        return listen(address if reached else "", port)
    except OSError as error:
        raise PeerError(
            f"host 0 cannot listen at {address}:{port} [{error.strerror or error}]; expected an address of this host, "
            "and a port that is free: another job may have it"
        ) from error


def _await_host(address: str, port: int, host: int, timeout_s: float) -> None:
    """Wait until host 0 listens: torch's client asks ever more rarely, and prints its C++ stack each time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((address, port), timeout=_CONNECT_S).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerError(
                    f"host {host} has no store at {address}:{port} within {timeout_s:g} s [{error}]; expected the "
                    "agent of host 0 there: start it with the same address and port, or give it more time: --wait, "
                    "wait_s of the agent"
                ) from error
        time.sleep(_RETRY_S)


def _is_literal(address: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(address)
        return True
    return address == "localhost"


def _is_loopback(address: str) -> bool:
    place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][4]
    return ipaddress.ip_address(str(place[0]).split("%")[0]).is_loopback


def _check(store: TCPStore, token: str, host: int) -> None:
    own = hashlib.sha256(f"wirewise {token}".encode()).hexdigest()
    if host == 0:
        store.set(_DIGEST, own)
    elif store.get(_DIGEST).decode() != own:
        raise InputError(
            f"host {host} has another token than host 0; expected the same on all hosts: set WIREWISE_TOKEN, or "
            "--token, to one secret of the job, or give none on any host"
        )


def _prefix(token: str) -> str:
    # Whoever reaches the store can list its keys, so they must not tell the token, which signs what agents say.
    return hmac.new(token.encode(), b"keys", "sha256").hexdigest()[:32]
