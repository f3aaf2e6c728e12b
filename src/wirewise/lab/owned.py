"""A command of the user's, run so that none of its processes outlives the one that started it."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from wirewise.errors import LabError
from wirewise.lab.keeper import END_PROCESSES_OF_JOB, JOB_VARIABLE, Keeper
from wirewise.lab.leaving import catch_signals, restore_signals

__all__ = ["run_owned"]

_GRACE_S = 10.0
"""How long a command may take to end after SIGTERM."""


def run_owned(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int | None = None,
    stdout: IO[bytes] | IO[str] | int | None = None,
    stderr: int | None = None,
) -> int:
    """Run a command to its end and return its exit code, negative if a signal ended it.

    It keeps the terminal, as if it had been started by itself. On SIGTERM, SIGHUP or Ctrl-C of this process it gets
    SIGTERM, and whatever is left of it after ten seconds SIGKILL; SIGKILL, too, if this process dies otherwise.
    Processes that it started in sessions of their own, as torchrun does, are found by a variable of their environment.

    Args:
        argv: Program and arguments.
        env: Its environment.
        stdin: As of `subprocess.Popen`; so are `stdout` and `stderr`.
        stdout: Where it writes.
        stderr: Where it writes errors.

    Raises:
        LabError: The program cannot be started.
    """
    mark = secrets.token_hex(8)
    keeper = Keeper(END_PROCESSES_OF_JOB, [f"{JOB_VARIABLE}={mark}"])
    caught = catch_signals()
    try:
        running = subprocess.Popen(
            list(argv), env={**env, JOB_VARIABLE: mark}, stdin=stdin, stdout=stdout, stderr=stderr
        )
        try:
            return running.wait()
        except BaseException:
            _end(running)
            raise
    except OSError as error:
        raise LabError(f"cannot start {argv[0]!r}: {error.strerror}; check the command") from error
    finally:
        restore_signals(caught)
        keeper.release()


def _end(running: subprocess.Popen[bytes]) -> None:
    running.terminate()
    try:
        running.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
