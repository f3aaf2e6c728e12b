"""Run a user's command as it is, in the foreground, so that it never outlives the process that started it."""

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
from wirewise.lab.job import dying_with_parent, signal_group
from wirewise.lab.keeper import COMMAND_VARIABLE, END_PROCESSES_OF_JOB, Keeper

__all__ = ["run_owned"]

_STOP_S = 30.0
"""What a command has to save its state after a signal, as long as torchrun gives its ranks."""


def run_owned(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    silent: bool = False,
    output: IO[bytes] | IO[str] | int | None = None,
    errors: IO[bytes] | IO[str] | int | None = None,
) -> int:
    """Run a command to its end and return its exit code, negative where a signal ended it.

    What interrupts the wait goes on to the command's process group: Ctrl-C as SIGINT, the exit that the command line
    makes of SIGTERM or SIGHUP as that signal. The command then has 30 s to end. Whatever it started is gone when this
    returns or raises, and soon after this process dies of SIGKILL.

    Args:
        argv: Program and arguments.
        environment: All variables of the command.
        silent: Give it no input. A terminal is never given: the command is not in the foreground of it.
        output: Takes its stdout, as of `subprocess`.
        errors: Takes its stderr.

    Raises:
        LabError: It cannot be started.
    """
    mark = secrets.token_hex(8)
    keeper = Keeper(END_PROCESSES_OF_JOB, [f"{COMMAND_VARIABLE}={mark}"])
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
        return process.wait()
    except OSError as error:
        raise LabError(f"cannot start {argv[0]!r}: {error.strerror}; check the command") from error
    except BaseException as stopped:
        if process is not None:
            signal_group(process.pid, _signal_of(stopped))
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
