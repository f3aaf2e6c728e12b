"""Vertex-wise inclusion probability (VIP): the probability that a batch of neighbour sampling needs a node.

SALIENT++ (Kaler et al., MLSys 2023), section 3. With p_0 the probability of being a seed, f_h the fanout of hop h and
d(v) the neighbours that v samples from,

    t_h(v) = min(1, f_h / d(v)),    p_h(u) = 1 - prod over v that may sample u of (1 - t_h(v) p_{h-1}(v)),
    VIP(u) = 1 - prod over h of (1 - p_h(u)).

A product is computed as exp of a sum of logarithms. In each hop, only nodes that may have been reached before
contribute to their neighbours: O(nodes + their edges), which is little if a batch reaches a small part of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.graph.structure import InEdges, out_degrees, out_edges
from wirewise.jit import njit
from wirewise.planners.arrays import Vector

__all__ = ["ALMOST_ONE", "Drawers", "inclusion", "one_hop", "seed_probability"]

ALMOST_ONE = 1.0 - 1e-12


class Drawers:
    """Reverse adjacency for sampling: the nodes that may sample a node, which are the targets of its edges.

    Args:
        edges: In-neighbours of each node, from which it samples.
    """

    def __init__(self, edges: InEdges) -> None:
        self._drawn = edges.without_data()
        self.degree: Vector = np.diff(edges.indptr).astype(np.float64)
        """Neighbours that a node draws from, [N]."""

    @cached_property
    def _turned(self) -> InEdges:
        return out_edges(self._drawn)

    @property
    def indptr(self) -> NDArray[np.int64]:
        """Start of each node's samplers in `indices`, then the end, [N + 1]."""
        return self._turned.indptr

    @property
    def indices(self) -> NDArray[np.int32]:
        """Nodes that may sample each node, node by node, ascending."""
        return self._turned.indices

    @cached_property
    def num_samplers(self) -> NDArray[np.int64]:
        """Number of nodes that may sample each node, [N]."""
        return out_degrees(self._drawn)

    def share(self, fanout: int) -> Vector:
        """Probability t_h that an expanded node samples a given neighbour, [N]."""
        if fanout < 0:
            return np.ones_like(self.degree)
        return np.minimum(1.0, fanout / np.maximum(self.degree, 1.0))

    def sums(self, values: Vector) -> Vector:
        """Sum of the values of the nodes that may sample a node, [N]; rows of value 0 are not read."""
        found = np.zeros(len(values))
        _add(*self._drawn[:2], np.flatnonzero(values), values, found)
        return found

    def any_of(self, probability: Vector) -> Vector:
        """Probability that a node is sampled, if each node samples it independently with its probability, [N]."""
        draws = np.flatnonzero(probability)
        logarithms = np.zeros(len(probability))
        logarithms[draws] = np.log1p(-np.minimum(probability[draws], ALMOST_ONE))
        found = self.sums(logarithms)
        drawn = np.flatnonzero(found)
        found[drawn] = -np.expm1(found[drawn])
        return found


@njit()
def _add(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    rows: NDArray[np.int64],
    values: Vector,
    found: Vector,
) -> None:
    for row in rows:
        for edge in range(indptr[row], indptr[row + 1]):
            found[indices[edge]] += values[row]


def seed_probability(num_nodes: int, train: NDArray[Any], batch_size: int) -> Vector:
    """Probability p_0 of being a seed, for batches sampled uniformly from the training nodes, [N].

    Raises:
        InputError: The batch size is zero.
    """
    if batch_size < 1:
        raise InputError(f"batch size is {batch_size}; expected at least 1")
    probability = np.zeros(num_nodes)
    probability[train] = min(1.0, batch_size / max(len(train), 1))
    return probability


def inclusion(
    drawers: Drawers, seeds: Vector, fanouts: Sequence[int], *, hop_zero: bool = False, frontier: bool = False
) -> Vector:
    """Probability that a batch needs a node, [N].

    The published formula has two errors, which partly cancel: repeated expansions of a node are ignored, and
    correlated events count as independent. If absolute values matter, `frontier` is more accurate for samplers that
    expand a node once; for choosing a cache the two do not differ.

    Args:
        drawers: Reverse adjacency of the graph.
        seeds: Probability that a node is a seed, p_0, [N].
        fanouts: Fanout of each hop, the seeds' own first; -1 for all neighbours.
        hop_zero: Include the probability of being a seed, as for ordering a machine's own nodes.
        frontier: Expand in each hop only nodes not seen in earlier hops.
    """
    reached = seeds if hop_zero or frontier else np.zeros_like(seeds)
    last = seeds
    for fanout in fanouts:
        last = drawers.any_of(drawers.share(fanout) * last)
        if frontier:
            last = (1.0 - reached) * last
            reached = reached + last
        else:
            reached = reached + (1.0 - reached) * last
    return reached - seeds if frontier and not hop_zero else reached


def one_hop(drawers: Drawers, train: NDArray[Any], batch_size: int, fanout: int) -> Vector:
    """Exact probability that one hop samples a node, with seeds sampled without replacement, [N].

    With T training nodes, m of which may sample u with t_1 ... t_m, it is 1 - sum over j of C(T - m, B - j) / C(T, B)
    e_j(1 - t_1, ..., 1 - t_m), where e_j are elementary symmetric polynomials. O(m min(m, B)) for each node.
    """
    trains = np.zeros(len(drawers.degree), dtype=bool)
    trains[train] = True
    return _one_hop(
        drawers.indptr,
        drawers.indices,
        1.0 - drawers.share(fanout),
        trains,
        len(train),
        min(batch_size, len(train)),
    )


@njit()
def _one_hop(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    spared: Vector,
    trains: NDArray[np.bool_],
    total: int,
    batch: int,
) -> Vector:
    found = np.zeros(len(indptr) - 1)
    # By number of training nodes looked at: weights of having j of them among the seeds, and none draws the node.
    weights = np.zeros(batch + 1)
    for node in range(len(found)):
        weights[:] = 0.0
        weights[0] = 1.0
        seen = 0
        for edge in range(indptr[node], indptr[node + 1]):
            drawer = indices[edge]
            if not trains[drawer]:
                continue
            # Given j seeds among those seen, the next is a seed with probability (B - j) / (T - seen).
            for j in range(min(seen + 1, batch), -1, -1):
                stays = weights[j] * (1.0 - (batch - j) / (total - seen))
                joins = weights[j - 1] * (batch - j + 1) / (total - seen) * spared[drawer] if j > 0 else 0.0
                weights[j] = stays + joins
            seen += 1
        found[node] = 1.0 - weights.sum()
    return found
