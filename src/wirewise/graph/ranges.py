"""Node renumbering that gives each machine a contiguous range, most frequently needed nodes first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.graph.data import GraphData, SparseRows

__all__ = ["Ranges", "ranges_of"]


class Ranges(NamedTuple):
    """New numbering of N nodes over K machines."""

    old: NDArray[np.int64]
    """Old id of each new one, [N]."""
    new: NDArray[np.int64]
    """New id of each old one, [N]."""
    offsets: NDArray[np.int64]
    """Machine k has the new ids `offsets[k]` to `offsets[k + 1]`, [K + 1]."""

    @property
    def machines(self) -> int:
        """Number of machines, K."""
        return len(self.offsets) - 1

    @property
    def owner(self) -> NDArray[np.int64]:
        """Machine of each new id, [N]."""
        return np.repeat(np.arange(self.machines), np.diff(self.offsets))

    def owner_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Machine of the given new ids, [n]."""
        return np.searchsorted(self.offsets, ids, side="right") - 1

    def renumber(self, graph: GraphData) -> GraphData:
        """Graph under the new ids."""
        x = graph.x.rows(self.old) if isinstance(graph.x, SparseRows) else graph.x[self.old]
        return dataclasses.replace(
            graph,
            edge_index=self.new[graph.edge_index],
            indptr=None,
            x=x,
            y=graph.y[self.old],
            split=graph.split[self.old],
            node_data={name: rows[self.old] for name, rows in graph.node_data.items()},
        )


def ranges_of(owner: NDArray[np.int64], scores: Sequence[NDArray[np.float64]] | None = None) -> Ranges:
    """Number the nodes of machine 0 first, then those of machine 1, and so on.

    Args:
        owner: Machine of each node, [N].
        scores: Scores of the nodes on each machine, by which its own nodes are sorted in descending order, such as
            the probability that a batch needs them, hop 0 included. Defaults to order by id. [K][N]

    Raises:
        GraphError: A machine owns no node, or there are not as many scores as machines.
    """
    machines = int(owner.max()) + 1 if len(owner) else 0
    counts = np.bincount(owner, minlength=machines)
    if not machines or not counts.all() or (scores is not None and len(scores) != machines):
        raise GraphError(
            f"machines own {counts.tolist()} nodes and there are {'no' if scores is None else len(scores)} scores; "
            "expected a node or more for each machine, and as many scores"
        )
    # Machine by machine: a stable order of the scores, so that equal ones stay in that of their ids.
    parts = [np.flatnonzero(owner == machine) for machine in range(machines)]
    if scores is not None:
        parts = [
            own[np.argsort(-score[own], kind="stable")] for own, score in zip(parts, scores, strict=True)
        ]
    old = np.concatenate(parts)
    new = np.empty_like(old)
    new[old] = np.arange(len(old))
    return Ranges(old, new, np.concatenate([[0], np.cumsum(counts)]))
