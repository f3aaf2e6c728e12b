"""Tasks of mini-batch training: execution times and flows between them.

Z. Luo, Y. Bao, C. Wu: Optimizing Task Placement and Online Scheduling for Distributed GNN Training Acceleration,
INFOCOM 2022. Graph stores hold the parts of a graph. Samplers fetch neighbourhoods from them and hand mini-batches to
their worker, which trains; workers send gradients to parameter servers and get parameters back.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from math import isfinite
from typing import Literal

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.files import atomic_file, read_file

__all__ = ["KINDS", "ROUTES", "Flow", "TaskKind", "TaskSet", "TrainingTask", "read_tasks", "write_tasks"]

TaskKind = Literal["store", "sampler", "worker", "server"]
KINDS: tuple[TaskKind, ...] = ("store", "sampler", "worker", "server")
"""Graph stores, samplers, workers and parameter servers."""

_MOST_ITERATIONS = 1 << 20
"""Each has figures of its own."""

ROUTES = {("store", "sampler"), ("sampler", "worker"), ("worker", "server"), ("server", "worker")}
"""Kinds of tasks between which bytes flow."""

Amounts = float | tuple[float, ...]
"""One number for all iterations, or one for each."""


class TrainingTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Task that runs on one host."""

    name: str
    kind: TaskKind
    demand: dict[str, float] = {}
    """Amounts of its host's resources that it needs, by name, such as 1 of "gpu"."""
    execution_s: Amounts = 0.0
    """Seconds of an iteration; stores have none, because what they do is part of their flows."""
    worker: str = ""
    """Worker that a sampler samples for."""
    host: str = ""
    """Name of the host that it must run on; empty for any."""


class Flow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages from one task to another in an iteration."""

    source: str
    target: str
    size_bytes: Amounts


class TaskSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training as tasks and flows over a number of iterations, recorded or expected.

    Raises:
        InputError: A name is unknown or given twice, a flow is between invalid kinds of tasks, or a number is out of
            range; the message names the place.
    """

    iterations: int
    tasks: tuple[TrainingTask, ...]
    flows: tuple[Flow, ...]
    prefetch: int = 2
    """Iterations that samplers may run ahead of their worker."""
    hosts: dict[str, dict[str, float]] = {}
    """Amount of each resource of hosts, by name of the host; devices that a topology lists need not be repeated."""

    def __post_init__(self) -> None:
        for fault in itertools.chain(self._task_faults(), self._flow_faults()):
            raise InputError(fault)

    @property
    def kinds(self) -> dict[str, TaskKind]:
        """Kind of each task, by name."""
        return {task.name: task.kind for task in self.tasks}

    def numbers(self, amounts: Amounts) -> tuple[float, ...]:
        """Value of each iteration, [iterations]."""
        return amounts if isinstance(amounts, tuple) else (amounts,) * self.iterations

    def _task_faults(self) -> Iterator[str]:
        if not 1 <= self.iterations <= _MOST_ITERATIONS or self.prefetch < 1:
            yield (
                f"got {self.iterations} iterations and prefetch {self.prefetch}; expected at least 1 of each, and at "
                f"most {_MOST_ITERATIONS} iterations"
            )
        workers = {task.name for task in self.tasks if task.kind == "worker"}
        if not workers:
            yield "tasks: there is no worker; expected at least one"
        seen: set[str] = set()
        for number, task in enumerate(self.tasks):
            where = f"tasks[{number}] ({task.name!r})"
            if not task.name or task.name in seen:
                yield f"{where}: the name is empty or given twice; give each task its own"
            seen.add(task.name)
            if (task.kind == "sampler") != bool(task.worker) or (task.worker and task.worker not in workers):
                yield f"{where}: worker is {task.worker!r}; expected the name of a worker for samplers, none for others"
            yield from self._amount_faults(f"{where}.execution_s", task.execution_s)
            if task.kind == "store" and any(self.numbers(task.execution_s)):
                yield f"{where}: a store executes nothing; expected execution_s of 0"
            for resource, amount in task.demand.items():
                if not (isfinite(amount) and amount >= 0):
                    yield f"{where}: demands {amount} of {resource!r}; expected a finite amount of at least 0"

    def _flow_faults(self) -> Iterator[str]:
        by_name = {task.name: task for task in self.tasks}
        seen: set[tuple[str, str]] = set()
        for number, flow in enumerate(self.flows):
            where = f"flows[{number}] ({flow.source!r} to {flow.target!r})"
            ends = [by_name.get(name) for name in (flow.source, flow.target)]
            kinds = tuple(end.kind if end else "unknown" for end in ends)
            if kinds not in ROUTES:
                yield (
                    f"{where}: goes from a task of kind {kinds[0]} to one of kind {kinds[1]}; expected store to "
                    "sampler, sampler to worker, worker to server or server to worker"
                )
            elif kinds == ("sampler", "worker") and by_name[flow.source].worker != flow.target:
                yield f"{where}: the sampler samples for {by_name[flow.source].worker!r}; expected that worker"
            if (flow.source, flow.target) in seen:
                yield f"{where}: is given twice; expected one flow with the sum of their bytes"
            seen.add((flow.source, flow.target))
            yield from self._amount_faults(f"{where}.size_bytes", flow.size_bytes)

    def _amount_faults(self, where: str, amounts: Amounts) -> Iterator[str]:
        figures = amounts if isinstance(amounts, tuple) else (amounts,)
        if isinstance(amounts, tuple) and len(amounts) != self.iterations:
            yield f"{where}: got {len(amounts)} figures; expected one, or one for each of {self.iterations} iterations"
        if not all(isfinite(figure) and figure >= 0 for figure in figures):
            yield f"{where}: got {min(figures)} to {max(figures)}; expected finite figures of at least 0"


def read_tasks(path: str | os.PathLike[str]) -> TaskSet:
    """Read a JSON file whose keys are the fields of `TaskSet`, `TrainingTask` and `Flow`.

    Raises:
        InputError: The file cannot be read or is malformed; the message names the place.
    """
    return read_file(path, "task file", _decoded)


def _decoded(text: bytes) -> TaskSet:
    try:
        return decode_json(text, TaskSet)
    except msgspec.DecodeError as error:
        raise InputError(f"{error}; expected tasks and flows, mend the named place") from error


def write_tasks(tasks: TaskSet, path: str | os.PathLike[str]) -> None:
    """Write a task set atomically; `read_tasks` reads it.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    with atomic_file(path) as file:
        file.write(msgspec.json.encode(tasks))
