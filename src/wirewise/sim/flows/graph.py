"""Tasks over their iterations as a graph of executions and flows, in arrays for the compiled core.

An execution of a task follows its execution in the iteration before. A sampler also needs its flows from stores, a
worker its samplers, their flows and the parameters of the iteration before, a server the gradients of all workers.
Stores send to a sampler, and it executes, once its worker has ended the iteration `prefetch` before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.trace.tasks import TaskSet

__all__ = ["Graph", "expand"]

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]


class Graph(NamedTuple):
    """Graph of n ops: executions of T tasks, then F flows, in N iterations each, with the iteration fastest."""

    duration: Vector
    """Seconds of an execution; 0 of a flow. [n]"""
    size: Vector
    """Bytes of a flow; 0 of an execution. [n]"""
    source: Ints
    """Executing or sending task, [n]."""
    target: Ints
    """Executing or receiving task, [n]."""
    iteration: Ints
    coflow: Ints
    """Op that waits for a flow, and for all other flows of its coflow; for an execution, the execution itself. [n]"""
    pending: Ints
    """Number of unfinished predecessors, [n]."""
    indptr: Ints
    """First successor of each op in `successors`, [n + 1]."""
    successors: Ints


def expand(tasks: TaskSet) -> Graph:
    """Build the graph of all iterations."""
    steps, number = tasks.iterations, {task.name: i for i, task in enumerate(tasks.tasks)}
    count, lines = len(tasks.tasks), len(tasks.tasks) + len(tasks.flows)
    ends = np.array([[number[f.source], number[f.target]] for f in tasks.flows], np.int64).reshape(-1, 2)
    own = np.arange(count, dtype=np.int64)
    targets = np.concatenate([own, ends[:, 1]])
    nothing = [(0.0,) * steps]
    durations = [tasks.numbers(task.execution_s) for task in tasks.tasks] + nothing * len(tasks.flows)
    sizes = nothing * count + [tasks.numbers(flow.size_bytes) for flow in tasks.flows]
    before, after = _edges(tasks, number)
    n = lines * steps
    order = np.argsort(before, kind="stable")
    return Graph(
        duration=np.array(durations, np.float64).ravel(),
        size=np.array(sizes, np.float64).ravel(),
        source=np.repeat(np.concatenate([own, ends[:, 0]]), steps),
        target=np.repeat(targets, steps),
        iteration=np.tile(np.arange(steps, dtype=np.int64), lines),
        coflow=(targets[:, None] * steps + np.arange(steps)).ravel(),
        pending=np.bincount(after, minlength=n).astype(np.int64),
        indptr=np.concatenate([[0], np.cumsum(np.bincount(before, minlength=n))]).astype(np.int64),
        successors=after[order],
    )


def _edges(tasks: TaskSet, number: dict[str, int]) -> tuple[Ints, Ints]:
    """Ops before and after, [edges] each."""
    steps, found = tasks.iterations, []

    def link(first: int, second: int, delay: int) -> None:
        """Iteration n of the second line waits for iteration n - delay of the first."""
        n = np.arange(delay, steps, dtype=np.int64)
        found.append((first * steps + n - delay, second * steps + n))

    for i, task in enumerate(tasks.tasks):
        link(i, i, 1)
        if task.kind == "sampler":
            link(number[task.worker], i, tasks.prefetch)
            link(i, number[task.worker], 0)
    for i, flow in enumerate(tasks.flows, len(tasks.tasks)):
        source, target = number[flow.source], number[flow.target]
        kind = tasks.tasks[source].kind
        if kind == "store":
            link(number[tasks.tasks[target].worker], i, tasks.prefetch)
        else:
            link(source, i, 0)
        link(i, target, 1 if kind == "server" else 0)
    before, after = (np.concatenate(side) for side in zip(*found, strict=True))
    return before, after
