"""Fork server: a process with modules loaded, from which others are forked in milliseconds.

multiprocessing's forkserver is not used: its children count as children of multiprocessing, so that their own loader
workers run the user's script again, and descendants of a killed child live on. Here a child is like a process started
by a shell, in its own session, and its descendants end with it: orphans are reparented to this process, which kills
them.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from multiprocessing import spawn
from typing import Any, NamedTuple, NoReturn

from wirewise.hosts.processes import (
    adopt_orphans,
    children_of,
    die_with_parent,
    exit_at_once,
    is_cleaner,
    is_own_child,
    signal_process,
)

__all__ = ["HEADER", "STATUS", "Preload", "Start", "serve"]

HEADER, STATUS = struct.Struct("!Q"), struct.Struct("!i")
_ROUND_S, _CALM_S = 0.002, 0.05
"""Seconds between two looks for orphans, at first and once they take longer than a second to end."""
_CLEANERS_S = 2.0
"""Seconds that a resource tracker has after its rank: killed at once it would leave semaphores in /dev/shm."""
_LAST_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that this process ignores: they are for whoever asks, which then ends it."""


class Preload(NamedTuple):
    """First request: modules to load before forking."""

    path: Sequence[str]
    """Search path for modules."""
    modules: Sequence[str]


class Start(NamedTuple):
    """Request to fork a process; descriptors sent with it are the first arguments of the target."""

    call: bytes
    """Pickled target and arguments."""
    main: dict[str, str]
    """Main program of the caller, where the call refers to it; as multiprocessing describes it."""
    path: Sequence[str]
    folder: str
    environment: dict[str, str]
    log: str | None
    """File for stdout and stderr. None to inherit them."""


class _Server:
    """The processes that were forked.

    Args:
        channel: Connection to whoever asks for processes; when it ends, all of them end.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, None)
        self._living: dict[int, tuple[int, int]] = {}
        """Descriptor of the process, and that of its status, by process id."""
        self._dead: list[int] = []
        """Descriptors of the status of processes whose descendants may be left."""
        self._since_s = 0.0

    def serve(self) -> None:
        """Fork what is asked for, until the connection ends."""
        try:
            while True:
                for key, _ in self._selector.select(self._pause()):
                    if key.data is None:
                        self._obey()
                    else:
                        self._reap(key.data)
                self._sweep()
        except EOFError:
            self._leave()

    def _pause(self) -> float | None:
        if not self._dead:
            return None
        return _ROUND_S if time.monotonic() - self._since_s < 1.0 else _CALM_S

    def _obey(self) -> None:
        request, descriptors = receive(self._channel)
        if isinstance(request, Preload):
            sys.path[:] = request.path
            for module in request.modules:
                # A module that cannot be loaded here fails in the process that needs it.
                with suppress(Exception):
                    importlib.import_module(module)
            return
        told, status = os.pipe()
        server = os.getpid()
        # This process ignores them; blocked, one that comes before the child stops ignoring them is not lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with warnings.catch_warnings():
            # Python 3.12 warns of the sleeping threads that numpy's BLAS has started.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._become(request, descriptors, server, [told, status], before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._living[pid] = os.pidfd_open(pid), status
        self._selector.register(self._living[pid][0], selectors.EVENT_READ, pid)
        socket.send_fds(self._channel, [HEADER.pack(pid)], [self._living[pid][0], told])
        for descriptor in (told, *descriptors):
            os.close(descriptor)

    def _become(
        self,
        request: Start,
        descriptors: Sequence[int],
        server: int,
        unused: Sequence[int],
        unblocked: Collection[signal.Signals | int],
    ) -> NoReturn:
        """Be the new process."""
        try:
            os.setsid()
            die_with_parent(server)
            adopt_orphans()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._selector.close()
            self._channel.close()
            for descriptor in (
                *unused,
                *self._dead,
                *(one for pair in self._living.values() for one in pair),
            ):
                os.close(descriptor)
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        run(request, descriptors)

    def _reap(self, pid: int) -> None:
        descriptor, status = self._living.pop(pid)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, code = os.waitpid(pid, 0)
        with suppress(OSError):
            os.write(status, STATUS.pack(os.waitstatus_to_exitcode(code)))
        # Closed once nothing is left of it.
        self._dead.append(status)
        self._since_s = time.monotonic()

    def _sweep(self) -> None:
        """End what descends from processes that are dead; living ones adopt their own orphans."""
        if not self._dead:
            return
        orphans = children_of(os.getpid()) - self._living.keys()
        patient = time.monotonic() - self._since_s < _CLEANERS_S
        for pid in orphans:
            if not (patient and is_cleaner(pid)):
                signal_process(pid, signal.SIGKILL, is_own_child)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not orphans:
            for status in self._dead:
                os.close(status)
            self._dead = []

    def _leave(self) -> None:
        """End all processes and what descends from them."""
        for pid in list(self._living):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._living[pid][0], signal.SIGKILL)
            self._reap(pid)
        deadline = time.monotonic() + _LAST_S
        while self._dead and time.monotonic() < deadline:
            self._sweep()
            time.sleep(_ROUND_S)


def receive(channel: socket.socket) -> tuple[Any, list[int]]:
    """Receive a request and its descriptors from a socket.

    Raises:
        EOFError: The connection was closed.
    """
    head, descriptors, _, _ = socket.recv_fds(channel, HEADER.size, 16)
    while head and len(head) < HEADER.size:
        head += channel.recv(HEADER.size - len(head))
    if not head:
        raise EOFError
    (size,), body = HEADER.unpack(head), bytearray()
    while len(body) < size:
        part = channel.recv(min(size - len(body), 1 << 20))
        if not part:
            raise EOFError
        body += part
    return pickle.loads(body), descriptors


def run(request: Start, descriptors: Sequence[int]) -> NoReturn:
    """Execute a request in this process, and exit."""
    code = 1
    try:
        if request.log is not None:
            log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        sys.path[:] = request.path
        if request.main:
            spawn.prepare(request.main)
        target, arguments = pickle.loads(request.call)
        code = _call(target, arguments, descriptors)
        # multiprocessing ends its helpers there; they would complain of what this process left.
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    # Threads of torch that still wait must not keep it.
    exit_at_once(code)


def _call(target: Callable[..., None], arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
    try:
        target(*descriptors, *arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def serve(descriptor: int) -> None:
    """Fork processes on request until the other end of the socket is closed."""
    # Ctrl-C is for whoever asks, which then ends this process.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    _Server(socket.socket(fileno=descriptor)).serve()
    # Libraries that were loaded have nothing to tidy up here, and some would complain of it.
    os._exit(0)
