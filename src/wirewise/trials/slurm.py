"""Ranks on the hosts of an allocation of Slurm, started by srun and heard like those of a lab."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import msgspec

from wirewise.allocation import Allocation, current_allocation
from wirewise.decoding import decode_json
from wirewise.errors import InputError, LabError, PeerError
from wirewise.lab.job import JobOptions, JobResult, Process, RunningJob
from wirewise.lab.launch import LAUNCHERS
from wirewise.trials import slurm_host
from wirewise.trials.slurm_host import HostFacts, StartRanks, facts_here

__all__ = ["SlurmHosts", "SlurmJob", "disagreement", "needed_allocation"]

_CHECK_S = 120.0
"""Seconds that hosts have to start Python and to say what they have."""
_GRACE_S = 20.0
_TAIL = 60
_LABEL = re.compile(r" *(\d+): ?(.*)")
"""How srun marks the line of a task."""
_ENDED = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(.*))")
_LOST = re.compile(r"srun: error: Node failure on (\S+)")
_SIGNALS = {signal.strsignal(number): -number for number in signal.valid_signals()}


def needed_allocation() -> Allocation:
    """The allocation that this process runs in.

    Raises:
        InputError: There is none, or it has one host.
    """
    found = current_allocation()
    if found is None:
        raise InputError(
            "this is no allocation of Slurm (SLURM_JOB_ID is not set); start it by `salloc -N2 -n2 wirewise ...`, or "
            "submit what `wirewise slurm script` prints"
        )
    if len(found.hosts) < 2:
        raise InputError(
            f"allocation {found.job} has one host, {found.hosts[0]}, whose ranks no network joins; ask Slurm for more "
            "(-N2), or say --network lab"
        )
    return found


def disagreement(facts: Sequence[HostFacts]) -> str | None:
    """How the hosts that were asked differ from this process in what they run; None: they do not."""
    own = facts_here()
    others = [one for one in facts if (one.python, one.wirewise) != (own.python, own.wirewise)]
    if not others:
        return None
    told = ", ".join(
        f"host {one.host} has Python {one.python} with wirewise {one.wirewise}" for one in others
    )
    return (
        f"{told}; expected Python {own.python} with wirewise {own.wirewise}, as on {own.host}, where this was started: "
        "use one environment on a folder that all hosts share"
    )


class SlurmHosts:
    """Hosts of the allocation that this process runs in, to start ranks on as on a `Lab`; for use in a `with` block.

    Args:
        hosts: Number of hosts to use, the first ones; 0: all.

    Raises:
        InputError: There is no allocation, or it has fewer hosts, or one.
    """

    network = "slurm"

    def __init__(self, hosts: int = 0) -> None:
        self.allocation = needed_allocation()
        names = self.allocation.hosts
        if not 0 <= hosts <= len(names):
            raise InputError(
                f"got {hosts} hosts, and allocation {self.allocation.job} has {len(names)}: {', '.join(names)}; ask "
                f"for at most {len(names)} (--hosts), or Slurm for more (-N{hosts})"
            )
        self.names = names[: hosts or None]
        self.num_hosts = len(self.names)
        self._ports: list[int] = []

    def __enter__(self) -> Self:
        self._ports = [self._check()]
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def address(self, host: int) -> str:
        """Name at which the others reach a host."""
        return self.names[host]

    def srun(self, per_host: int, *options: str) -> list[str]:
        """The command that starts so many processes on each host, up to their own command."""
        threads = os.environ.get("SLURM_CPUS_PER_TASK")
        return [
            "srun", f"--nodes={self.num_hosts}", f"--nodelist={','.join(self.names)}",
            f"--ntasks={self.num_hosts * per_host}", f"--ntasks-per-node={per_host}", "--distribution=block",
            # Steps of the same job that run meanwhile, such as the shell that this is in, have the same processors.
            "--overlap", "--mpi=none", "--input=none", "--wait=0", "--kill-on-bad-exit=0", "--no-kill",
            *([f"--cpus-per-task={threads}"] if threads else []), *options,
        ]  # fmt: skip

    def _check(self) -> int:
        """Have every host say what it has; a port that was free on the first one.

        Raises:
            InputError: Hosts have another Python or another wirewise than this process.
            PeerError: Hosts do not answer.
        """
        argv = [*self.srun(1), sys.executable, "-m", slurm_host.__name__]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_CHECK_S)
        except subprocess.TimeoutExpired as error:
            raise PeerError(
                f"the hosts {', '.join(self.names)} did not answer srun within {_CHECK_S:g} s; see `sinfo` and "
                "`squeue --steps`"
            ) from error
        except OSError as error:
            raise InputError(
                f"srun cannot be run: {error.strerror}; put Slurm's commands on the path"
            ) from error
        if done.returncode:
            raise PeerError(
                f"{sys.executable} with wirewise cannot be run on each of {', '.join(self.names)}; use one environment "
                f"on a folder that all hosts share. srun says: {_first_lines(done.stderr)}"
            )
        facts = [
            decode_json(line.encode(), HostFacts) for line in done.stdout.splitlines() if line.startswith("{")
        ]
        if wrong := disagreement(facts):
            raise InputError(wrong)
        return next(one.port for one in facts if one.host.split(".")[0] == self.names[0].split(".")[0])

    def launch(
        self,
        command: Sequence[str] | Sequence[Sequence[str]],
        *,
        processes_per_host: int = 1,
        launcher: str = "torchrun",
        **options: Unpack[JobOptions],
    ) -> SlurmJob:
        """Start one job over all hosts; arguments as of `Lab.launch`.

        Raises:
            InputError: The launcher is unknown, or there are commands for another number of hosts.
        """
        folder, tasks = options.get("folder"), processes_per_host if launcher == "direct" else 1
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        argv = self.argv(command, processes_per_host, launcher, "--label", folder=folder)
        return SlurmJob(argv, self.names, tasks, **options)

    def argv(
        self,
        command: Sequence[str] | Sequence[Sequence[str]],
        per_host: int,
        launcher: str,
        *more: str,
        folder: Path | None = None,
    ) -> list[str]:
        """The command with srun that starts a job over all hosts.

        Args:
            command: One command for all hosts, or one for each, as of `Lab.launch`.
            per_host: Ranks on each host.
            launcher: "torchrun", "direct" or "none".
            more: Further options of srun.
            folder: Folder that every host must see.

        Raises:
            InputError: The launcher is unknown, or there are commands for another number of hosts.
        """
        one = all(isinstance(word, str) for word in command)
        commands = [[str(word) for word in words] for words in ([command] if one else command)]
        if launcher not in LAUNCHERS or len(commands) not in (1, self.num_hosts) or not all(commands):
            raise InputError(
                f"got {len(commands)} commands for launcher {launcher!r}; expected one for all hosts or "
                f"{self.num_hosts}, none of them empty, and one of {', '.join(LAUNCHERS)}"
            )
        port = self._ports.pop() if self._ports else self._check()
        order = StartRanks(commands, launcher, per_host, port, str(folder.resolve()) if folder else "")
        srun = self.srun(per_host if launcher == "direct" else 1, *more)
        return [*srun, sys.executable, "-m", slurm_host.__name__, msgspec.json.encode(order).decode()]

    def run(self, command: Sequence[str] | Sequence[Sequence[str]], **options: Any) -> JobResult:
        """Run one job over all hosts and wait for its end; arguments and errors as `launch`."""
        return self.launch(command, **options).wait()


class SlurmJob:
    """Processes of one srun, until all have ended, or one has failed, or the time is over; as `lab.RunningJob`.

    Args:
        argv: Command with srun and its option --label.
        hosts: Names of the hosts.
        per_host: Processes on each.
        options: Further arguments of `RunningJob`.

    Raises:
        LabError: srun cannot be started, or the folder cannot be written.
    """

    def __init__(
        self, argv: Sequence[str], hosts: Sequence[str], per_host: int, **options: Unpack[JobOptions]
    ) -> None:
        self._names, self._per_host = list(hosts), per_host
        self._hosts = [host for host in range(len(hosts)) for _ in range(per_host)]
        self._codes = [0] * len(self._hosts)
        self._tails = [deque[str](maxlen=_TAIL) for _ in self._hosts]
        self._said = deque[str](maxlen=_TAIL)
        """What srun itself has said."""
        self._first_failed: int | None = None
        self._listener: Callable[[int, str], None] = options.get("listener") or (lambda *_: None)
        self._grace_s = options.get("grace_s", _GRACE_S)
        self._grace: threading.Timer | None = None
        self._logs = _logs(options.get("folder"), len(hosts))
        more: JobOptions = {
            "timeout_s": options.get("timeout_s"),
            "environment": options.get("environment"),
            "listener": self._hear,
        }
        self._job = RunningJob([Process(0, argv, {})], **more)

    @property
    def running(self) -> bool:
        """Whether a process of the job may still be alive."""
        return self._job.running

    def wait(self) -> JobResult:
        """Wait for the end; an interruption of the wait, such as Ctrl-C, ends the job.

        Raises:
            LabError: A log could not be written.
        """
        try:
            done = self._job.wait()
        finally:
            self._close()
        if done.exit_code and not any(self._codes):
            # It never came to the processes, or does not say which failed.
            self._codes[0] = done.exit_codes[0] or done.exit_code
            self._tails[0] += self._said
        codes, tails = list(self._codes), [list(tail) for tail in self._tails]
        return JobResult(codes, self._hosts, tails, done.seconds, done.timed_out, self._first_failed)

    def stop(self) -> None:
        """End all processes now and wait until they are gone."""
        self._job.stop()
        self._close()

    def _close(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace.join()
        for log in self._logs:
            log.close()

    def _hear(self, _: int, line: str) -> None:
        if match := _LABEL.fullmatch(line):
            rank, text = int(match[1]), match[2]
            host = rank // self._per_host
            self._tails[rank].append(text)
            if self._logs:
                self._logs[host].write(text + "\n")
                self._logs[host].flush()
            self._listener(host, text)
            return
        self._said.append(line)
        if match := _ENDED.match(line):
            how = match[4] or ""
            code = int(match[3]) if match[3] else _SIGNALS.get(how.removesuffix(" (core dumped)"), 1)
            self._note_end(_numbers(match[2]), code, line)
        elif match := _LOST.match(line):
            lost = self._names.index(match[1]) if match[1] in self._names else 0
            self._note_end([n for n, host in enumerate(self._hosts) if host == lost], -signal.SIGKILL, line)

    def _note_end(self, ranks: Sequence[int], code: int, line: str) -> None:
        for rank in ranks:
            self._codes[rank] = self._codes[rank] or code
            if code < 0:
                self._tails[rank].append(line)
        if self._first_failed is None:
            self._first_failed = ranks[0]
            if self._grace_s != float("inf"):
                self._grace = threading.Timer(self._grace_s, self._job.stop)
                self._grace.daemon = True
                self._grace.start()


def _numbers(told: str) -> list[int]:
    """Numbers that are told in short, such as "0-2,5"."""
    found: list[int] = []
    for part in told.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _logs(folder: Path | None, hosts: int) -> list[Any]:
    if folder is None:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [(folder / f"host-{host}.log").open("w") for host in range(hosts)]
    except OSError as error:
        raise LabError(
            f"logs cannot be written to {folder}: {error.strerror}; free space or choose another folder"
        ) from error


def _first_lines(text: str) -> str:
    return " ".join(text.strip().splitlines()[:4]) or "nothing"
