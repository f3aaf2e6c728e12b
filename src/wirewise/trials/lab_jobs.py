"""Jobs on lab hosts as clusters: ranks from a forkserver, with limited CPU time."""

from __future__ import annotations

import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Self

import msgspec

from wirewise.errors import LabError
from wirewise.hosts import OwnedFolder
from wirewise.hosts.ranks import RankStates, describe_exit
from wirewise.lab import Lab, Loopback, RunningJob
from wirewise.lab.limits import CpuLimit, control_groups
from wirewise.runtime.jobs import host as hosts
from wirewise.trials.attempts import Attempt, Attempts, JobCommand, JobEnd, last_line

__all__ = ["JobCommand", "LabJobs"]

_READY_S = 240.0
"""Seconds that hosts have to load their modules."""
_GRACE_S = 5.0
"""Seconds that ranks have to say what they saw after one of them failed."""
_heard = msgspec.json.Decoder(hosts.HostEvent)
_said = msgspec.json.Encoder()


@dataclass(kw_only=True)
class _Attempt(Attempt):
    key: str
    """Name that no other attempt has."""
    processors: float
    states: RankStates
    limit: CpuLimit | None = None
    pids: list[int] = field(default_factory=list)


class LabJobs(Attempts[_Attempt]):
    """Launcher of jobs on the hosts of a network, a cluster each; context manager.

    A host's process has torch and further modules loaded and forks ranks. The ranks of a job share as many CPUs as the
    job has, each a fraction of a real one. There is one rank per accelerator, and the job itself emulates its compute.
    Nothing runs any more after the context.

    Args:
        network: Lab that is entered, with a host for each cluster; or loopback, where all clusters are this machine.
        clusters: Number of clusters.
        jobs: Commands by name of the job.
        processor: Number of real CPUs per CPU of a cluster.
        preload: Modules that are imported before ranks are forked.
        limited: Whether CPU time is limited.

    Raises:
        LabError: A host did not come up.
    """

    def __init__(
        self,
        network: Lab | Loopback,
        clusters: int,
        jobs: Mapping[str, JobCommand],
        *,
        processor: float = 0.25,
        preload: Sequence[str] = (),
        limited: bool = True,
    ) -> None:
        if isinstance(network, Lab) and network.num_hosts != clusters:
            raise LabError(
                f"got a lab of {network.num_hosts} hosts for {clusters} clusters; expected a host for each"
            )
        super().__init__(jobs)
        self._network, self._clusters = network, clusters
        self._processor, self._preload, self._limited = processor, list(preload), limited
        self._groups = control_groups()
        self._channels: dict[int, Connection] = {}
        self._count = 0
        self._stack = ExitStack()

    @property
    def limits(self) -> str:
        """Description of the limit on CPU time."""
        if not self._limited:
            return "not limited"
        return (
            "by control groups"
            if self._groups is not None
            else "by stopping processes for a part of the time"
        )

    def __enter__(self) -> Self:
        try:
            # A socket's path is short, whatever folder a run is in.
            place = Path(tempfile.gettempdir())
            folder = self._stack.enter_context(OwnedFolder(place, "wirewise-jobs-")).path
            listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(folder / "hosts"))
            listener.listen(self._clusters)
            running = self._start_hosts(folder)
            self._stack.callback(running.stop)
            self._accept(listener, running)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            # Hosts take the end of the connection as the order to end their ranks.
            channel.close()
        self._channels = {}
        self._stack.close()
        for job in list(self._attempts):
            self._forget(job)

    def _start_hosts(self, folder: Path) -> RunningJob:
        commands = [
            [sys.executable, "-m", hosts.__name__, str(folder / "hosts"), str(host), *self._preload]
            for host in range(self._clusters)
        ]
        network = self._network if isinstance(self._network, Lab) else Loopback(self._clusters)
        # A host that dies must not take the others with it.
        return network.launch(commands, launcher="none", grace_s=float("inf"))

    def _accept(self, listener: socket.socket, running: RunningJob) -> None:
        until_s = time.monotonic() + _READY_S
        listener.settimeout(1.0)
        while len(self._channels) < self._clusters:
            with suppress(TimeoutError):
                end, _ = listener.accept()
                end.setblocking(True)
                channel = Connection(end.detach())
                told = _heard.decode(channel.recv_bytes())
                assert isinstance(told, hosts.HostReady)
                self._channels[told.host] = channel
            if not running.running or time.monotonic() > until_s:
                tails = (
                    [line for tail in running.wait().tails for line in tail[-3:]]
                    if not running.running
                    else []
                )
                running.stop()
                missing = sorted(set(range(self._clusters)) - set(self._channels))
                raise LabError(
                    f"the hosts of clusters {missing} did not come up within {_READY_S:g} s; expected processes with "
                    f"torch and {', '.join(self._preload) or 'nothing more'}: {' '.join(tails) or 'they said nothing'}"
                )

    def alive(self, cluster: int) -> bool:
        """Whether a cluster can run jobs."""
        return cluster in self._channels

    def pids(self, job: str) -> list[int]:
        """Process ids of the ranks of a running job; empty before they have started."""
        return list(self._attempts[job].pids) if job in self._attempts else []

    def start(self, job: str, cluster: int, cpus: int, gpus: int) -> None:
        """Start the ranks of a job; see `JobLauncher.start`.

        Raises:
            LabError: The job is running or unknown, or has neither CPUs nor accelerators.
        """
        command, reader = self._prepare(job, cpus, gpus)
        self._count += 1
        key, ranks = f"{job}#{self._count}", command.ranks_for(gpus)
        states = RankStates(ranks, _GRACE_S)
        self._attempts[job] = _Attempt(
            cluster=cluster, reader=reader, key=key, processors=cpus * self._processor, states=states
        )
        order = hosts.StartJob(
            job=key,
            target=command.target,
            folder=str(command.folder),
            ranks=ranks,
            address=self._network.address(cluster),
        )
        self._send(cluster, order)

    def stop(self, job: str) -> None:
        """Ask a job to save its state and exit; see `JobLauncher.stop`."""
        if (attempt := self._attempts.get(job)) is not None:
            attempt.asked = True
            self._send(attempt.cluster, hosts.SignalJob(attempt.key, signal.SIGTERM))

    def requeue(self, job: str) -> None:
        """Kill all processes of a job and wait until they are gone; see `JobLauncher.requeue`.

        Raises:
            LabError: The kernel does not end them.
        """
        attempt = self._attempts.get(job)
        if attempt is None:
            return
        until_s = time.monotonic() + _READY_S
        while attempt.states.running and self.alive(attempt.cluster):
            self._send(attempt.cluster, hosts.SignalJob(attempt.key, signal.SIGKILL))
            self._listen(0.1)
            if time.monotonic() > until_s:
                raise LabError(
                    f"ranks of job {job!r} do not end by SIGKILL within {_READY_S:g} s; end them by hand"
                )
        self._forget(job)

    def _refresh(self) -> None:
        self._listen(0.0)

    def _end(self, job: str, attempt: _Attempt) -> JobEnd | None:
        states = attempt.states
        if not self.alive(attempt.cluster):
            return JobEnd(f"the host of cluster {attempt.cluster} died", time.monotonic(), lost=True)
        if states.running:
            if states.overdue:
                self._send(attempt.cluster, hosts.SignalJob(attempt.key, signal.SIGKILL))
            return None
        if (rank := states.first_failed) is None:
            return JobEnd("", states.ended_s)
        code = states.exit_codes[rank]
        line = last_line(self._jobs[job].folder, [rank]) if code > 0 else ""
        cause = f"rank {rank} {describe_exit(code)}" if code > 0 else f"rank {rank} was {describe_exit(code)}"
        return JobEnd(f"{cause}{f': {line}' if line else ''}", states.ended_s)

    def _forget(self, job: str) -> None:
        if (limit := self._attempts.pop(job).limit) is not None:
            limit.close()

    def _send(self, cluster: int, order: hosts.StartJob | hosts.SignalJob) -> None:
        with suppress(OSError):
            if (channel := self._channels.get(cluster)) is not None:
                channel.send_bytes(_said.encode(order))

    def _listen(self, timeout_s: float) -> None:
        """Take in what hosts tell."""
        by_channel = {channel: host for host, channel in self._channels.items()}
        for channel in wait(list(self._channels.values()), timeout_s):
            assert isinstance(channel, Connection)
            try:
                while channel.poll():
                    self._hear(_heard.decode(channel.recv_bytes()))
            except (EOFError, OSError):
                self._lose(by_channel[channel])

    def _hear(self, told: hosts.HostEvent) -> None:
        if isinstance(told, hosts.HostReady):
            return
        attempt = next((one for one in self._attempts.values() if one.key == told.job), None)
        if attempt is None:
            return
        if isinstance(told, hosts.RankEnded):
            attempt.states.note_end(told.rank, told.exit_code, told.at_s)
            return
        attempt.pids = told.pids
        if self._limited:
            attempt.limit = CpuLimit(told.pids, attempt.processors, self._groups)

    def _lose(self, host: int) -> None:
        """A host is gone; whatever is left on it ends before its jobs start elsewhere."""
        self._channels.pop(host).close()
        if isinstance(self._network, Lab):
            self._network.kill(host)
