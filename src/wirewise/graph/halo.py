"""Rows that each part needs from the others (halo), and the split of its nodes into central and marginal.

Part q needs row u when q owns a node with an edge from u and does not own u itself. Everything derives from this
boolean relation [parts, nodes]: its row q, grouped by owner, is the halo of q; its entries owned by p are the rows
that p sends to q. Both ends list a pair's rows by ascending global id, so their orders agree without communication.
Only in-edges are looked at, so directed graphs need no special case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.graph.structure import InEdges, offsets_of

__all__ = [
    "HaloNeeds",
    "LocalEdges",
    "halo_of",
    "halo_volume",
    "local_edges",
    "needed_rows",
    "needs",
    "sends_of",
]


class LocalEdges(NamedTuple):
    """In-edges of one part in local numbering: own rows (central, then marginal), then halo rows."""

    own_ids: NDArray[np.int64]
    num_central: int
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weight: NDArray[np.float32] | None
    position: NDArray[np.int64]
    """Index of each edge in the whole graph; empty if not requested."""


class HaloNeeds(NamedTuple):
    """Rows that cross from part to part."""

    needed: NDArray[np.bool_]
    """Whether part q needs row u of another part, [parts, nodes]."""
    marginal: NDArray[np.bool_]
    """Whether the node has an in-neighbour in another part, [nodes]."""
    cut_edges: int


def needed_rows(edges: InEdges, assignment: NDArray[Any], num_parts: int) -> NDArray[np.bool_]:
    """Compute the bool [parts, nodes] whose entry (q, u) is True if part q needs row u of another part. O(edges)."""
    return needs(edges, assignment, num_parts).needed


def needs(edges: InEdges, assignment: NDArray[Any], num_parts: int) -> HaloNeeds:
    """Find the rows that parts need from others, in one pass over the edges with memory for nodes only."""
    from wirewise.graph.kernels import mark_needed

    needed = np.zeros((num_parts, len(assignment)), dtype=bool)
    marginal = np.zeros(len(assignment), dtype=bool)
    return HaloNeeds(needed, marginal, mark_needed(edges.indptr, edges.indices, assignment, needed, marginal))


def halo_of(
    needed: NDArray[np.bool_], assignment: NDArray[Any], rank: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Halo ids of a part, ordered by owner and then id, and the offsets [parts + 1] of the owners' groups."""
    ids = np.flatnonzero(needed[rank])
    owner = assignment[ids]
    order = np.argsort(owner, kind="stable")
    return ids[order], offsets_of(owner, len(needed))


def sends_of(
    needed: NDArray[np.bool_], own_ids: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Own rows needed by each other part, ordered by part and then global id, and offsets [parts + 1]."""
    order = np.argsort(own_ids)
    receiver, position = np.nonzero(needed[:, own_ids[order]])
    return order[position].astype(np.int32), offsets_of(receiver, len(needed))


def halo_volume(needed: NDArray[np.bool_], assignment: NDArray[Any]) -> NDArray[np.int64]:
    """Number of rows that part p sends to part q in one exchange, [parts (p), parts (q)]."""
    parts = len(needed)
    return np.stack([np.bincount(assignment[row], minlength=parts) for row in needed], axis=1)


def local_edges(
    edges: InEdges,
    assignment: NDArray[Any],
    rank: int,
    halo_ids: NDArray[np.int64],
    marginal: NDArray[np.bool_],
    number: NDArray[np.int32],
    *,
    positions: bool = False,
) -> LocalEdges:
    """Renumber the in-edges of one part.

    Args:
        edges: In-edges of the whole graph.
        assignment: Owner of each node, [nodes].
        rank: Index of the part.
        halo_ids: Halo of the part, from `halo_of`.
        marginal: Whether a node has an in-neighbour in another part, [nodes].
        number: Scratch, int32 [nodes], overwritten (shared by all parts of a graph).
        positions: Fill in `position` of the result; always filled for weighted edges.
    """
    from wirewise.graph.kernels import renumbered_rows

    own = np.flatnonzero(assignment == rank)
    own = np.concatenate([own[~marginal[own]], own[marginal[own]]])
    number[own] = np.arange(len(own), dtype=np.int32)
    number[halo_ids] = np.arange(len(own), len(own) + len(halo_ids), dtype=np.int32)
    indptr = np.concatenate([[0], np.cumsum(edges.indptr[own + 1] - edges.indptr[own])]).astype(np.int64)
    columns = np.empty(indptr[-1], np.int32)
    position = np.empty(indptr[-1] if positions or edges.weight is not None else 0, np.int64)
    renumbered_rows(edges.indptr, edges.indices, own, number, indptr, columns, position)
    weight = None if edges.weight is None else edges.weight[position]
    return LocalEdges(own, len(own) - int(marginal[own].sum()), indptr, columns, weight, position)
