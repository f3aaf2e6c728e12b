"""Processes forked from a server that has modules preloaded."""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from wirewise.errors import PeerError
from wirewise.hosts import server
from wirewise.hosts.processes import end_session

__all__ = ["ForkServer", "ForkedProcess"]

_SWEPT_S = 10.0
"""Seconds to wait for the end of what a process has started; one that waits for a broken disk ends when it can."""
_SERVER_S = 30.0
_PROGRAM = (
    f"import sys; from wirewise.hosts import server; server.serve(int(sys.argv[1]))  # {server.__name__}"
)


class ForkedProcess:
    """Process forked by a `ForkServer`.

    Attributes:
        pid: Process id, also that of its session.
        pidfd: Descriptor that becomes readable once the process has ended.
    """

    def __init__(self, owner: ForkServer, pid: int, pidfd: int, status: int) -> None:
        self.pid, self.pidfd, self._status = pid, pidfd, status
        # A server that nobody holds closes its connection, and ends its processes by that.
        self._owner = owner
        self._code: int | None = None

    def signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill the process and all its descendants."""
        self.signal(signal.SIGKILL)

    def join(self) -> int:
        """Wait until the process ends.

        Returns:
            Its exit code, negative if a signal ended it.
        """
        if self._code is None:
            told = os.read(self._status, server.STATUS.size)
            # Without a word the server was killed, and this process with it.
            self._code = server.STATUS.unpack(told)[0] if told else -signal.SIGKILL
            if not told:
                select.select([self.pidfd], [], [], _SWEPT_S)
                end_session(self.pid)
        return self._code

    def is_swept(self, timeout_s: float = 0.0) -> bool:
        """Whether the process and all its descendants are gone, within `timeout_s` seconds."""
        self.join()
        return bool(select.select([self._status], [], [], timeout_s)[0]) and not os.read(self._status, 1)

    def close(self, timeout_s: float = _SWEPT_S) -> None:
        """Wait until the process and its descendants are gone, and close its descriptors."""
        self.is_swept(timeout_s)
        os.close(self._status)
        os.close(self.pidfd)


class ForkServer:
    """Process with modules preloaded that forks others; started on first use, and ended with this process.

    Each process has its own session and is killed by SIGKILL when this process ends. Its descendants, in any session,
    end with it.

    Args:
        preload: Modules to import before forking.
    """

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def shared(preload: Sequence[str] = ()) -> ForkServer:
        """Get this process's fork server for these modules, so that a second user need not import them again."""
        return _shared(tuple(preload))

    def start(
        self,
        target: Callable[..., None],
        arguments: Sequence[Any] = (),
        *,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> ForkedProcess:
        """Fork a process.

        Args:
            target: Function to run, importable from its module.
            arguments: Arguments of the function, after the descriptors.
            pass_fds: Descriptors of this process to duplicate into the new process, at most 16.
            environment: Variables added to those of this process.
            log: File for its output. Defaults to the output of this process.

        Raises:
            PeerError: The fork server ended.
        """
        call = pickle.dumps((target, tuple(arguments)))
        request = server.Start(
            call,
            _main() if b"__main__" in call else {},
            sys.path,
            str(Path.cwd()),
            {**os.environ, **(environment or {})},
            None if log is None else str(log),
        )
        with self._lock:
            try:
                return self._ask(request, pass_fds)
            except OSError as error:
                self._end()
                raise PeerError(
                    f"the process that forks ranks has ended [{error}]; look at what it wrote last, and whether the "
                    "system has ended it for want of memory"
                ) from error

    def close(self) -> None:
        """End all processes; the next `start` launches a new server."""
        with self._lock:
            self._end()

    def _ask(self, request: server.Start, descriptors: Sequence[int]) -> ForkedProcess:
        if self._channel is None:
            self._launch()
        assert self._channel is not None
        _send(self._channel, request, descriptors)
        head, came, _, _ = socket.recv_fds(self._channel, server.HEADER.size, 2)
        if len(came) < 2:
            raise ConnectionResetError("it closed the connection")
        return ForkedProcess(self, server.HEADER.unpack(head)[0], *came)

    def _launch(self) -> None:
        self._channel, theirs = socket.socketpair()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with theirs:
            self._process = subprocess.Popen(
                [os.fsdecode(spawn.get_executable()), *flags, "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # It outlives a signal to the group of this process, to end what this process leaves.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        _send(self._channel, server.Preload(sys.path, self._preload), ())

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            try:
                self._process.wait(_SERVER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._channel = self._process = None


def _send(channel: socket.socket, request: server.Preload | server.Start, descriptors: Sequence[int]) -> None:
    body = pickle.dumps(request)
    socket.send_fds(channel, [server.HEADER.pack(len(body))], list(descriptors))
    channel.sendall(body)


def _main() -> dict[str, str]:
    """Main program of this process, as multiprocessing tells its children of it."""
    told = spawn.get_preparation_data("")
    return {name: told[name] for name in ("init_main_from_name", "init_main_from_path") if name in told}


@cache
def _shared(preload: tuple[str, ...]) -> ForkServer:
    server_of_process = ForkServer(preload)
    atexit.register(server_of_process.close)
    return server_of_process


# A fork of this process has the socket too, and would mix its requests with those of its parent.
os.register_at_fork(after_in_child=_shared.cache_clear)
