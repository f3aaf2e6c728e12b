"""Jobs from files, with the type of job detected by content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from wirewise.decoding import decode_json, is_gzip
from wirewise.errors import InputError
from wirewise.trace.gradients import GradientTrace, read_gradient_trace
from wirewise.trace.operator_graph import OperatorGraph, read_operator_graph
from wirewise.trace.operators import FusionGraph, read_fusion_graph
from wirewise.trace.queues import JobQueue, read_queue
from wirewise.trace.records import Trace
from wirewise.trace.recovery import RecoveryTrace, read_recovery_trace
from wirewise.trace.sources import load
from wirewise.trace.stages import StageTrace, read_stage_trace
from wirewise.trace.tasks import TaskSet, read_tasks

__all__ = ["JOB_READERS", "Job", "JobReader", "job_file", "read_job"]

Job = Trace | GradientTrace | FusionGraph | OperatorGraph | TaskSet | StageTrace | RecoveryTrace | JobQueue


class JobReader(NamedTuple):
    """Reader of a type of job with its own file format."""

    kind: type
    read: Callable[[Path], Any]


JOB_READERS: dict[str, JobReader] = {
    "tensors": JobReader(GradientTrace, read_gradient_trace),
    "operators": JobReader(FusionGraph, read_fusion_graph),
    "nodes": JobReader(OperatorGraph, read_operator_graph),
    "tasks": JobReader(TaskSet, read_tasks),
    "modules": JobReader(StageTrace, read_stage_trace),
    "stages": JobReader(RecoveryTrace, read_recovery_trace),
    "queue": JobReader(JobQueue, read_queue),
}
"""Kinds of jobs by the distinguishing top-level key of their JSON; a file without any of these keys is a trace."""

_HEAD: Any = dict[str, msgspec.Raw] | list[msgspec.Raw]
_TRACES = ("traceEvents", "schema")
"""Keys of what torch.profiler writes."""


def job_file(kind: type) -> str:
    """Description of a file for a type of job."""
    key = next((key for key, reader in JOB_READERS.items() if reader.kind is kind), None)
    return "a run folder or files of a trace" if key is None else f'JSON with "{key}"'


def read_job(sources: Iterable[str | os.PathLike[str]]) -> Any:
    """Read a job of any type: a trace (`load`), or one known to `JOB_READERS`.

    Args:
        sources: Run folder or all files of a trace, or one file of another type.

    Returns:
        A `Job`, or the type of a registered reader.

    Raises:
        InputError: A file describes no job, is unusable, or is given with others.
        TraceError: Raised by `load`.
    """
    paths = [Path(source) for source in sources]
    for path in paths:
        if (key := _key(path)) is None:
            continue
        if len(paths) > 1:
            raise InputError(
                f'{path} is JSON with "{key}" and one of {len(paths)} files; expected it alone, or files of one trace'
            )
        return JOB_READERS[key].read(path)
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
    known = [key for key in JOB_READERS if key in found]
    if len(known) != 1:
        keys = ", ".join(f'"{key}"' for key in list(found)[:5]) or "no keys"
        raise InputError(f"{path} is JSON with {keys}, which describes no job; expected {_expected()}")
    return known[0]


def _expected() -> str:
    return ", ".join(map(job_file, (Trace, *(reader.kind for reader in JOB_READERS.values()))))
