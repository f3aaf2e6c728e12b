"""Edge lists as sorted in-neighbours: the form that partitions and halo tables are computed from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

__all__ = [
    "InEdges",
    "entries_of",
    "in_edges",
    "offsets_of",
    "one_way_edge",
    "order_by_target",
    "out_degrees",
    "out_edges",
    "symmetrized",
]


_CHUNK = 1 << 20
"""Edges that are counted together: NumPy takes 8 bytes for each."""


class InEdges(NamedTuple):
    """CSR by target: sources of v are `indices[indptr[v]:indptr[v + 1]]`, ascending.

    Of a simple graph without v and once each; otherwise as often as the edge list has them.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weight: NDArray[np.float32] | None
    edge_data: tuple[str, ...] = ()
    """Names of further rows that the graph has for its edges."""

    def without_data(self) -> InEdges:
        """Neighbours alone, for those who follow edges and use nothing that these carry."""
        return InEdges(self.indptr, self.indices, None)


def offsets_of(groups: NDArray[Any], num_groups: int) -> NDArray[np.int64]:
    """Begin of each group in an array that is sorted by group, then the end; int64 [num_groups + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=num_groups))]).astype(np.int64)


def entries_of(indptr: NDArray[np.int64], rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the entries of several CSR rows, one row after the other, and how many each row has."""
    counts = np.diff(indptr)[rows]
    starts = np.cumsum(counts) - counts
    return np.repeat(indptr[rows] - starts, counts) + np.arange(counts.sum()), counts


def in_edges(edge_index: NDArray[Any], num_nodes: int, weight: NDArray[np.float32] | None = None) -> InEdges:
    """Sort an edge list [2, E] by target and source; drop self loops, add up duplicates."""
    source, target = edge_index
    keep = source != target
    values = np.ones(int(keep.sum()), np.float32) if weight is None else weight[keep].astype(np.float32)
    matrix = sp.coo_matrix((values, (target[keep], source[keep])), shape=(num_nodes, num_nodes)).tocsr()
    matrix.sum_duplicates()
    merged = None if weight is None else matrix.data.astype(np.float32, copy=False)
    return InEdges(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False), merged)


def order_by_target(edge_index: NDArray[Any]) -> NDArray[np.int64]:
    """Columns of an edge list [2, E] by target, then by source, then as given; int64 [E]."""
    source, target = edge_index
    return np.lexsort((source, target)).astype(np.int64, copy=False)


def out_degrees(edges: InEdges) -> NDArray[np.int64]:
    """Out-edges of each node, int64 [nodes]."""
    degrees = np.zeros(len(edges.indptr) - 1, np.int64)
    for begin in range(0, len(edges.indices), _CHUNK):
        degrees += np.bincount(edges.indices[begin : begin + _CHUNK], minlength=len(degrees))
    return degrees


def out_edges(edges: InEdges) -> InEdges:
    """Edges sorted by source: the targets of node u, ascending."""
    nodes = len(edges.indptr) - 1
    values = np.ones(len(edges.indices), np.float32) if edges.weight is None else edges.weight
    turned = sp.csr_matrix((values, edges.indices, edges.indptr), shape=(nodes, nodes)).tocsc()
    turned.sort_indices()
    weight = None if edges.weight is None else turned.data
    return InEdges(turned.indptr.astype(np.int64), turned.indices.astype(np.int32, copy=False), weight)


def symmetrized(
    edge_index: NDArray[Any], num_nodes: int, weight: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32] | None]:
    """Every edge in both directions, once, sorted by target, with the larger weight of its directions."""
    edges = in_edges(edge_index, num_nodes, weight)
    target = np.repeat(np.arange(num_nodes, dtype=np.int32), np.diff(edges.indptr))
    if edges.weight is None:
        pairs = np.concatenate([[edges.indices, target], [target, edges.indices]], axis=1)
        both = in_edges(pairs, num_nodes)
        target = np.repeat(np.arange(num_nodes, dtype=np.int32), np.diff(both.indptr))
        return np.stack([both.indices, target]), None
    source = edges.indices.astype(np.int64)
    key = np.concatenate([target * np.int64(num_nodes) + source, source * np.int64(num_nodes) + target])
    order = np.argsort(key, kind="stable")
    key, first = np.unique(key[order], return_index=True)
    larger = np.maximum.reduceat(np.tile(edges.weight, 2)[order], first) if len(first) else edges.weight
    return np.stack([key % num_nodes, key // num_nodes]).astype(np.int32), larger


def one_way_edge(edges: InEdges) -> tuple[int, int] | None:
    """An edge (source, target) whose reverse is missing, or None in a symmetric graph."""
    from wirewise.graph.kernels import is_symmetric

    if is_symmetric(edges.indptr, edges.indices):
        return None
    nodes = len(edges.indptr) - 1
    ones = np.ones(len(edges.indices), np.int8)
    forward = sp.csr_matrix((ones, edges.indices, edges.indptr), shape=(nodes, nodes))
    lonely = (forward - forward.T.tocsr() > 0).tocoo()
    return int(lonely.col[0]), int(lonely.row[0])
