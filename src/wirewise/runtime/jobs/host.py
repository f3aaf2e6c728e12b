"""A cluster's host, which forks the ranks of its jobs: `-m wirewise.runtime.jobs.host SOCKET HOST MODULE ...`.

It connects to the socket of whoever schedules, says that it is ready once the modules are loaded, and then does as it
is told. Ranks come from a fork server that has the modules, so one is there in milliseconds. When the connection ends,
so do all ranks.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

import msgspec

from wirewise.hosts import ForkedProcess, ForkServer, free_port, rank_variables

__all__ = ["HostEvent", "HostReady", "JobStarted", "RankEnded", "SignalJob", "StartJob", "run_rank", "serve"]


class StartJob(msgspec.Struct, frozen=True, tag="start"):
    """Order to start the ranks of a job."""

    job: str
    target: str
    """Function that each rank calls with the folder, as "module:function" or "/path/FILE.py:function"."""
    folder: str
    """Folder of the job; ranks write to rank-N.log there."""
    ranks: int
    address: str
    """Address of this host, at which ranks meet."""
    environment: dict[str, str] = {}


class SignalJob(msgspec.Struct, frozen=True, tag="signal"):
    """Order to send a signal to all ranks of a job that are left."""

    job: str
    number: int


class HostReady(msgspec.Struct, frozen=True, tag="ready"):
    """First word of a host, once ranks can be forked."""

    host: int


class JobStarted(msgspec.Struct, frozen=True, tag="started"):
    """The ranks of a job exist."""

    job: str
    pids: list[int]


class RankEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A rank is gone."""

    job: str
    rank: int
    exit_code: int
    """Negative: ended by that signal."""
    at_s: float


HostEvent = HostReady | JobStarted | RankEnded
_orders = msgspec.json.Decoder(StartJob | SignalJob)
_said = msgspec.json.Encoder()


class _Host:
    """The ranks of one host.

    Args:
        channel: Connection to whoever schedules.
        server: Forks the ranks.
    """

    def __init__(self, channel: Connection, server: ForkServer) -> None:
        self._channel, self._server = channel, server
        self._ranks: dict[int, tuple[str, int, ForkedProcess]] = {}
        """Job, rank and process by the descriptor that tells of its end."""

    def serve(self) -> None:
        """Carry out orders until the connection ends; no rank is left then."""
        try:
            while True:
                for found in wait([self._channel, *self._ranks]):
                    if isinstance(found, int):
                        self._bury(found)
                    else:
                        self._obey(_orders.decode(self._channel.recv_bytes()))
        except (EOFError, OSError):
            pass
        finally:
            # With all that the ranks have started.
            self._server.close()

    def _obey(self, order: StartJob | SignalJob) -> None:
        if isinstance(order, SignalJob):
            for job, _, process in self._ranks.values():
                if job == order.job:
                    process.signal(order.number)
            return
        port, pids = free_port(), list[int]()
        for rank in range(order.ranks):
            process = self._server.start(
                run_rank,
                [order.target, order.folder],
                environment=order.environment | rank_variables(rank, order.ranks, order.address, port),
                log=Path(order.folder) / f"rank-{rank}.log",
            )
            self._ranks[process.pidfd] = (order.job, rank, process)
            pids.append(process.pid)
        self._channel.send_bytes(_said.encode(JobStarted(order.job, pids)))

    def _bury(self, pidfd: int) -> None:
        job, rank, process = self._ranks.pop(pidfd)
        told = RankEnded(job, rank, process.join(), time.monotonic())
        # Its processors are free when it is told.
        process.close()
        self._channel.send_bytes(_said.encode(told))


def run_rank(target: str, folder: str) -> NoReturn:
    """Do the work of a rank of a job in this process, and end it.

    Args:
        target: Function that is called with the folder, as "module:function" or "/path/FILE.py:function", whose folder
            is searched for modules, as that of a script.
        folder: Folder of the job.
    """
    code = 0
    try:
        from wirewise.runtime.jobs.training import heed_signals

        # Before anything else: a rank that is asked to stop while it starts still saves what it has loaded.
        heed_signals()
        import torch

        torch.set_num_threads(1)
        module, _, function = target.rpartition(":")
        if module.endswith(".py"):
            sys.path.insert(0, str(Path(module).parent))
            module = Path(module).stem
        getattr(importlib.import_module(module), function)(Path(folder))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of torch that still wait must not keep it.
    os._exit(code)


def _nothing() -> None:
    """First process of a fork server: it exists once all modules are loaded."""


def serve(path: str, host: int, preload: Sequence[str]) -> None:
    """Serve as a host until whoever listens at the socket is gone.

    Args:
        path: Socket of whoever schedules.
        host: Number of this host.
        preload: Modules that ranks find loaded.
    """
    server = ForkServer(["torch", "torch.distributed", "torch._dynamo", *preload])
    server.start(_nothing).close()
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        channel = Connection(end.detach())
    channel.send_bytes(_said.encode(HostReady(host)))
    _Host(channel, server).serve()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
