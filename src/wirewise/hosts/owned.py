"""Run a user's command unchanged in the foreground, so that it never outlives the process that started it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from wirewise.errors import LabError
from wirewise.hosts.keeper import COMMAND_VARIABLE, END_PROCESSES_OF_JOB, CleanupShell
from wirewise.hosts.processes import dying_with_parent, signal_group

__all__ = ["run_owned"]

_STOP_S = 30.0
"""Grace period of a command after a signal, as long as torchrun gives its ranks."""


def run_owned(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    silent: bool = False,
    output: IO[bytes] | IO[str] | int | None = None,
    errors: IO[bytes] | IO[str] | int | None = None,
    limit_s: float | None = None,
) -> int:
    """Run a command to its end, and return its exit code, negative if a signal ended it.

    Interruptions of the wait are forwarded to the command's process group: Ctrl-C as SIGINT, and SIGTERM or SIGHUP as
    they are. The command then has 30 s to end. Its descendants are gone when this returns or raises, and soon after
    this process is killed by SIGKILL.

    Args:
        argv: Program and arguments.
        environment: Complete environment of the command.
        silent: Give it no input. It never gets a terminal, as it is not in the foreground process group.
        output: Target of its stdout, as in `subprocess`.
        errors: Target of its stderr.
        limit_s: Time limit, in seconds, after which it is ended as by SIGTERM. Defaults to no limit.

    Raises:
        LabError: The command cannot be started.
        subprocess.TimeoutExpired: The command exceeded the limit.
    """
    mark = secrets.token_hex(8)
    keeper = CleanupShell(END_PROCESSES_OF_JOB, [f"{COMMAND_VARIABLE}={mark}"])
    process: subprocess.Popen[bytes] | None = None
    try:
        # The command may run before Popen returns, and only its number says where a signal goes.
        with _signals_held_back():
            process = subprocess.Popen(
                [*dying_with_parent(), *argv],
                env={**environment, COMMAND_VARIABLE: mark},
                stdin=subprocess.DEVNULL if silent or _at_terminal() else None,
                stdout=output,
                stderr=errors,
                process_group=0,
            )
        return process.wait(limit_s)
    except OSError as error:
        raise LabError(f"cannot start {argv[0]!r}: {error.strerror}; check the command") from error
    except BaseException as stopped:
        if process is not None:
            signal_group(process, _signal_of(stopped))
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_STOP_S)
        raise
    finally:
        # Ranks of torchrun have sessions of their own; the mark finds them.
        keeper.release()
        if process is not None:
            process.wait()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Signals that the main thread handles take effect at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if callable(handler := signal.getsignal(number))
    }
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _at_terminal() -> bool:
    try:
        return os.isatty(sys.__stdin__.fileno()) if sys.__stdin__ is not None else True
    except (OSError, ValueError):
        return True


def _signal_of(stopped: BaseException) -> int:
    if isinstance(stopped, KeyboardInterrupt):
        return signal.SIGINT
    code = stopped.code if isinstance(stopped, SystemExit) else None
    return code - 128 if isinstance(code, int) and 128 < code < 128 + signal.NSIG else signal.SIGTERM
