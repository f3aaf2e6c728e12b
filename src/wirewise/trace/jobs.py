"""Jobs from files: the grain that a file describes is told by what stands in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from wirewise.decoding import decode_json, is_gzip
from wirewise.errors import InputError
from wirewise.trace.gradients import GradientTrace, read_gradient_trace
from wirewise.trace.operators import OperatorGraph, read_operator_graph
from wirewise.trace.records import Trace
from wirewise.trace.sources import load
from wirewise.trace.tasks import TaskSet, read_tasks

__all__ = ["JOB_FILES", "Job", "read_job"]

Job = Trace | GradientTrace | OperatorGraph | TaskSet

JOB_FILES: dict[type, str] = {
    Trace: "a run folder or files of a trace",
    GradientTrace: 'JSON with "tensors"',
    OperatorGraph: 'JSON with "operators"',
    TaskSet: 'JSON with "tasks"',
}
"""The files that hold each grain."""

_READERS: dict[str, Callable[[Path], Job]] = {
    "tensors": read_gradient_trace,
    "operators": read_operator_graph,
    "tasks": read_tasks,
}
_HEAD: Any = dict[str, msgspec.Raw] | list[msgspec.Raw]
_TRACES = ("traceEvents", "schema")
"""Keys of what torch.profiler writes."""


def read_job(sources: Iterable[str | os.PathLike[str]]) -> Job:
    """Read a job of whichever grain: a trace (`load`), gradients, operators, or tasks of mini-batch training.

    Args:
        sources: A run folder or all files of a trace, or one file of another grain (`JOB_FILES`).

    Raises:
        InputError: A file that describes no job, that cannot be used, or that stands beside others.
        TraceError: As `load`.
    """
    paths = [Path(source) for source in sources]
    for path in paths:
        if (key := _key(path)) is None:
            continue
        if len(paths) > 1:
            raise InputError(
                f'{path} is JSON with "{key}" and one of {len(paths)} files; expected it alone, or files of one trace'
            )
        return _READERS[key](path)
    return load(paths)


def _key(path: Path) -> str | None:
    """The key that tells the grain of a file; None: what lies there is left to the readers of traces."""
    if path.suffix == ".jsonl" or not path.is_file():
        return None
    try:
        text = path.read_bytes()
    except OSError:
        return None
    if is_gzip(text):
        return None
    try:
        found: Any = decode_json(text, _HEAD)
    except msgspec.DecodeError as cause:
        if b'"traceEvents"' in text:
            return None
        raise InputError(f"cannot read a job from {path}: {cause}; expected {_expected()}") from cause
    if isinstance(found, list) or any(key in found for key in _TRACES):
        return None
    known = [key for key in _READERS if key in found]
    if len(known) != 1:
        keys = ", ".join(f'"{key}"' for key in list(found)[:5]) or "no keys"
        raise InputError(f"{path} is JSON with {keys}, which describes no job; expected {_expected()}")
    return known[0]


def _expected() -> str:
    return ", ".join(JOB_FILES.values())
