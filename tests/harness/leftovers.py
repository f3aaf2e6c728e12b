"""What a test left behind: processes, threads, environment, namespaces, a process group."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAMESPACES = Path("/run/netns")
# Only what is left costs it; namespaces of a process that was killed in another worker are being removed by its keeper.
_GRACE_S = 15.0
_OWNED = re.compile(r"ww-(\d+)-")
# Kept for the whole session: fork servers, the codec's pool; waiters end with their group.
_LASTING_PROCESSES = (
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "wirewise.hosts.server",
)
# What pytest, torch, Triton and Lightning set by themselves.
_LASTING_VARIABLES = (
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
)
_LASTING_THREADS = ("wirewise-codec", "wirewise-wait", "rank-", "tqdm_monitor")


@dataclass(frozen=True)
class Snapshot:
    """The state of this process before a test."""

    children: frozenset[int]
    threads: frozenset[threading.Thread]
    environment: dict[str, str]
    namespaces: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            frozenset(_children()), frozenset(threading.enumerate()), _environment(), frozenset(_namespaces())
        )

    def leftovers(self) -> list[str]:
        """What is there now and was not before; things that are just ending get a short time to do so."""
        deadline = time.monotonic() + _GRACE_S
        while (found := self._living()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [*found, *self._changed_environment(), *_process_group()]

    def _living(self) -> list[str]:
        children = [
            f"child process {pid} ({_command(pid)})" for pid in _children() if pid not in self.children
        ]
        threads = [f"thread {t.name}" for t in threading.enumerate() if t not in self.threads and _counts(t)]
        spaces = [f"network namespace {name}" for name in _namespaces() if name not in self.namespaces]
        return children + threads + spaces

    def _changed_environment(self) -> list[str]:
        """Changed variables, which are put back, so that only the guilty test fails."""
        now = _environment()
        changed = [n for n in {*now, *self.environment} if now.get(n) != self.environment.get(n)]
        for name in changed:
            if name in self.environment:
                os.environ[name] = self.environment[name]
            else:
                del os.environ[name]
        return [f"environment variable {name}" for name in sorted(changed)]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _LASTING_VARIABLES}


def _children() -> Iterator[int]:
    """Looked for among all processes: a rank's process has thousands of threads, each with a list of its own."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return  # none at all, as with most tests
    own = os.getpid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and _parent(entry.path) == own:
            pid = int(entry.name)
            if not any(word in _command(pid) for word in _LASTING_PROCESSES):
                yield pid


def _parent(process: str) -> int | None:
    """The parent of a process, or None if it ended; the command's name before it may hold blanks and brackets."""
    try:
        stat = Path(process, "stat").read_text(errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "ended"


def _counts(thread: threading.Thread) -> bool:
    # Dummies are threads of C++ libraries that have called Python once.
    return not isinstance(thread, threading._DummyThread) and not thread.name.startswith(_LASTING_THREADS)


def _namespaces() -> Iterator[str]:
    """Namespaces of this process, or of one that is dead; a living neighbour's are its own affair."""
    if not _NAMESPACES.is_dir():
        return
    for place in _NAMESPACES.iterdir():
        owner = _OWNED.match(place.name)
        if owner and (int(owner[1]) == os.getpid() or not Path(f"/proc/{owner[1]}").exists()):
            yield place.name


def _process_group() -> list[str]:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return []
    dist.destroy_process_group()
    return ["an initialised default process group"]
