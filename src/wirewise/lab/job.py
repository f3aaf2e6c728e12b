"""Start the processes of a job, hear what they say, end them together."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

__all__ = ["JobResult", "Listener", "Process", "supervise"]

Listener = Callable[[int, str], None]
"""Called with a host's number and a line that one of its processes printed."""

_GRACE_S = 20.0
"""After one process failed the others get so long to notice and to say what they saw."""
_TAIL = 60
_PR_SET_PDEATHSIG = 1


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
    tails: list[list[str]] = field(default_factory=list)
    """Last lines of each process."""
    seconds: float = 0.0
    timed_out: bool = False

    @property
    def exit_code(self) -> int:
        """0 if all processes ended well, otherwise that of the first one that did not."""
        return next((code if code > 0 else 128 - code for code in self.exit_codes if code), 0)

    @property
    def ok(self) -> bool:
        """Whether all processes ended well."""
        return not any(self.exit_codes)


def supervise(
    processes: Sequence[Process],
    *,
    environment: Mapping[str, str],
    folder: Path | None,
    listener: Listener | None,
    timeline: Sequence[tuple[float, Callable[[], object]]],
    timeout_s: float | None,
) -> JobResult:
    """Run all processes to their end; when one fails, the others are ended after a grace period.

    No process outlives this one: the kernel ends them when their parent dies.

    Args:
        processes: What to start where.
        environment: Variables for all of them.
        folder: Takes `host-N.log` files.
        listener: Hears every line.
        timeline: Calls to make at so many seconds after the start.
        timeout_s: End everything after so many seconds.
    """
    started = time.monotonic()
    running = [_start(p, environment) for p in processes]
    tails = [deque[str](maxlen=_TAIL) for _ in running]
    readers = [
        threading.Thread(target=_read, args=(r, p, tail, folder, listener), daemon=True)
        for r, p, tail in zip(running, processes, tails, strict=True)
    ]
    for reader in readers:
        reader.start()
    result = JobResult(exit_codes=[])
    try:
        _watch(running, sorted(timeline, key=lambda t: t[0]), started, timeout_s, result)
    finally:
        _end(running)
        for reader in readers:
            reader.join(timeout=5)
    result.exit_codes = [r.returncode for r in running]
    result.tails = [list(tail) for tail in tails]
    result.seconds = time.monotonic() - started
    return result


def _watch(
    running: Sequence[subprocess.Popen[str]],
    timeline: list[tuple[float, Callable[[], object]]],
    started: float,
    timeout_s: float | None,
    result: JobResult,
) -> None:
    failed_s: float | None = None
    while any(r.poll() is None for r in running):
        elapsed = time.monotonic() - started
        while timeline and timeline[0][0] <= elapsed:
            timeline.pop(0)[1]()
        if failed_s is None and any(r.returncode for r in running):
            failed_s = elapsed
        result.timed_out = timeout_s is not None and elapsed > timeout_s
        if result.timed_out or (failed_s is not None and elapsed > failed_s + _GRACE_S):
            return
        time.sleep(0.02)


def _start(process: Process, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        list(process.argv),
        env={**os.environ, **process.environment, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(
    running: subprocess.Popen[str],
    process: Process,
    tail: deque[str],
    folder: Path | None,
    listener: Listener | None,
) -> None:
    log: IO[str] | None = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / f"host-{process.host}.log").open("a")
    assert running.stdout is not None
    with running.stdout:
        for line in running.stdout:
            tail.append(line.rstrip("\n"))
            if log is not None:
                log.write(line)
                log.flush()
            if listener is not None:
                listener(process.host, line.rstrip("\n"))
    if log is not None:
        log.close()


def _end(running: Sequence[subprocess.Popen[str]]) -> None:
    """SIGTERM to every process group that is left, SIGKILL after five seconds."""
    for number, wait_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for r in running:
            if r.poll() is None:
                _signal_group(r.pid, number)
        deadline = time.monotonic() + wait_s
        while any(r.poll() is None for r in running) and time.monotonic() < deadline:
            time.sleep(0.02)
    for r in running:
        # A worker that outlived its launcher is in the same group.
        _signal_group(r.pid, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
