"""A running set of ranks: start their processes, collect output and exits, end them together."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypedDict, Unpack

from wirewise.errors import LabError
from wirewise.hosts.keeper import END_PROCESSES_OF_JOB, JOB_VARIABLE, CleanupShell
from wirewise.hosts.processes import dying_with_parent, signal_group
from wirewise.hosts.ranks import GRACE_S, RankStates

__all__ = ["TAIL", "JobOptions", "JobResult", "Listener", "Process", "RunningJob"]

Listener = Callable[[int, str], None]
"""Function of a host's number and a line that one of its processes printed."""

TAIL = 60
"""Number of output lines that are kept for each rank."""
_STOP_S = 5.0
_TICK_S = 0.02


@dataclass(frozen=True)
class Process:
    """Command to start on a host."""

    host: int
    argv: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class JobResult:
    """Outcome of a job."""

    exit_codes: list[int]
    """Exit code of each process, in the order of the hosts; negative if a signal ended it."""
    hosts: list[int] = field(default_factory=list)
    """Host of each process."""
    tails: list[list[str]] = field(default_factory=list)
    """Last lines of each process."""
    seconds: float = 0.0
    timed_out: bool = False
    first_failed: int | None = None
    """Index of the process that failed first; the others failed because of it, or were stopped."""

    @property
    def exit_code(self) -> int:
        """0 if all succeeded, 124 after a timeout, otherwise the code of the process that failed first."""
        if self.timed_out:
            return 124
        if self.first_failed is None:
            return next((_status(code) for code in self.exit_codes if code), 0)
        return _status(self.exit_codes[self.first_failed])

    @property
    def ok(self) -> bool:
        """Whether all processes succeeded."""
        return not any(self.exit_codes)


def _status(code: int) -> int:
    """Exit status as a shell gives it."""
    return code if code >= 0 else 128 - code


class JobOptions(TypedDict, total=False):
    """Options of a job that callers set."""

    environment: Mapping[str, str] | None
    """Variables besides this process's own."""
    folder: Path | None
    """Folder for one log file per host, `host-N.log`."""
    listener: Listener | None
    """Callback for each output line; runs in threads of the job."""
    timeout_s: float | None
    """Seconds after which the job is ended."""
    grace_s: float
    """Grace period of the other processes after one failed, in seconds. Defaults to 20."""


class RunningJob:
    """Processes that run until all have ended, one has failed, or the time limit is reached.

    When one fails, the others have `grace_s` seconds to notice and report it; then they are ended. No process
    outlives its owner, however that dies: the kernel ends the processes started here, and a keeper their descendants.

    Each process is a rank, or starts the ranks of a host as torchrun does. A subclass whose processes carry the
    output of several ranks, as srun does, overrides `_on_line` and `_on_exit`.

    Args:
        processes: Commands, with their hosts.
        ranks: Host of each rank. Defaults to one rank per process.
        timeline: Calls to make, with their time after the start, in seconds.
        options: Options with defaults in this class.

    Raises:
        LabError: A command cannot be started, or the folder is not writable.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        ranks: Sequence[int] | None = None,
        timeline: Sequence[tuple[float, Callable[[], object]]] = (),
        **options: Unpack[JobOptions],
    ) -> None:
        timeout_s, folder = options.get("timeout_s"), options.get("folder")
        if timeout_s is not None and not timeout_s > 0:
            raise LabError(f"timeout is {timeout_s} s; expected a number above 0, or none")
        self._processes = list(processes)
        self._hosts = [p.host for p in processes] if ranks is None else list(ranks)
        self.states = RankStates(len(self._hosts), options.get("grace_s", GRACE_S))
        """Which ranks have ended, and how, before the rest was ended."""
        self._mark = secrets.token_hex(8)
        self._environment = dict(options.get("environment") or {})
        self._listener = options.get("listener")
        self._timeline = sorted(timeline, key=lambda entry: entry[0])
        self._timeout_s, self._timed_out = timeout_s, False
        self._tails = [deque[str](maxlen=TAIL) for _ in self._hosts]
        self._logs = _open_logs(folder, self._hosts)
        self._keeper = CleanupShell(END_PROCESSES_OF_JOB, [f"{JOB_VARIABLE}={self._mark}"])
        self._result = JobResult([])
        self._error: BaseException | None = None
        self._stop, self._started, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="wirewise-job", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._ended.is_set() and self._error is not None:
            raise self._error

    @property
    def running(self) -> bool:
        """Whether a process of the job may still be alive."""
        return not self._ended.is_set()

    def wait(self) -> JobResult:
        """Wait until the job ends; an interruption of the wait, such as Ctrl-C, ends the job.

        Raises:
            LabError: A fault of the timeline could not be injected, or a log could not be written.
        """
        try:
            self._ended.wait()
        except BaseException:
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        return self._result

    def stop(self) -> None:
        """End all processes now, and wait until they are gone."""
        self._stop.set()
        self._ended.wait()

    def _on_line(self, process: int, line: str) -> None:
        """Take in a line that a process wrote."""
        self._note_line(process, line)

    def _on_exit(self, process: int, code: int) -> None:
        """Take in the end of a process, which was not ended here."""
        self.states.note_end(process, code)

    def _exit_codes(self, of_processes: Sequence[int]) -> list[int]:
        """Exit code of each rank, once all have ended."""
        return list(of_processes)

    def _note_line(self, rank: int, line: str) -> None:
        """Keep a line of a rank, and pass it on."""
        self._tails[rank].append(line)
        host = self._hosts[rank]
        if (log := self._logs.get(host)) is not None:
            try:
                log.write(line + "\n")
                log.flush()
            except OSError as error:
                raise _unwritable(log.name, error) from error
        if self._listener is not None:
            self._listener(host, line)

    def _supervise(self) -> None:
        # The processes are started by the thread that watches them: they die with it, not with the caller's.
        started, running = time.monotonic(), list[subprocess.Popen[str]]()
        readers: list[threading.Thread] = []
        try:
            for number, process in enumerate(self._processes):
                running.append(self._start(process))
                readers.append(threading.Thread(target=self._read, args=(running[-1], number), daemon=True))
                readers[-1].start()
            self._started.set()
            self._watch(running, started)
        except BaseException as error:
            self._error = error
        finally:
            _end(running, self._keeper)
            for reader in readers:
                reader.join(timeout=_STOP_S)
            for log in self._logs.values():
                try:
                    log.close()
                except OSError as error:
                    self._fail(_unwritable(log.name, error))
            codes = self._exit_codes([r.returncode for r in running])
            tails, seconds = [list(tail) for tail in self._tails], time.monotonic() - started
            failed = self.states.first_failed
            self._result = JobResult(codes, self._hosts, tails, seconds, self._timed_out, failed)
            self._ended.set()
            self._started.set()

    def _watch(self, running: Sequence[subprocess.Popen[str]], started: float) -> None:
        left = dict(enumerate(running))
        while True:
            elapsed = time.monotonic() - started
            while self._timeline and self._timeline[0][0] <= elapsed:
                self._timeline.pop(0)[1]()
            for number in [number for number, r in left.items() if r.poll() is not None]:
                self._on_exit(number, left.pop(number).returncode)
            self._timed_out = bool(left) and self._timeout_s is not None and elapsed > self._timeout_s
            if not left or self._timed_out or self.states.overdue or self._stop.is_set():
                return
            time.sleep(_TICK_S)

    def _start(self, process: Process) -> subprocess.Popen[str]:
        marked = {JOB_VARIABLE: self._mark}
        try:
            return subprocess.Popen(
                [*dying_with_parent(), *process.argv],
                env={**os.environ, **process.environment, **self._environment, **marked},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise LabError(
                f"cannot start {process.argv[0]!r}: {error.strerror}; check the command"
            ) from error

    def _read(self, running: subprocess.Popen[str], number: int) -> None:
        assert running.stdout is not None
        with running.stdout:
            for line in running.stdout:
                try:
                    self._on_line(number, line.rstrip("\n"))
                except Exception as error:
                    # Not raised here: nobody waits for a reader, and a process whose lines are not read hangs.
                    self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the job; whoever waits for it gets the first error."""
        self._error = self._error or error
        self._stop.set()


def _open_logs(folder: Path | None, hosts: Sequence[int]) -> dict[int, IO[str]]:
    if folder is None:
        return {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return {h: (folder / f"host-{h}.log").open("w") for h in sorted(set(hosts))}
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(place: Path | str, error: OSError) -> LabError:
    return LabError(
        f"logs cannot be written to {place}: {error.strerror}; free space or choose another folder"
    )


def _end(running: Sequence[subprocess.Popen[str]], keeper: CleanupShell) -> None:
    """SIGTERM to every process group that is left, later SIGKILL to all that carry the job's mark."""
    for r in running:
        signal_group(r, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while any(r.poll() is None for r in running) and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    # torchrun gives each worker a session of its own, so one that outlived it is in no group of ours.
    keeper.release()
    for r in running:
        signal_group(r, signal.SIGKILL)
        r.wait()
