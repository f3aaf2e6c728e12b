"""The server of `warm`: `-m tests.harness.warm_server SOCKET PROGRAM MODULE...`; ends with its input."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import importlib
import json
import multiprocessing.process
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

from tests.harness.warm_client import HANDED_ON

_SPACES = {"mnt": 0x00020000, "uts": 0x04000000, "net": 0x40000000, "time": 0x00000080}
"""Namespaces that a process takes over, with their flags for setns."""


_FILES, _FIRST_FREE = 100, 600
"""Most files of a process, and a number above those of all of them."""


class Server:
    """Forks a process for each request, says how it ended, and ends it with the one who asked.

    Args:
        path: Socket that takes requests.
        program: What the processes have as their Python.
    """

    def __init__(self, path: str, program: str) -> None:
        self._program = program
        self._select = selectors.DefaultSelector()
        self._children: dict[int, socket.socket] = {}
        self._asking: dict[socket.socket, int] = {}
        """Connection that has asked, and the process that was forked for it."""
        wakes, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        self._select.register(wakes, selectors.EVENT_READ, self._reap)
        self._select.register(self._listener, selectors.EVENT_READ, self._take)
        self._select.register(sys.stdin, selectors.EVENT_READ, self._end)
        # It is there under its name once it answers.
        Path(f"{path}.new").rename(path)

    def run(self) -> NoReturn:
        """Serve until the input ends."""
        while True:
            for key, _ in self._select.select():
                key.data(key.fileobj)

    def _take(self, _: Any) -> None:
        channel, _ = self._listener.accept()
        head, files, _, _ = socket.recv_fds(channel, 8, _FILES)
        text = b""
        while head and len(text) < int.from_bytes(head, "big"):
            text += channel.recv(1 << 16)
        if not head:
            channel.close()  # who asked is gone
            return
        pid = os.fork()
        if not pid:
            self._close()
            _become(json.loads(text), files, self._program)
        for file in files:
            os.close(file)
        channel.sendall(f"{pid}\n".encode())
        self._children[pid], self._asking[channel] = channel, pid
        self._select.register(channel, selectors.EVENT_READ, self._gone)

    def _gone(self, channel: socket.socket) -> None:
        """End the process of one who was killed."""
        pid = self._asking[channel]
        self._select.unregister(channel)
        os.kill(pid, signal.SIGKILL)

    def _reap(self, wakes: int) -> None:
        os.read(wakes, 1 << 12)
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            channel = self._children.pop(pid)
            del self._asking[channel]
            if channel.fileno() in self._select.get_map():
                self._select.unregister(channel)
                channel.sendall(f"{status}\n".encode())
            channel.close()

    def _end(self, _: Any) -> NoReturn:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _close(self) -> None:
        """Leave nothing of the server to a process that was forked."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for key in list(self._select.get_map().values()):
            if key.fileobj is not sys.stdin:
                os.close(key.fd)
        self._select.close()
        os.close(self._wake)


def _become(request: dict[str, Any], files: list[int], program: str) -> NoReturn:
    """Run what was asked for, as a process of its own would."""
    code = 1
    try:
        _enter(request["pid"])
        for number in HANDED_ON:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if number in request["ignored"] else usual)
        # Out of the way of the numbers that they have there.
        held = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for file in files]
        os.closerange(0, _FIRST_FREE)
        for file, number in zip(held, request["files"], strict=True):
            os.dup2(file, number)
        os.closerange(_FIRST_FREE, max(held) + 1)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
        sys.executable = program
        sys.orig_argv[:] = [program, *request["words"]]
        multiprocessing.set_executable(program)
        multiprocessing.process.ORIGINAL_DIR = request["folder"]  # type: ignore[attr-defined]
        code = _run(request["words"])
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _enter(pid: int) -> None:
    """Take over the namespaces of a process that are not those of this one."""
    flags = 0
    for name, flag in _SPACES.items():
        if Path(f"/proc/{pid}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink():
            flags |= flag
    if flags:
        libc = ctypes.CDLL(None, use_errno=True)
        handle = os.pidfd_open(pid)
        if libc.setns(handle, flags):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(handle)


def _run(words: list[str]) -> int:
    try:
        if os.environ.get("WIREWISE_STARTUP"):
            # What `profile.launch.environment` has Python call in a rank once torch is there.
            startup = importlib.import_module("wirewise.profile.startup.sitecustomize")
            if startup._is_rank():
                startup._run_entries()
        if words[0] == "-c":
            sys.path.insert(0, "")
            sys.argv = ["-c", *words[2:]]
            main = type(sys)("__main__")
            sys.modules["__main__"] = main
            exec(compile(words[1], "<string>", "exec"), main.__dict__)
        elif words[0].endswith(".py"):
            sys.path.insert(0, str(Path(words[0]).parent))
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
        else:
            sys.path.insert(0, str(Path.cwd()))
            sys.argv = words[1:]
            # One that was loaded as another's part is run anew.
            package = hasattr(sys.modules.get(sys.argv[0]), "__path__")
            sys.modules.pop(f"{sys.argv[0]}.__main__" if package else sys.argv[0], None)
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    return 0


if __name__ == "__main__":
    for _name in sys.argv[3:]:
        importlib.import_module(_name)
    Server(*sys.argv[1:3]).run()
