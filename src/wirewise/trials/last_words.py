"""Last output lines of failed processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from wirewise.hosts.ranks import describe_exit
from wirewise.lab import JobResult
from wirewise.trials.log import Text, parse_line

__all__ = ["error_line", "failure_reason", "last_lines"]

_TORCHRUN = "torch/distributed/elastic/multiprocessing/api.py"
"""Source file that the first line names which torchrun writes once a rank has failed."""
_ERROR = re.compile(r"^(?:\[rank\d+\]: )?(?:wirewise\.errors\.\w+Error: |(?=[\w.]+Error\b))")
"""Start of a line that ends a traceback: all before the message, or before the name of another library's error."""


def last_lines(lines: Sequence[str], count: int = 15) -> str:
    """Last lines that the ranks of a command wrote, without those of torchrun.

    Args:
        lines: Output of the command.
        count: Lines to keep.
    """
    ended = next((number for number, line in enumerate(lines) if _TORCHRUN in line), 0)
    return "\n".join(lines[: ended or None][-count:])


def failure_reason(result: JobResult, logs: Path) -> str:
    """Most informative line of each failed worker, preferably an error; duplicates removed.

    The worker that failed first stands first.

    Args:
        result: Job with at least one failed process.
        logs: Folder of the full logs, which the message names.
    """
    failed = [rank for rank, code in enumerate(result.exit_codes) if code]
    said: dict[str, list[str]] = {}
    for rank in sorted(failed, key=lambda rank: rank != result.first_failed):
        said.setdefault(_ending(result.exit_codes[rank], result.tails[rank]), []).append(str(rank))
    words = "; ".join(f"worker {', '.join(ranks)}: {ending}" for ending, ranks in said.items())
    return f"training failed. {words}. The full logs are in {logs}"


def error_line(tail: Sequence[str]) -> str:
    """Last error in the output of a process, else its last line; empty if there is none.

    Args:
        tail: Lines that it wrote.
    """
    lines = [line for line in map(_readable, tail) if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    return _ERROR.sub("", (errors or lines or [""])[-1].strip())


def _ending(code: int, tail: Sequence[str]) -> str:
    """How a worker ended, and its last line, an error if there is one."""
    last = error_line(tail)
    if code >= 0:
        return last or "it said nothing"
    return describe_exit(code) + (f", its last words: {last}" if last else " and said nothing")


def _readable(line: str) -> str:
    """A line without the form in which ranks tell their parent; empty for records."""
    told = parse_line(line)
    if told is None:
        return line
    return told.text if isinstance(told, Text) else ""
