"""Several methods on the same tasks, interleaved so that each graph is built once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.graph.rehearsal import GrowingGraph
from wirewise.graph.rehearsal.settings import METHODS, Settings
from wirewise.runtime.incremental.graphs import CurrentGraph
from wirewise.runtime.incremental.learners import JointTraining, Learner, Rehearsal
from wirewise.runtime.incremental.peers import Peers
from wirewise.runtime.incremental.regularised import Ewc, Gem, Lwf, Ssrm

__all__ = ["learner_of", "train"]

_LEARNERS = {
    "bare": Learner,
    "replay": Rehearsal,
    "joint": JointTraining,
    "gem": Gem,
    "ewc": Ewc,
    "lwf": Lwf,
    "ssrm": Ssrm,
}
_SUMS = ("bare", "replay", "joint")
"""Learners whose loss is a sum over nodes, which several ranks can share out."""


def learner_of(
    name: str, growing_graph: GrowingGraph, settings: Settings, peers: Peers | None = None
) -> Learner:
    """Make an untrained learner.

    Raises:
        InputError: The method is unknown, or does not support several ranks.
    """
    if name not in METHODS:
        raise InputError(f"method {name!r} is unknown; expected some of: {', '.join(METHODS)}")
    method = METHODS[name]
    if peers is not None and peers.world_size > 1 and method.learner not in _SUMS:
        raise InputError(f"method {name!r} learns on one worker; drop it, or use --workers 1")
    return _LEARNERS[method.learner](method, growing_graph, settings, peers)


def train(
    growing_graph: GrowingGraph,
    methods: Sequence[str],
    settings: Settings,
    on_task: Callable[[int, str, list[float], float], None] | None = None,
    peers: Peers | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Train all methods; returns the accuracy on task k after task t, [t, k], NaN above the diagonal, by method.

    Args:
        growing_graph: The graph and its tasks.
        methods: Keys of `METHODS`.
        settings: Settings of all methods.
        on_task: Called after each task of each method with both, the accuracies so far and the seconds.
        peers: Ranks that train together, with equal results.

    Raises:
        InputError: A method is unknown, or does not support several ranks.
        PeerError: Another rank failed.
    """
    learners = {name: learner_of(name, growing_graph, settings, peers) for name in methods}
    count = len(growing_graph.tasks)
    found = {name: np.full((count, count), np.nan) for name in methods}
    for task in range(count):
        graph = CurrentGraph(growing_graph, task)
        for name, learner in learners.items():
            start_s = time.perf_counter()
            learner.learn(graph)
            row = learner.accuracies(graph)
            found[name][task, : task + 1] = row
            if on_task is not None:
                on_task(task, name, row, time.perf_counter() - start_s)
    return found
