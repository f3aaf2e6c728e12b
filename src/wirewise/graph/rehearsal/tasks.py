"""Tasks of a growing graph: classes arrive in order, with their nodes and edges; and metrics of their solutions.

The protocol is that of CGLB (Zhang, Song, Tao: CGLB: Benchmark Tasks for Continual Graph Learning, NeurIPS Datasets
and Benchmarks 2022): classes in label order, a split of every class by seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError, InputError
from wirewise.graph.data import GraphData
from wirewise.graph.structure import InEdges, offsets_of
from wirewise.results import IncrementalRecord

__all__ = [
    "GROWTHS",
    "GrowingGraph",
    "Task",
    "average_forgetting",
    "average_performance",
    "balanced_accuracy",
    "growing_graph",
    "record_of",
]

GROWTHS = ("inductive", "separate", "transductive")
"""Later nodes add edges to earlier ones; tasks share no edges; or the whole graph is there from the start and only
labels arrive."""
_TRAIN, _VALIDATION = 0.6, 0.2
_FEWEST = 5
"""Nodes of a class, so that each part of its split has one."""


class Task(NamedTuple):
    """Classes that arrive together; node ids are global and ascending."""

    classes: tuple[int, ...]
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GrowingGraph:
    """Graph whose nodes arrive with the tasks of their classes. N nodes, T tasks, C classes."""

    data: GraphData
    """The whole graph, undirected."""
    tasks: tuple[Task, ...]
    arrival: NDArray[np.int64]
    """Task that each node arrives with, [N]; -1 if its class is in no task, so that it never arrives."""
    growth: str = "inductive"

    @property
    def task_of_class(self) -> NDArray[np.int64]:
        """Task of each class, -1 if none, [C]."""
        found = np.full(self.data.num_classes, -1)
        for number, task in enumerate(self.tasks):
            found[list(task.classes)] = number
        return found

    def edges(self, task: int) -> InEdges:
        """Edges of the graph at the time of a task; nodes of later tasks have none.

        Raises:
            InputError: The task does not exist.
        """
        if not 0 <= task < len(self.tasks):
            raise InputError(f"got task {task}; expected 0 to {len(self.tasks) - 1}")
        whole = self.data.in_edges
        nodes = self.data.num_nodes
        there = self.arrival >= 0
        if self.growth != "transductive":
            there &= self.arrival <= task
        target = np.repeat(np.arange(nodes), np.diff(whole.indptr))
        keep = there[target] & there[whole.indices]
        if self.growth == "separate":
            keep &= self.arrival[target] == self.arrival[whole.indices]
        weight = None if whole.weight is None else whole.weight[keep]
        return InEdges(offsets_of(target[keep], nodes), whole.indices[keep], weight)


def growing_graph(
    data: GraphData,
    *,
    classes_per_task: int = 2,
    fewest: int = 50,
    growth: str = "inductive",
    most_tasks: int | None = None,
    seed: int = 0,
) -> GrowingGraph:
    """Divide a graph into tasks by its classes in label order; remaining classes are dropped.

    Args:
        data: Checked graph; a directed one is made undirected.
        classes_per_task: Classes per task, at least two, as one class leaves nothing to decide within a task.
        fewest: Classes with fewer labelled nodes are left out.
        growth: One of `GROWTHS`.
        most_tasks: Maximum number of tasks. Defaults to all.
        seed: Seed of the split of each class into 60 % train, 20 % validation, 20 % test.

    Raises:
        InputError: A setting is out of range.
        GraphError: Nodes have several labels, or classes suffice for fewer than two tasks.
    """
    if classes_per_task < 2 or fewest < _FEWEST:
        raise InputError(
            f"got {classes_per_task} classes per task and classes of at least {fewest} nodes; expected at least "
            f"2 and {_FEWEST}"
        )
    if growth not in GROWTHS:
        raise InputError(f"growth {growth!r} is unknown; expected one of: {', '.join(GROWTHS)}")
    if data.multilabel:
        raise GraphError(
            f"{data.name} has several labels a node; tasks by class need one, y of shape [nodes]"
        )
    data = data.undirected() if data.directed else data
    sizes = np.bincount(data.y[data.y >= 0], minlength=data.num_classes)
    kept = np.flatnonzero(sizes >= fewest)
    count = min(len(kept) // classes_per_task, most_tasks or len(kept))
    if count < 2:
        raise GraphError(
            f"{data.name} has {len(kept)} of {data.num_classes} classes with at least {fewest} nodes, enough for "
            f"{count} tasks of {classes_per_task}; expected at least 2 tasks, lower the smallest class or the classes "
            "per task"
        )
    arrival = np.full(data.num_nodes, -1)
    tasks = []
    for number, classes in enumerate(kept[: count * classes_per_task].reshape(count, classes_per_task)):
        arrival[np.isin(data.y, classes)] = number
        tasks.append(_task(data, classes, seed))
    return GrowingGraph(data, tuple(tasks), arrival, growth)


def _task(data: GraphData, classes: NDArray[np.int64], seed: int) -> Task:
    parts: list[list[NDArray[np.int64]]] = [[], [], []]
    for label in classes:
        order = np.random.default_rng([seed, int(label)]).permutation(np.flatnonzero(data.y == label))
        ends = (np.array([_TRAIN, _TRAIN + _VALIDATION]) * len(order)).astype(int)
        for part, found in zip(parts, np.split(order, ends), strict=True):
            part.append(found)
    train, validation, test = (np.sort(np.concatenate(part)) for part in parts)
    return Task(tuple(int(label) for label in classes), train, validation, test)


def balanced_accuracy(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Mean over the classes among `labels` of the accuracy within the class."""
    right = predicted == labels
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def average_performance(accuracy: NDArray[np.float64]) -> float:
    """AP: mean over all tasks of the accuracy after the last one; `accuracy` as in `average_forgetting`."""
    _check(accuracy)
    return float(accuracy[-1].mean())


def average_forgetting(accuracy: NDArray[np.float64]) -> float:
    """AF: mean over all tasks but the last of final accuracy minus accuracy when learnt; negative if forgotten.

    Args:
        accuracy: Accuracy of task k after task t is learnt, [t, k], for k up to t.

    Raises:
        InputError: The matrix is not square, or a value up to t is missing.
    """
    _check(accuracy)
    if len(accuracy) == 1:
        return 0.0
    return float((accuracy[-1] - accuracy.diagonal())[:-1].mean())


def _check(accuracy: NDArray[np.float64]) -> None:
    square = accuracy.ndim == 2 and accuracy.shape[0] == accuracy.shape[1] > 0
    if not square or not np.isfinite(accuracy[np.tril_indices(len(accuracy))]).all():
        raise InputError(
            f"got accuracies {accuracy.shape}; expected a square matrix with a value for every task so far"
        )


def record_of(accuracy: NDArray[np.float64], seconds: float) -> IncrementalRecord:
    """Summarise AP and AF of a method after each task and after the last; `accuracy` as in `average_forgetting`."""
    so_far = [accuracy[: task + 1, : task + 1] for task in range(len(accuracy))]
    return IncrementalRecord(
        ap=average_performance(accuracy),
        af=average_forgetting(accuracy),
        ap_by_task=tuple(map(average_performance, so_far)),
        af_by_task=tuple(map(average_forgetting, so_far)),
        accuracy=tuple(tuple(part[-1].tolist()) for part in so_far),
        seconds=seconds,
    )
