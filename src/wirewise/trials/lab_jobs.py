"""Jobs on hosts of a lab, each of them a cluster: ranks from a forkserver, with limited processor time."""

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
from typing import NamedTuple, Self

import msgspec

from wirewise.errors import LabError
from wirewise.files import make_folder
from wirewise.hosts import OwnedFolder
from wirewise.lab import Lab, Loopback, RunningJob
from wirewise.lab.job import Process
from wirewise.lab.limits import CpuLimit, control_groups
from wirewise.runtime.jobs import host as hosts
from wirewise.runtime.jobs.launcher import JobReport, JobState
from wirewise.runtime.jobs.training import ProgressReader
from wirewise.trials.last_words import telling_line

__all__ = ["JobCommand", "LabJobs"]

_READY_S = 240.0
"""Seconds that hosts have to load their modules."""
_GRACE_S = 5.0
"""Seconds that ranks have to say what they saw after one of them failed."""
_heard = msgspec.json.Decoder(hosts.HostEvent)
_said = msgspec.json.Encoder()


class JobCommand(NamedTuple):
    """What each rank of a job runs."""

    target: str
    """Function that is called with the folder, "module:function" or "/path/FILE.py:function"; it calls
    `train_resumably`."""
    folder: Path
    """Folder of the job; takes states, progress and a log of each rank."""
    ranks: tuple[int, ...] = ()
    """Numbers of ranks that the job can have, in order; of the accelerators that it is given it uses the most that
    is among them. None: any."""

    def ranks_for(self, gpus: int) -> int:
        """Number of ranks that it has with so many accelerators."""
        return max([n for n in self.ranks if n <= gpus], default=max(gpus, 1))


@dataclass
class _Attempt:
    """A job from a start to its end."""

    key: str
    """Name that no other attempt has."""
    cluster: int
    ranks: int
    processors: float
    reader: ProgressReader
    limit: CpuLimit | None = None
    pids: list[int] = field(default_factory=list)
    codes: dict[int, int] = field(default_factory=dict)
    ended_s: float = 0.0
    last: str = ""
    """Last event that was noted: "begin", "done" or "stopped"."""
    asked: bool = False
    """Whether it was asked to stop."""
    failed_s: float | None = None
    """When its first rank failed."""


class LabJobs:
    """Starts and ends jobs on the hosts of a network, a cluster each; for use in a `with` block.

    A host's process has torch and further modules loaded and forks ranks. The ranks of a job share as many processors
    as the job has, each worth a part of a real one. An accelerator is a rank; what it computes is the job's own affair.
    When the block is left nothing runs any more.

    Args:
        network: Lab that is entered, with a host for each cluster; or loopback, where all clusters are this machine.
        clusters: Number of clusters.
        jobs: What is run, by name.
        processor: Real processors that one of a cluster stands for.
        preload: Modules that ranks find loaded.
        limited: Whether processor time is limited.

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
        self._network, self._clusters, self._jobs = network, clusters, dict(jobs)
        self._processor, self._preload, self._limited = processor, list(preload), limited
        self._groups = control_groups()
        self._channels: dict[int, Connection] = {}
        self._attempts: dict[str, _Attempt] = {}
        """Jobs that run, by name."""
        self._count = 0
        self._stack = ExitStack()

    @property
    def limits(self) -> str:
        """How processor time is limited, in words."""
        if not self._limited:
            return "not limited"
        return (
            "by control groups"
            if self._groups is not None
            else "by stopping processes for a part of the time"
        )

    def add(self, job: str, command: JobCommand) -> None:
        """Let a further job be started by its name."""
        self._jobs[job] = command

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
        for attempt in self._attempts.values():
            if attempt.limit is not None:
                attempt.limit.close()
        self._attempts = {}

    def _start_hosts(self, folder: Path) -> RunningJob:
        commands = [
            [sys.executable, "-m", hosts.__name__, str(folder / "hosts"), str(host), *self._preload]
            for host in range(self._clusters)
        ]
        # A host that dies must not take the others with it.
        if isinstance(self._network, Lab):
            return self._network.launch(commands, launcher="none", grace_s=float("inf"))
        interface = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        return RunningJob(
            [Process(host, argv, interface) for host, argv in enumerate(commands)], grace_s=float("inf")
        )

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

    def address(self, cluster: int) -> str:
        """Address at which the ranks of a cluster meet."""
        return self._network.address(cluster) if isinstance(self._network, Lab) else "127.0.0.1"

    def alive(self, cluster: int) -> bool:
        """Whether a cluster can run jobs."""
        return cluster in self._channels

    def pids(self, job: str) -> list[int]:
        """Process ids of the ranks of a job that runs; none before they are there."""
        return list(self._attempts[job].pids) if job in self._attempts else []

    def start(self, job: str, cluster: int, cpus: int, gpus: int) -> None:
        """Start the ranks of a job; see `JobLauncher.start`.

        Raises:
            LabError: It runs already, is unknown, or has neither processors nor accelerators.
        """
        if job in self._attempts or job not in self._jobs or cpus < 1 or gpus < 0:
            why = "runs already" if job in self._attempts else f"is to have {cpus} cpus and {gpus} gpus"
            raise LabError(f"job {job!r} {why}; expected one of the known jobs, with at least one processor")
        self._count += 1
        command = self._jobs[job]
        make_folder(command.folder)
        reader = ProgressReader(command.folder)
        reader.read()
        ranks = command.ranks_for(gpus)
        attempt = _Attempt(f"{job}#{self._count}", cluster, ranks, cpus * self._processor, reader)
        self._attempts[job] = attempt
        order = hosts.StartJob(
            job=attempt.key,
            target=command.target,
            folder=str(command.folder),
            ranks=attempt.ranks,
            address=self.address(cluster),
        )
        self._send(cluster, order)

    def stop(self, job: str) -> None:
        """Ask a job to save its state and to leave; see `JobLauncher.stop`."""
        if (attempt := self._attempts.get(job)) is not None:
            attempt.asked = True
            self._send(attempt.cluster, hosts.SignalJob(attempt.key, signal.SIGTERM))

    def requeue(self, job: str) -> None:
        """Take all processes of a job away and wait until they are gone; see `JobLauncher.requeue`.

        Raises:
            LabError: The kernel does not end them.
        """
        attempt = self._attempts.get(job)
        if attempt is None:
            return
        until_s = time.monotonic() + _READY_S
        while len(attempt.codes) < attempt.ranks and self.alive(attempt.cluster):
            self._send(attempt.cluster, hosts.SignalJob(attempt.key, signal.SIGKILL))
            self._listen(0.1)
            if time.monotonic() > until_s:
                raise LabError(
                    f"ranks of job {job!r} do not end by SIGKILL within {_READY_S:g} s; end them by hand"
                )
        self._forget(job)

    def reports(self) -> list[JobReport]:
        """News of all jobs that ran when this was called last; see `JobLauncher.reports`."""
        self._listen(0.0)
        found = []
        for job, attempt in list(self._attempts.items()):
            # Read after the end was heard of, so that no line is missed.
            progress = attempt.reader.read()
            attempt.last = next((line.event for line in reversed(progress) if line.event), attempt.last)
            state, words = self._state(job, attempt)
            if state != "running":
                self._forget(job)
            found.append(JobReport(job, state, attempt.ended_s or time.monotonic(), progress, words))
        return found

    def _state(self, job: str, attempt: _Attempt) -> tuple[JobState, str]:
        if not self.alive(attempt.cluster):
            attempt.ended_s = attempt.ended_s or time.monotonic()
            return "failed", f"the host of cluster {attempt.cluster} died"
        failed = any(attempt.codes.values())
        if len(attempt.codes) < attempt.ranks:
            if failed and attempt.failed_s is None:
                attempt.failed_s = time.monotonic()
            if attempt.failed_s is not None and time.monotonic() > attempt.failed_s + _GRACE_S:
                self._send(attempt.cluster, hosts.SignalJob(attempt.key, signal.SIGKILL))
            return "running", ""
        if not failed and attempt.last == "done":
            return "done", ""
        if attempt.asked:
            return "stopped", ""
        return "failed", self._last_words(job, attempt)

    def _last_words(self, job: str, attempt: _Attempt) -> str:
        """What the rank that failed first said last."""
        rank = next((rank for rank, code in attempt.codes.items() if code), 0)
        code = attempt.codes[rank]
        log = self._jobs[job].folder / f"rank-{rank}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        how = (
            f"rank {rank} was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"rank {rank} ended with {code}"
        )
        said = telling_line(lines) if code > 0 else ""
        return f"{how}{f': {said}' if said else ''}"

    def _forget(self, job: str) -> None:
        attempt = self._attempts.pop(job)
        if attempt.limit is not None:
            attempt.limit.close()

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
            attempt.codes[told.rank] = told.exit_code
            attempt.ended_s = max(attempt.ended_s, told.at_s)
            return
        attempt.pids = told.pids
        if self._limited:
            attempt.limit = CpuLimit(told.pids, attempt.processors, self._groups)

    def _lose(self, host: int) -> None:
        """A host is gone; whatever is left on it ends before its jobs start elsewhere."""
        self._channels.pop(host).close()
        if isinstance(self._network, Lab):
            self._network.kill(host)
