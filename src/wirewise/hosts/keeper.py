"""Helper processes that clean up when their owner closes a pipe or dies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import IO

from wirewise.errors import LabError

__all__ = ["COMMAND_VARIABLE", "END_PROCESSES_OF_JOB", "JOB_VARIABLE", "CleanupShell", "pipe"]

JOB_VARIABLE = "WIREWISE_JOB"
"""Variable that marks every process of a job, including those that its processes start in sessions of their own."""
COMMAND_VARIABLE = "WIREWISE_COMMAND"
"""Variable that marks every process of a user's command; another name than that of a job, so that both hold where they
nest."""
_TIMEOUT_S = 30.0

# A process may fork between the listing and the signal, so all are listed again until none is left.
END_PROCESSES_OF_JOB = """
echo ready
cat > /dev/null
exec > /dev/null 2>&1
for round in 1 2 3 4 5; do
    pids=$(grep -lsz "^$1\\$" /proc/[0-9]*/environ | cut -d / -f 3)
    [ -n "$pids" ] || break
    kill -KILL $pids
done
"""
"""Shell script that ends every process whose environment holds a variable. Argument: the variable and its value, as
A=B."""


class CleanupShell:
    """Shell script that prints "ready", waits for the end of its input, and cleans up.

    It runs in its own session, so that Ctrl-C does not reach it.

    Args:
        script: Text of the shell script.
        arguments: Arguments of the script.
        outside: Command prefix to start it elsewhere, such as in a user namespace.

    Raises:
        LabError: The script did not become ready; the message is its output.
    """

    def __init__(self, script: str, arguments: Sequence[str], outside: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*outside, "sh", "-c", script, "wirewise-keeper", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A job that this one runs in ends its processes by their mark, and must leave us to tidy up.
            env={
                name: value
                for name, value in os.environ.items()
                if name not in (COMMAND_VARIABLE, JOB_VARIABLE)
            },
        )
        first = pipe(self._process.stdout).readline().strip()
        if first != "ready":
            self.release()
            raise LabError(
                first or "the shell that tidies up ended without a word; try the command `sh -c true`"
            )

    @property
    def pid(self) -> int:
        """Process id of the keeper."""
        return self._process.pid

    def release(self) -> None:
        """Trigger the clean-up and wait for it; safe to call twice."""
        pipe(self._process.stdin).close()
        self._process.wait(timeout=_TIMEOUT_S)
        pipe(self._process.stdout).close()


def pipe(end: IO[str] | None) -> IO[str]:
    """Return a pipe end of a subprocess, which must exist."""
    assert end is not None
    return end
