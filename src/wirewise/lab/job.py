"""Start the processes of a job, hear what they say, end them together."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypedDict, Unpack

from wirewise.errors import LabError
from wirewise.lab.keeper import END_PROCESSES_OF_JOB, JOB_VARIABLE, Keeper

__all__ = [
    "JobOptions",
    "JobResult",
    "Listener",
    "Process",
    "RunningJob",
    "dying_with_parent",
    "signal_group",
]

Listener = Callable[[int, str], None]
"""Called with a host's number and a line that one of its processes printed."""

_TAIL = 60
_STOP_S = 5.0
_TICK_S = 0.02


@dataclass(frozen=True)
class Process:
    """A command to start on a host."""

    host: int
    argv: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class JobResult:
    """How a job ended."""

    exit_codes: list[int]
    """One a process, in the order of the hosts; negative: ended by that signal."""
    hosts: list[int] = field(default_factory=list)
    """Host of each process."""
    tails: list[list[str]] = field(default_factory=list)
    """Last lines of each process."""
    seconds: float = 0.0
    timed_out: bool = False
    first_failed: int | None = None
    """Number of the process that failed first; the others were ended for it, or noticed."""

    @property
    def exit_code(self) -> int:
        """0 if all ended well, 124 after a timeout, otherwise that of the process that failed first."""
        if self.timed_out:
            return 124
        if self.first_failed is None:
            return next((_status(code) for code in self.exit_codes if code), 0)
        return _status(self.exit_codes[self.first_failed])

    @property
    def ok(self) -> bool:
        """Whether all processes ended well."""
        return not any(self.exit_codes)


def _status(code: int) -> int:
    """Exit status as a shell gives it."""
    return code if code >= 0 else 128 - code


class JobOptions(TypedDict, total=False):
    """What whoever starts a job may say of it."""

    environment: Mapping[str, str] | None
    """Variables besides this process's own."""
    folder: Path | None
    """Folder that takes one log file a host, `host-N.log`."""
    listener: Listener | None
    """Called with every line, in threads of the job."""
    timeout_s: float | None
    """Seconds after which the job is ended."""
    grace_s: float
    """Seconds that the others have to end by themselves after one process failed; by default 20."""


class RunningJob:
    """Processes that run until all have ended, one has failed, or the time is over.

    When one fails, the others have `grace_s` to notice and to say what they saw; then they are ended. No
    process outlives its owner, however that dies: the kernel ends those that were started here, and a keeper
    whatever they have started.

    Args:
        processes: What to start where.
        timeline: Calls to make at so many seconds after the start.
        options: What callers may leave to this class.

    Raises:
        LabError: A command cannot be started, or the folder cannot be written.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        timeline: Sequence[tuple[float, Callable[[], object]]] = (),
        **options: Unpack[JobOptions],
    ) -> None:
        timeout_s, folder = options.get("timeout_s"), options.get("folder")
        if timeout_s is not None and not timeout_s > 0:
            raise LabError(f"timeout is {timeout_s} s; expected a number above 0, or none")
        self._processes = list(processes)
        self._mark = secrets.token_hex(8)
        self._environment = dict(options.get("environment") or {})
        self._listener = options.get("listener")
        self._timeline = sorted(timeline, key=lambda entry: entry[0])
        self._timeout_s, self._grace_s = timeout_s, options.get("grace_s", 20.0)
        self._tails = [deque[str](maxlen=_TAIL) for _ in self._processes]
        self._logs = _open_logs(folder, self._processes)
        self._keeper = Keeper(END_PROCESSES_OF_JOB, [f"{JOB_VARIABLE}={self._mark}"])
        self._result = JobResult([], [p.host for p in self._processes])
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
        """Wait for the end; an interruption of the wait, such as Ctrl-C, ends the job.

        Raises:
            LabError: A fault of the timeline could not be carried out, or a log could not be written.
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
        """End all processes now and wait until they are gone."""
        self._stop.set()
        self._ended.wait()

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
            self._result.exit_codes = [r.returncode for r in running]
            self._result.tails = [list(tail) for tail in self._tails]
            self._result.seconds = time.monotonic() - started
            self._ended.set()
            self._started.set()

    def _watch(self, running: Sequence[subprocess.Popen[str]], started: float) -> None:
        failed_s: float | None = None
        while _alive(running):
            elapsed = time.monotonic() - started
            while self._timeline and self._timeline[0][0] <= elapsed:
                self._timeline.pop(0)[1]()
            if failed_s is None:
                failed_s = self._note_failure(running, elapsed)
            self._result.timed_out = self._timeout_s is not None and elapsed > self._timeout_s
            over = failed_s is not None and elapsed > failed_s + self._grace_s
            if self._result.timed_out or over or self._stop.is_set():
                return
            time.sleep(_TICK_S)
        self._note_failure(running, 0.0)

    def _note_failure(self, running: Sequence[subprocess.Popen[str]], elapsed: float) -> float | None:
        failed = next((number for number, r in enumerate(running) if r.returncode), None)
        if failed is None or self._result.first_failed is not None:
            return None
        self._result.first_failed = failed
        return elapsed

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
                self._tails[number].append(line.rstrip("\n"))
                try:
                    self._pass_on(self._processes[number].host, line)
                except Exception as error:
                    # Not raised here: nobody waits for a reader, and a process whose lines are not read hangs.
                    self._fail(error)

    def _pass_on(self, host: int, line: str) -> None:
        log = self._logs.get(host)
        if log is not None:
            try:
                log.write(line)
                log.flush()
            except OSError as error:
                raise _unwritable(log.name, error) from error
        if self._listener is not None:
            self._listener(host, line.rstrip("\n"))

    def _fail(self, error: BaseException) -> None:
        """End the job; whoever waits for it gets the first error."""
        self._error = self._error or error
        self._stop.set()


def _open_logs(folder: Path | None, processes: Sequence[Process]) -> dict[int, IO[str]]:
    if folder is None:
        return {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return {h: (folder / f"host-{h}.log").open("w") for h in sorted({p.host for p in processes})}
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(place: Path | str, error: OSError) -> LabError:
    return LabError(
        f"logs cannot be written to {place}: {error.strerror}; free space or choose another folder"
    )


def dying_with_parent() -> list[str]:
    """Command before a command that has the kernel end it with the thread that starts it, where there is one."""
    # A function between fork and exec would be simpler, but is not safe where other threads run.
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _end(running: Sequence[subprocess.Popen[str]], keeper: Keeper) -> None:
    """SIGTERM to every process group that is left, later SIGKILL to all that carry the job's mark."""
    for r in running:
        if r.poll() is None:
            signal_group(r.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while _alive(running) and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    # torchrun gives each worker a session of its own, so one that outlived it is in no group of ours.
    keeper.release()
    for r in running:
        if r.poll() is None:
            signal_group(r.pid, signal.SIGKILL)
        r.wait()


def _alive(running: Sequence[subprocess.Popen[str]]) -> int:
    """Number of processes that have not ended; every one is asked, so each exit code is known from now on."""
    return sum(r.poll() is None for r in running)


def signal_group(pid: int, number: int) -> None:
    """Signal a process group, which may be gone."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
