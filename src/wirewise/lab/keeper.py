"""Helpers that tidy up when their owner lets go of them, by closing a pipe or by dying in whatever way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import IO

from wirewise.errors import LabError

__all__ = ["COMMAND_VARIABLE", "END_PROCESSES_OF_JOB", "JOB_VARIABLE", "REMOVE_NAMESPACES", "Keeper"]

JOB_VARIABLE = "WIREWISE_JOB"
"""Marks every process of a job, also those that its processes start in sessions of their own."""
COMMAND_VARIABLE = "WIREWISE_COMMAND"
"""Marks every process of a user's command; another name than that of a job, so that both hold where they nest."""
_TIMEOUT_S = 30.0

# A process may fork between the listing and the signal, so all are listed again until none is left.
REMOVE_NAMESPACES = """
if [ "$1" = private ]; then
    if [ -d /run/netns ]; then mount -t tmpfs tmpfs /run/netns
    else mount -t tmpfs tmpfs /run && mkdir /run/netns; fi || exit 1
fi
shift
echo ready
cat > /dev/null
exec > /dev/null 2>&1
for name; do
    for round in 1 2 3 4 5; do
        pids=$(ip netns pids "$name")
        [ -n "$pids" ] || break
        kill -KILL $pids
    done
    ip netns delete "$name"
done
"""
"""Ends the processes in network namespaces and removes these. Arguments: "private", where /run/netns must be
covered because it belongs to somebody else, or "shared"; then names."""

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
"""Ends every process whose environment holds a variable. Argument: the variable and its value, as A=B."""


class Keeper:
    """A shell script that says "ready", waits for the end of its input, and tidies up.

    It runs in a session of its own, so that Ctrl-C does not reach it.

    Args:
        script: Text of the shell script.
        arguments: Arguments of the script.
        outside: Command that starts it elsewhere, such as in a user namespace.

    Raises:
        LabError: It did not become ready; the message is what it said.
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
        """Let it tidy up and wait until it has; safe to call twice."""
        pipe(self._process.stdin).close()
        self._process.wait(timeout=_TIMEOUT_S)
        pipe(self._process.stdout).close()


def pipe(end: IO[str] | None) -> IO[str]:
    """The end of a pipe that was asked for."""
    assert end is not None
    return end
