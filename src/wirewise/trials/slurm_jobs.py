"""Jobs under Slurm: submission, requeueing with another size, cancellation, monitoring."""

from __future__ import annotations

import getpass
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec

from wirewise.errors import InputError, LabError
from wirewise.runtime.jobs import rank
from wirewise.runtime.jobs.training import Progress
from wirewise.trials.attempts import Attempt, Attempts, JobCommand, JobEnd, last_line

__all__ = ["QueueRow", "SlurmJobs", "hosts_of_slurm"]

_CALL_S, _GONE_S, _AWAY_S = 30.0, 120.0, 120.0
"""Seconds that a command of Slurm may take, that a job may take to end, and that the controller may be away."""
_AWAY = "Unable to contact slurm controller"
_LOOK_S, _HOSTS_S, _DRIFT_S = 0.25, 1.0, 10.0
"""Seconds between two questions to Slurm on jobs, on hosts, and on what is not as planned."""
_ACTIVE = (
    "RUNNING",
    "CONFIGURING",
    "COMPLETING",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
    "RESIZING",
)
_USABLE = ("idle", "mixed", "allocated", "completing", "planned", "reserved")
_CLOCK_S = 5.0
"""Seconds that a line of a rank may be old when it is read; an older or younger one is of another machine's clock."""
_COLUMNS = ",".join(
    f"{name}:200|"
    for name in ("JobID", "Name", "State", "NodeList", "ReqNodes", "NumCPUs", "Reason", "UserName")
)
_SCRIPT = """\
#!/bin/sh
exec srun --overcommit --mpi=none --kill-on-bad-exit=1 --ntasks="$(cat {folder}/ranks)" \\
    --output={folder}/rank-%t.log --open-mode=append {python} -m {module} {target} {folder}
"""


class QueueRow(NamedTuple):
    """Job as listed by Slurm."""

    number: str
    name: str
    state: str
    hosts: str
    """Hosts on which it runs; empty while it waits."""
    asked_hosts: str
    cpus: int
    reason: str
    """Reason why it waits."""
    user: str


@dataclass(kw_only=True)
class _Attempt(Attempt):
    cpus: int
    started_s: float
    ran: bool = False
    """Whether Slurm was seen to run it."""


def hosts_of_slurm(partition: str = "") -> list[str]:
    """Names of available hosts, in the order of Slurm.

    Args:
        partition: Name of the partition. Defaults to Slurm's default.

    Raises:
        InputError: Slurm's commands are missing, or its controller does not respond.
    """
    states = _states_of_hosts([f"--partition={partition}"] if partition else [])
    return [host for host, state in states.items() if state in _USABLE]


class SlurmJobs(Attempts[_Attempt]):
    """Launcher of jobs by Slurm, each on the host that a plan names; context manager.

    It is a `JobLauncher` like `LabJobs`. A stop signals the ranks, which save their state and exit. Starting a job
    that ran before requeues the same Slurm job with its new host and size. CPUs are requested from Slurm; there is one
    rank per accelerator, to be requested by `options`. Jobs submitted by others, or by this user by other means, are
    never touched. None of its jobs runs or waits any more after the context.

    Args:
        hosts: Name of the host of each cluster, on which all see the folders of the jobs.
        jobs: Commands by name of the job.
        options: Further options of sbatch for all jobs, such as --partition=main or --account=NAME.
        log: Called once with each difference of the queue from the plan.

    Raises:
        InputError: Slurm's commands are missing, or a host is unknown to Slurm.
    """

    limits = "by Slurm, where it is set up to limit it"
    """Description of the CPU limit."""

    def __init__(
        self,
        hosts: Sequence[str],
        jobs: Mapping[str, JobCommand],
        *,
        options: Sequence[str] = (),
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        known = _states_of_hosts([])
        if unknown := [host for host in hosts if host not in known]:
            raise InputError(f"Slurm has no host {unknown[0]!r}; expected some of {', '.join(known)}")
        super().__init__(jobs)
        self._hosts, self._options, self._say = list(hosts), list(options), log
        self._token = f"wirewise-{secrets.token_hex(4)}"
        self._numbers: dict[str, str] = {}
        """Number that Slurm has given to a job that was started at least once."""
        self._rows: dict[str, QueueRow] = {}
        self._looked_s = self._hosts_s = float("-inf")
        self._drift_s = time.monotonic()
        self._said: set[str] = set()
        self._states = known

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._look(now=True)
        for job in list(self._numbers):
            if self._own(job):
                _call("scancel", "--quiet", self._numbers[job])
        self._await(lambda: not any(self._own(job) for job in self._numbers), "end after scancel")
        self._attempts = {}

    def alive(self, cluster: int) -> bool:
        """Whether a cluster can run jobs."""
        if time.monotonic() > self._hosts_s + _HOSTS_S:
            self._hosts_s, self._states = time.monotonic(), _states_of_hosts([])
        return self._states.get(self._hosts[cluster], "") in _USABLE

    def start(self, job: str, cluster: int, cpus: int, gpus: int) -> None:
        """Start the ranks of a job; see `JobLauncher.start`.

        Raises:
            LabError: The job is running or unknown, has no CPUs, or is refused by Slurm.
        """
        command, reader = self._prepare(job, cpus, gpus)
        (command.folder / "ranks").write_text(f"{command.ranks_for(gpus)}\n")
        self._look(now=True)
        if self._own(job, ended=True):
            self._put_back(job, self._hosts[cluster], cpus)
        else:
            self._numbers[job] = self._submit(job, command, self._hosts[cluster], cpus)
        self._attempts[job] = _Attempt(cluster=cluster, reader=reader, cpus=cpus, started_s=time.monotonic())
        self._look(now=True)

    def _submit(self, job: str, command: JobCommand, host: str, cpus: int) -> str:
        folder = command.folder
        script = folder / "slurm.sh"
        script.write_text(
            _SCRIPT.format(
                folder=shlex.quote(str(folder)),
                python=shlex.quote(sys.executable),
                module=rank.__name__,
                target=shlex.quote(command.target),
            )
        )
        asked = [
            f"--job-name={self._token}-{job}",
            f"--nodelist={host}",
            "--nodes=1",
            "--ntasks=1",
            "--requeue",
        ]
        asked += [
            f"--cpus-per-task={cpus}",
            "--open-mode=append",
            f"--output={folder}/slurm.log",
            *self._options,
        ]
        return _call("sbatch", "--parsable", *asked, str(script)).strip().split(";")[0]

    def _put_back(self, job: str, host: str, cpus: int) -> None:
        """Let Slurm run a job again, on another host or with another size: it cannot resize one that runs."""
        number = self._numbers[job]
        if self._rows[number].state != "PENDING":
            _call("scontrol", "requeuehold", number)
        # What is changed before the job is at rest is overwritten.
        self._await(lambda: self._rows[number].state == "PENDING", f"be in the queue again as job {number}")
        size = [f"NumCPUs={cpus}", f"CPUsPerTask={cpus}", f"MinCPUsNode={cpus}", f"ReqNodeList={host}"]
        # Slurm lets jobs that are put back wait for two minutes otherwise, and a host takes one that starts in the very
        # second in which it was ended there for the ended one, and refuses it.
        _call("scontrol", "update", f"JobId={number}", *size, "StartTime=now+1")
        _call("scontrol", "release", number)

    def stop(self, job: str) -> None:
        """Ask a job to save its state and exit; see `JobLauncher.stop`."""
        if (attempt := self._attempts.get(job)) is not None:
            attempt.asked = True
            self._signal(job, "TERM")

    def requeue(self, job: str) -> None:
        """Kill all processes of a job and wait until they are gone; see `JobLauncher.requeue`.

        Raises:
            LabError: Slurm does not end them.
        """
        if self._attempts.pop(job, None) is not None:
            self._signal(job, "KILL")
            self._await(lambda: not self._own(job), f"end job {job!r}")

    def _signal(self, job: str, name: str) -> None:
        """Signal the ranks of a job that runs, but not its script; cancel one that waits."""
        self._look(now=True)
        if self._own(job):
            number = self._numbers[job]
            waits = self._rows[number].state == "PENDING"
            _call("scancel", "--quiet", *([] if waits else [f"--signal={name}"]), number)

    def _refresh(self) -> None:
        self._look()
        self._tell_drift()

    def _progress(self, attempt: _Attempt) -> tuple[Progress, ...]:
        progress, now_s = attempt.reader.read(), time.monotonic()
        if progress and not 0 <= (behind_s := now_s - progress[-1].at_s) < _CLOCK_S:
            return tuple(msgspec.structs.replace(line, at_s=line.at_s + behind_s) for line in progress)
        return progress

    def _end(self, job: str, attempt: _Attempt) -> JobEnd | None:
        row = self._rows.get(self._numbers[job])
        if row is not None and row.state in _ACTIVE:
            attempt.ran = True
            return None
        if row is not None and row.state == "PENDING":
            if not attempt.ran:
                return None
            # It would start again by itself, wherever the plan has it by then.
            _call("scontrol", "hold", row.number)
            return JobEnd("Slurm put it back into the queue", time.monotonic())
        if row is not None and row.state == "COMPLETED":
            return JobEnd("", time.monotonic())
        ended = "is gone from its queue" if row is None else f"says {row.state}"
        command = self._jobs[job]
        line = last_line(command.folder, range(len(list(command.folder.glob("rank-*.log")))))
        return JobEnd(f"Slurm {ended}{f': {line}' if line else ''}", time.monotonic())

    def _tell_drift(self) -> None:
        if time.monotonic() > self._drift_s + _DRIFT_S:
            self._drift_s = time.monotonic()
            for line in self.drift(after_s=_DRIFT_S):
                if line not in self._said:
                    self._said.add(line)
                    self._say(line)

    def drift(self, after_s: float = 0.0) -> list[str]:
        """Differences of the queue from the plan, as text; empty if there are none.

        Args:
            after_s: Seconds after its start from which a job is checked, as Slurm takes a moment to run it.
        """
        self._look(now=True)
        found = []
        for job, attempt in self._attempts.items():
            if time.monotonic() < attempt.started_s + after_s:
                continue
            row, host = self._rows.get(self._numbers[job]), self._hosts[attempt.cluster]
            planned = f"{job} is planned on {host} with {attempt.cpus} cpus"
            if row is None:
                found.append(f"{planned}; Slurm has no such job any more")
            elif row.state == "PENDING":
                found.append(f"{planned}; it waits: {row.reason}")
            elif row.state != "RUNNING" and row.state in _ACTIVE:
                found.append(f"{planned}; it is {row.state.lower()}")
            elif row.state == "RUNNING" and (row.hosts, row.cpus) != (host, attempt.cpus):
                found.append(f"{planned}; it runs on {row.hosts} with {row.cpus}")
        others = _queue("--states=RUNNING", f"--nodelist={','.join(self._hosts)}")
        found += [
            f"job {row.number} of {row.user} runs on {row.hosts} with {row.cpus} cpus, which the plan does not know"
            for row in others
            if not row.name.startswith(self._token)
        ]
        return found

    def _own(self, job: str, *, ended: bool = False) -> bool:
        """Whether Slurm has a job that was submitted here, and has not ended it; with `ended`, or has."""
        row = self._rows.get(self._numbers.get(job, ""))
        return row is not None and (ended or row.state == "PENDING" or row.state in _ACTIVE)

    def _look(self, *, now: bool = False) -> None:
        """Ask Slurm for the jobs that were submitted here."""
        if now or time.monotonic() > self._looked_s + _LOOK_S:
            rows = _queue("--states=all", f"--user={getpass.getuser()}")
            # A number that comes round again is somebody else's.
            self._rows = {row.number: row for row in rows if row.name.startswith(self._token)}
            self._looked_s = time.monotonic()

    def _await(self, done: Callable[[], bool], label: str) -> None:
        until_s = time.monotonic() + _GONE_S
        self._look(now=True)
        while not done():
            if time.monotonic() > until_s:
                raise LabError(f"Slurm did not {label} within {_GONE_S:g} s; see `squeue --me`")
            time.sleep(_LOOK_S)
            self._look(now=True)


def _states_of_hosts(options: Sequence[str]) -> dict[str, str]:
    told = _call("sinfo", "--noheader", "--Node", "--format=%N %T", *options)
    return {host: state.rstrip("~#!%$@^-") for host, state in (line.split() for line in told.splitlines())}


def _queue(*options: str) -> list[QueueRow]:
    told = _call("squeue", "--noheader", f"--Format={_COLUMNS}", *options)
    rows = [[word.strip() for word in line.split("|")] for line in told.splitlines() if line.strip()]
    return [
        QueueRow(number, name, state, hosts, asked, int(cpus), reason, user)
        for number, name, state, hosts, asked, cpus, reason, user, *_ in rows
    ]


def _call(*argv: str) -> str:
    """Run a command of Slurm and return what it prints; again, while its controller is away.

    Raises:
        InputError: It is not there.
        LabError: It failed, or did not end.
    """
    until_s = time.monotonic() + _AWAY_S
    while (done := _called(argv)).returncode and _AWAY in done.stderr and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if done.returncode:
        raise LabError(f"`{shlex.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout


def _called(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    shown = shlex.join(argv)
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_CALL_S)
    except OSError as error:
        raise InputError(
            f"`{shown}` cannot be run: {error.strerror}; put Slurm's commands on the path"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{shown}` did not end within {_CALL_S:g} s; see `scontrol ping`") from error
