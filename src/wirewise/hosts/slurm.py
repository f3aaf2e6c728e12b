"""Ranks on the hosts of a Slurm allocation, started by srun, as a running set like those of a lab."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Self, Unpack

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import InputError, PeerError
from wirewise.hosts import slurm_host
from wirewise.hosts.allocation import Allocation, current_allocation
from wirewise.hosts.job import TAIL, JobOptions, Process, RunningJob
from wirewise.hosts.launch import Command, HostNetwork, check_command, split_commands
from wirewise.hosts.slurm_host import HostFacts, StartRanks, host_facts

__all__ = ["SlurmHosts", "SlurmJob", "disagreement", "needed_allocation"]

_CHECK_S = 120.0
"""Seconds that hosts have to start Python and to say what they have."""
_LABEL = re.compile(r" *(\d+): ?(.*)")
"""How srun marks the line of a task."""
_ENDED = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(.*))")
_LOST = re.compile(r"srun: error: Node failure on (\S+)")
_SIGNALS = {signal.strsignal(number): -number for number in signal.valid_signals()}


def needed_allocation() -> Allocation:
    """Get the Slurm allocation of this process.

    Raises:
        InputError: There is no allocation, or it has one host.
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
    """Describe how the versions of the given hosts differ from this process's. None if they do not."""
    own = host_facts()
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


class SlurmHosts(HostNetwork):
    """Context manager of the hosts of this process's Slurm allocation, on which ranks start as on a `Lab`.

    Args:
        hosts: Number of hosts to use, the first ones; 0 for all.

    Raises:
        InputError: There is no allocation, or it has fewer hosts, or only one.
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

    def address(self, host: int) -> str:
        """Name by which other hosts reach a host."""
        return self.names[host]

    def srun(self, per_host: int, *options: str) -> list[str]:
        """Build the srun command, up to the program, that starts `per_host` processes on each host."""
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
        command: Command,
        *,
        processes_per_host: int = 1,
        launcher: str = "torchrun",
        **options: Unpack[JobOptions],
    ) -> SlurmJob:
        """Start one job over all hosts; arguments and errors as in `HostNetwork.launch`."""
        folder, tasks = options.get("folder"), processes_per_host if launcher == "direct" else 1
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        argv = self.argv(command, processes_per_host, launcher, "--label", folder=folder)
        return SlurmJob(argv, self.names, tasks, **options)

    def argv(
        self,
        command: Command,
        per_host: int,
        launcher: str,
        *more: str,
        folder: Path | None = None,
    ) -> list[str]:
        """Build the srun command that starts a job over all hosts; errors as in `HostNetwork.launch`.

        Args:
            command: One command for all hosts, or one for each.
            per_host: Ranks on each host.
            launcher: "torchrun", "direct" or "none".
            more: Further options of srun.
            folder: Folder that every host must be able to access.
        """
        commands = split_commands(command, self.num_hosts)
        for words in commands:
            check_command(words, per_host, launcher)
        port = self._ports.pop() if self._ports else self._check()
        order = StartRanks(commands, launcher, per_host, port, str(folder.resolve()) if folder else "")
        srun = self.srun(per_host if launcher == "direct" else 1, *more)
        return [*srun, sys.executable, "-m", slurm_host.__name__, msgspec.json.encode(order).decode()]


class SlurmJob(RunningJob):
    """Ranks started by one srun, whose labels attribute output and exits to ranks.

    Args:
        argv: Command with srun and its option --label.
        hosts: Names of the hosts.
        per_host: Processes per host.
        options: Further arguments of `RunningJob`.

    Raises:
        LabError: srun cannot be started, or the folder is not writable.
    """

    def __init__(
        self, argv: Sequence[str], hosts: Sequence[str], per_host: int, **options: Unpack[JobOptions]
    ) -> None:
        self._names = list(hosts)
        self._said = deque[str](maxlen=TAIL)
        """Output of srun itself."""
        super().__init__(
            [Process(0, argv, {})],
            ranks=[host for host in range(len(hosts)) for _ in range(per_host)],
            **options,
        )

    def _on_line(self, process: int, line: str) -> None:
        if match := _LABEL.fullmatch(line):
            self._note_line(int(match[1]), match[2])
            return
        self._said.append(line)
        if match := _ENDED.match(line):
            how = match[4] or ""
            code = int(match[3]) if match[3] else _SIGNALS.get(how.removesuffix(" (core dumped)"), 1)
            self._note_ends(_numbers(match[2]), code, line)
        elif match := _LOST.match(line):
            lost = self._names.index(match[1]) if match[1] in self._names else 0
            self._note_ends([n for n, host in enumerate(self._hosts) if host == lost], -signal.SIGKILL, line)

    def _note_ends(self, ranks: Sequence[int], code: int, line: str) -> None:
        for rank in ranks:
            self.states.note_end(rank, code)
            if code < 0:
                self._tails[rank].append(line)

    def _on_exit(self, process: int, code: int) -> None:
        """Nothing is known of a rank by the end of srun."""

    def _exit_codes(self, of_processes: Sequence[int]) -> list[int]:
        codes = [self.states.exit_codes.get(rank, 0) for rank in range(self.states.count)]
        if any(of_processes) and not any(codes):
            # It never came to the processes, or does not say which failed.
            codes[0] = of_processes[0]
            self._tails[0] += self._said
        return codes


def _numbers(told: str) -> list[int]:
    """Numbers that are told in short, such as "0-2,5"."""
    found: list[int] = []
    for part in told.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _first_lines(text: str) -> str:
    return " ".join(text.strip().splitlines()[:4]) or "nothing"
