"""Signals to processes on hosts of an allocation, and their clocks: `-m wirewise_papers.swift.slurm_kills`.

srun starts a process on each host, which reads one order per line: a number, and the name of a host with a process and
a signal for it. It answers with the number, its host, its two clocks, read before the signal, and whether the process
existed.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple, Self

from wirewise.errors import PeerError
from wirewise.hosts import ProcessIdentity
from wirewise.hosts.processes import signal_group
from wirewise.hosts.slurm import SlurmHosts
from wirewise_papers.swift.kills import Kill, KillSignals, StepLine

__all__ = ["SlurmKillSignals", "main"]

_START_S, _ANSWER_S, _END_S = 120.0, 10.0, 10.0
_LOOKS = 20
"""Times that all clocks are read; the quickest answer of a host counts."""


class _Answer(NamedTuple):
    host: str
    at_s: float
    clock_s: float
    done: bool
    heard: tuple[float, float]
    """Both clocks of this machine when it came."""


class SlurmKillSignals(KillSignals):
    """Signals to processes on hosts of an allocation.

    Clocks are compared by round trips, with an error of at most half the shortest one.

    Args:
        hosts: Entered hosts of the allocation, on which the processes are.

    Raises:
        PeerError: A host does not answer.
    """

    def __init__(self, hosts: SlurmHosts) -> None:
        self._hosts, self._number = hosts, 0
        self._answers: queue.SimpleQueue[tuple[int, _Answer] | str] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        argv = [*self._hosts.srun(1, "--input=all"), sys.executable, "-m", __name__]
        self._srun = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="wirewise-strikes", daemon=True)
        self._reader.start()
        try:
            self._compare_clocks()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._srun.stdin is not None
        try:
            # They end with their input.
            self._srun.stdin.close()
            self._srun.wait(_END_S)
        except (OSError, subprocess.TimeoutExpired):
            signal_group(self._srun, signal.SIGKILL)
            self._srun.wait()
        self._reader.join()

    def send(self, line: StepLine, number: int) -> Kill | None:
        """Send a signal to the process of a step; None if the process is gone.

        Raises:
            PeerError: Its host does not answer.
        """
        for one in self._ask(f"{line.host} {line.process} {number}", _ANSWER_S):
            if one.host == line.host and one.done:
                at_s, clock_s = one.at_s - self.ahead_s[one.host], one.clock_s - self.clock_ahead_s[one.host]
                return Kill(line.rank, at_s, line.process, clock_s)
        return None

    def _compare_clocks(self) -> None:
        quickest: dict[str, tuple[float, float, float]] = {}
        for look in range(_LOOKS):
            sent = time.monotonic(), time.time()
            for one in self._ask("- - 0", _ANSWER_S if look else _START_S):
                took_s = one.heard[0] - sent[0]
                ahead = (one.at_s - (sent[0] + one.heard[0]) / 2, one.clock_s - (sent[1] + one.heard[1]) / 2)
                quickest[one.host] = min(quickest.get(one.host, (took_s, *ahead)), (took_s, *ahead))
        self.ahead_s = {host: found[1] for host, found in quickest.items()}
        self.clock_ahead_s = {host: found[2] for host, found in quickest.items()}

    def _ask(self, order: str, limit_s: float) -> list[_Answer]:
        """Answers of all hosts."""
        assert self._srun.stdin is not None
        self._number += 1
        found: list[_Answer] = []
        said, until_s = "", time.monotonic() + limit_s
        try:
            self._srun.stdin.write(f"{self._number} {order}\n")
            self._srun.stdin.flush()
            while len(found) < self._hosts.num_hosts:
                told = self._answers.get(timeout=max(0.0, until_s - time.monotonic()))
                if isinstance(told, str):
                    said = told
                elif told[0] == self._number:
                    found.append(told[1])
        except (OSError, queue.Empty) as error:
            raise PeerError(
                f"{len(found)} of the hosts {', '.join(self._hosts.names)} answered within {limit_s:g} s; see `sinfo` "
                f"and `squeue --steps`. srun says: {said.strip() or 'nothing'}"
            ) from error
        return found

    def _read(self) -> None:
        assert self._srun.stdout is not None
        with self._srun.stdout:
            for line in self._srun.stdout:
                heard = time.monotonic(), time.time()
                try:
                    number, host, at_s, clock_s, done = line.split()
                    answer = _Answer(host, float(at_s), float(clock_s), done == "1", heard)
                    self._answers.put((int(number), answer))
                except ValueError:
                    self._answers.put(line)


def main() -> None:
    """Execute orders until there are no more."""
    own = os.uname().nodename
    for line in sys.stdin:
        number, host, tag, signal_number = line.split()
        at_s, clock_s, process = time.monotonic(), time.time(), ProcessIdentity.parse(tag)
        done = host == own and process is not None and process.signal(int(signal_number))
        sys.stdout.write(f"{number} {own} {at_s!r} {clock_s!r} {int(done)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
