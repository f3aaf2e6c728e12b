"""Start of a job's default process group, with errors that name missing ranks."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from wirewise.errors import InputError, PeerError
from wirewise.hosts import integer_variable
from wirewise.hosts.allocation import adopt_srun_rank

__all__ = ["companion", "join_group", "rendezvous", "start_group"]

_POLL_S = 0.05
_GRACE_S = 1.0
"""Rank 0 holds the store: it leaves a little later, so that the others can still read who is missing."""


def start_group(timeout_s: float, backend: str = "gloo") -> None:
    """Start torch's default process group, with rank and world size from the environment: RANK, or srun's variables.

    torch itself waits for half an hour by default, and then reports how many ranks joined, not which did not.

    Args:
        timeout_s: Timeout for the other ranks to join, and of a call of the group, in seconds.
        backend: "gloo", or "nccl" with the device of LOCAL_RANK.

    Raises:
        InputError: A variable is missing, not a number, or an invalid rank.
        PeerError: Ranks did not join; the message names them.
    """
    adopt_srun_rank()
    if backend == "nccl":
        torch.cuda.set_device(integer_variable("LOCAL_RANK"))
    rank, size = integer_variable("RANK"), integer_variable("WORLD_SIZE", minimum=1)
    if rank >= size:
        raise InputError(f"RANK is {rank} and WORLD_SIZE {size}; expected a rank of 0 to {size - 1}")
    if not (host := os.environ.get("MASTER_ADDR")):
        raise InputError(
            "the environment variable MASTER_ADDR is not set; expected the address of rank 0, as torchrun sets it"
        )
    store = rendezvous(rank, size, host, integer_variable("MASTER_PORT", minimum=1), timeout_s=timeout_s)
    join_group(store, rank, size, timeout_s, backend)


def join_group(store: Store, rank: int, size: int, timeout_s: float, backend: str = "gloo") -> None:
    """Start torch's default process group over a given store.

    Args:
        store: Store for the rendezvous, with keys unused by other groups.
        rank: Rank of this process in the group.
        size: Number of ranks of the group.
        timeout_s: Timeout for the other ranks to join, and of a call of the group, in seconds.
        backend: "gloo", or "nccl" with the current device.
    """
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def companion(store: Store, rank: int, size: int, timeout_s: float) -> dist.ProcessGroup:
    """Start a bare gloo group beside torch's default one, for interruptible messages in host memory.

    Args:
        store: Store for the rendezvous, with keys unused by other groups.
        rank: Rank of this process in the group.
        size: Number of ranks of the group.
        timeout_s: Timeout for the other ranks to join, and of a call of the group, in seconds.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    options._devices = [gloo.create_device(interface=name) if name else gloo.create_default_device()]
    return gloo(store, rank, size, options)  # type: ignore[no-any-return]


def rendezvous(rank: int, size: int, host: str, port: int, *, timeout_s: float) -> Store:
    """Open a store and wait until all ranks have joined it.

    Args:
        rank: Rank of this process; rank 0 opens the store, unless torchrun has.
        size: Number of ranks.
        host: Address of the store.
        port: Port of the store.
        timeout_s: Seconds to wait for the other ranks.

    Raises:
        PeerError: Ranks did not join; the message names them.
    """
    deadline, timeout = time.monotonic() + timeout_s, timedelta(seconds=timeout_s)
    opens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        shared = TCPStore(host, port, size, opens, timeout, wait_for_workers=False, multi_tenant=True)
        # A job that torchrun starts again finds the keys of its earlier runs.
        store = PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", shared)
        absent = _absent(store, rank, size, deadline)
    except RuntimeError as error:
        if opens and ("EADDRINUSE" in str(error) or "address already in use" in str(error).lower()):
            raise PeerError(
                f"rank 0 cannot open the store at {host}:{port}: the port is in use, perhaps by another job; choose "
                "another MASTER_PORT, or let torchrun choose one (--standalone)"
            ) from error
        raise PeerError(
            f"rank {rank} does not reach the store of rank 0 at {host}:{port} within {timeout_s:g} s; look at the "
            f"log of rank 0, and whether MASTER_ADDR and MASTER_PORT are the same on all hosts. [{error}]"
        ) from error
    if absent:
        names = ", ".join(map(str, absent))
        raise PeerError(
            f"rank {rank} waited {timeout_s:g} s for rank {names} of {size}, which did not start; look at the log of "
            "that rank"
        )
    return store


def _absent(store: Store, rank: int, size: int, deadline: float) -> list[int]:
    """Ranks that have not come by the deadline of the first that gives up."""
    store.set(f"here-{rank}", "")
    while absent := [peer for peer in range(size) if not store.check([f"here-{peer}"])]:
        if time.monotonic() > deadline or store.check(["late"]):
            store.set("late", "")
            time.sleep(_GRACE_S if rank == 0 else 0.0)
            break
        time.sleep(_POLL_S)
    return absent
