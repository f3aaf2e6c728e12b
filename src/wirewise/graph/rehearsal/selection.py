"""Selection of the nodes of a task to keep for rehearsal, class by class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.graph.rehearsal.matching import squared_distances
from wirewise.graph.rehearsal.structure import coverage, k_centre
from wirewise.graph.structure import InEdges

__all__ = ["SELECTIONS", "Candidates", "select"]

_HOPS = 2
"""Hops of the model: what a node's row depends on."""
_NEAR = 0.5
"""Fraction of the mean distance to other classes that counts as near in `_least_mixed`."""
_ROWS = 1024
"""Rows of a block of distances."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Training nodes of one class, with the inputs of selections. n candidates, d values per row."""

    edges: InEdges
    """Edges of the current graph."""
    nodes: NDArray[np.int64]
    """Ids of the candidates, [n], ascending."""
    rows: NDArray[np.float32]
    """Embeddings of the candidates, [n, d]."""
    others: NDArray[np.float32]
    """Embeddings of the task's training nodes of other classes, [m, d]."""
    seed: int = 0


def select(name: str, candidates: Candidates, budget: int) -> NDArray[np.int64]:
    """Select at most `budget` of the candidates, as ascending ids; deterministic for a seed.

    Args:
        name: A key of `SELECTIONS`.
        candidates: Nodes to choose from.
        budget: Maximum number of nodes, at least one.

    Raises:
        InputError: The name is unknown, or the budget is below one.
    """
    if name not in SELECTIONS:
        raise InputError(f"selection {name!r} is unknown; expected one of: {', '.join(SELECTIONS)}")
    if budget < 1:
        raise InputError(f"budget is {budget}; expected at least 1 node of each class")
    if budget >= len(candidates.nodes):
        return candidates.nodes
    return np.sort(SELECTIONS[name](candidates, budget))


def _random(candidates: Candidates, budget: int) -> NDArray[np.int64]:
    return np.random.default_rng(candidates.seed).choice(candidates.nodes, budget, replace=False)


def _nearest_mean(candidates: Candidates, budget: int) -> NDArray[np.int64]:
    """Mean of features (MF) of ER-GNN: nearest to the mean of the class."""
    distance = np.linalg.norm(candidates.rows - candidates.rows.mean(axis=0), axis=1)
    return candidates.nodes[np.argsort(distance, kind="stable")[:budget]]


def _least_mixed(candidates: Candidates, budget: int) -> NDArray[np.int64]:
    """Coverage maximisation (CM) of ER-GNN: with the fewest rows of other classes near; ties by lot."""
    order = np.random.default_rng(candidates.seed).permutation(len(candidates.nodes))
    others = candidates.others
    if not len(others):
        return candidates.nodes[order[:budget]]
    blocks = [
        np.sqrt(squared_distances(candidates.rows[low : low + _ROWS], others))
        for low in range(0, len(order), _ROWS)
    ]
    near = _NEAR * float(np.mean([block.mean() for block in blocks]))
    count = np.concatenate([(block < near).sum(axis=1) for block in blocks])
    return candidates.nodes[order[np.argsort(count[order], kind="stable")[:budget]]]


def _herding(candidates: Candidates, budget: int) -> NDArray[np.int64]:
    """The next row brings the mean of the chosen nearest to that of the class (Welling 2009, iCaRL)."""
    rows = candidates.rows.astype(np.float64)
    goal, total = rows.mean(axis=0), np.zeros(rows.shape[1])
    chosen: list[int] = []
    for count in range(1, budget + 1):
        gap = np.linalg.norm(goal - (total + rows) / count, axis=1)
        gap[chosen] = np.inf
        chosen.append(int(np.argmin(gap)))
        total += rows[chosen[-1]]
    return candidates.nodes[chosen]


def _centres(candidates: Candidates, budget: int) -> NDArray[np.int64]:
    """Nearest in hops to all of the class, as SEA-ER asks; out of the model's reach all are equally far."""
    return k_centre(candidates.edges, candidates.nodes, budget, maximum=_HOPS + 1)


def _covering(candidates: Candidates, budget: int) -> NDArray[np.int64]:
    return coverage(candidates.edges, candidates.nodes, budget, hops=_HOPS, seed=candidates.seed)


SELECTIONS: dict[str, Callable[[Candidates, int], NDArray[np.int64]]] = {
    "random": _random,
    "cm": _least_mixed,
    "mf": _nearest_mean,
    "herding": _herding,
    "k-centre": _centres,
    "coverage": _covering,
}
"""Selections by name: random; ER-GNN's CM and MF (Zhou, Cao: Overcoming Catastrophic Forgetting in Graph Neural
Networks with Experience Replay, AAAI 2021); herding; and the two of `structure`."""
