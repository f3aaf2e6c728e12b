"""Processes of this host: children, sessions, death with the parent, and race-free signals.

Needs nothing but the standard library, as it is also the first process of an emulated host:

    python -ISs processes.py PROGRAM ARGUMENT...

starts a daemon and reaps orphans, as a machine's init does. Slurm waits until no process of a job is left, zombies
included, and polls after 1, 3 and 7 s; the init of some containers takes longer to reap.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

__all__ = [
    "adopt_orphans",
    "children_of",
    "die_with_parent",
    "dying_with_parent",
    "end_session",
    "exit_at_once",
    "is_cleaner",
    "is_computing",
    "is_own_child",
    "reap",
    "signal_all",
    "signal_group",
    "signal_process",
    "start_ticks",
]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""Helpers that remove shared memory once their users are gone, and then end by themselves."""
_ROUND_S = 0.01


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process by SIGKILL when its parent ends.

    Args:
        parent: Expected process id of the parent; this process ends at once if the parent is already gone. Defaults
            to no check.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def dying_with_parent() -> list[str]:
    """Command prefix that makes the kernel kill a command with the thread that starts it, if available."""
    # A function between fork and exec would be simpler, but is not safe where other threads run.
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def adopt_orphans() -> None:
    """Make this process the reaper of its orphaned descendants, in place of init."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> set[int]:
    """Process ids of the children of a process."""
    found: set[int] = set()
    try:
        for listing in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                found |= {int(child) for child in listing.read_text().split()}
        if Path(f"/proc/{pid}/task/{pid}/children").exists():
            return found
    except OSError:
        return found
    # Kernels without CONFIG_PROC_CHILDREN.
    return {child for child, fields in _stats() if int(fields[1]) == pid}


def end_session(session: int, limit_s: float = 5.0) -> None:
    """Kill all processes of a session, including those started meanwhile.

    Args:
        session: Process id of its first process.
        limit_s: Seconds after which processes that survive SIGKILL are abandoned.
    """

    def belongs(pid: int) -> bool:
        fields = _stat(pid)
        return fields is not None and int(fields[3]) == session and fields[0] not in "ZX"

    deadline = time.monotonic() + limit_s
    while signal_all((pid for pid, _ in _stats()), signal.SIGKILL, belongs):
        if time.monotonic() > deadline:
            return
        time.sleep(_ROUND_S)


def exit_at_once(code: int) -> NoReturn:
    """End this process once its output is flushed, without exit handlers and without waiting for threads."""
    # A stream may be closed, or its pipe without a reader.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def signal_process(pid: int, number: int, is_target: Callable[[int], bool]) -> bool:
    """Send a signal to a process, if it is still the intended one.

    Args:
        pid: Process id, which may have been reused.
        number: Number of the signal.
        is_target: Whether the process of this id is the intended one.

    Returns:
        False if the process is gone, is another one, or may not be signalled.
    """
    try:
        # Held before the look at the process: an id that is given again later leads to nobody by it.
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_target(pid):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def signal_all(pids: Iterable[int], number: int, is_target: Callable[[int], bool]) -> int:
    """Send a signal to the intended ones of some processes; returns their number."""
    # Most of all processes are others: the descriptor is only opened for the rest.
    return sum(signal_process(pid, number, is_target) for pid in pids if is_target(pid))


def signal_group(leader: subprocess.Popen[Any], number: int) -> None:
    """Signal the process group led by a child, unless the child has ended."""
    # Until its end is asked for, its id, and so that of its group, is given to nobody else.
    if leader.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, number)


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks. None if it has ended."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def is_cleaner(pid: int) -> bool:
    """Whether a process is a helper that only cleans up shared memory after others."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in _CLEANERS)


def is_own_child(pid: int) -> bool:
    """Whether a process is a child of this one that has not been waited for."""
    fields = _stat(pid)
    return fields is not None and int(fields[1]) == os.getpid()


def is_computing(pid: int) -> bool:
    """Whether a thread of a process is running or runnable."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError, IndexError):
            if path.read_text().rsplit(")", 1)[1].split()[0] == "R":
                return True
    return False


def reap(argv: list[str]) -> int:
    """Run a command, reaping all orphans until it ends; signals to the group are left to the command.

    Returns:
        Its exit code, or 128 plus the signal that ended it. It is killed when this process is.
    """
    adopt_orphans()
    own = os.getpid()
    pid = os.fork()
    if not pid:
        die_with_parent(own)
        os.execvp(argv[0], argv)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Process id of each process, and its fields in /proc from the state on."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            yield int(entry.name), fields


def _stat(pid: int) -> list[str] | None:
    try:
        # The command in parentheses may hold spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() or None
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(reap(sys.argv[1:]))
