"""Host process of a cluster, which forks the ranks of its jobs: `-m wirewise.runtime.jobs.host SOCKET HOST MODULE ...`.

It connects to the scheduler's socket, reports ready once the modules are loaded, and then executes orders. Ranks are
forked from a server with the modules loaded, in milliseconds. When the connection ends, so do all ranks.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import msgspec

from wirewise.hosts import ForkedProcess, ForkServer, ProcessTable, free_port, rank_variables
from wirewise.runtime.jobs.rank import run_rank

__all__ = ["HostEvent", "HostReady", "JobStarted", "RankEnded", "SignalJob", "StartJob", "serve"]


class StartJob(msgspec.Struct, frozen=True, tag="start"):
    """Order to start the ranks of a job."""

    job: str
    target: str
    """Function that each rank calls with the folder, as "module:function" or "/path/FILE.py:function"."""
    folder: str
    """Folder of the job; ranks write to rank-N.log there."""
    ranks: int
    address: str
    """Address of this host, for the ranks' rendezvous."""
    environment: dict[str, str] = {}


class SignalJob(msgspec.Struct, frozen=True, tag="signal"):
    """Order to send a signal to the remaining ranks of a job."""

    job: str
    number: int


class HostReady(msgspec.Struct, frozen=True, tag="ready"):
    """First message of a host, sent once ranks can be forked."""

    host: int


class JobStarted(msgspec.Struct, frozen=True, tag="started"):
    """Message that the ranks of a job have started."""

    job: str
    pids: list[int]


class RankEnded(msgspec.Struct, frozen=True, tag="ended"):
    """Message that a rank has ended."""

    job: str
    rank: int
    exit_code: int
    """Exit code; negative if a signal ended the rank."""
    at_s: float


HostEvent = HostReady | JobStarted | RankEnded
_orders = msgspec.json.Decoder(StartJob | SignalJob)
_said = msgspec.json.Encoder()


class _Rank(NamedTuple):
    """A rank of a job."""

    job: str
    rank: int
    process: ForkedProcess


class _Host:
    """The ranks of one host.

    Args:
        channel: Connection to whoever schedules.
        server: Forks the ranks.
    """

    def __init__(self, channel: Connection, server: ForkServer) -> None:
        self._channel, self._server = channel, server
        self._ranks = ProcessTable[int, _Rank]()
        """Ranks by the descriptor that tells of the end of the process."""

    def serve(self) -> None:
        """Execute orders until the connection ends; no rank is left then."""
        try:
            while True:
                for found in wait([self._channel, *self._ranks]):
                    if isinstance(found, int):
                        self._reap(found)
                    else:
                        self._obey(_orders.decode(self._channel.recv_bytes()))
        except (EOFError, OSError):
            pass
        finally:
            # With all that the ranks have started.
            self._server.close()

    def _obey(self, order: StartJob | SignalJob) -> None:
        if isinstance(order, SignalJob):
            self._ranks.signal(order.number, lambda pidfd: self._ranks[pidfd].job == order.job)
            return
        port, pids = free_port(), list[int]()
        for rank in range(order.ranks):
            process = self._server.start(
                run_rank,
                [order.target, order.folder],
                environment=order.environment | rank_variables(rank, order.ranks, order.address, port),
                log=Path(order.folder) / f"rank-{rank}.log",
            )
            self._ranks[process.pidfd] = _Rank(order.job, rank, process)
            pids.append(process.pid)
        self._channel.send_bytes(_said.encode(JobStarted(order.job, pids)))

    def _reap(self, pidfd: int) -> None:
        job, rank, _ = self._ranks[pidfd]
        ended_s = time.monotonic()
        # Its processors are free when it is told.
        code = self._ranks.reap(pidfd, wait=True)
        self._channel.send_bytes(_said.encode(RankEnded(job, rank, code, ended_s)))


def _nothing() -> None:
    """First process of a fork server: it exists once all modules are loaded."""


def serve(path: str, host: int, preload: Sequence[str]) -> None:
    """Serve as a host until the scheduler closes the socket.

    Args:
        path: Socket of the scheduler.
        host: Index of this host.
        preload: Modules to import before forking ranks.
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
