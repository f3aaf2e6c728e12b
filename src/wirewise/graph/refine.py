"""Lower the busiest part's halo rows by moving single nodes.

Links are per host, so an exchange takes as long as the part that sends or receives most rows, while METIS minimises
the sum over parts. From its result, nodes are moved one at a time, each to the part with the largest decrease of

    sum over parts p of (send_p / top)^8 + (receive_p / top)^8 + (weight_p / limit)^8,

a smooth proxy for the maximum (`top`: rows of the busiest part). The last term keeps room for moves: without it a
part at its weight limit could not take a node before another one left. Early passes also accept slightly worse moves,
with a decreasing threshold (threshold accepting), to get hubs past their neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.graph.structure import InEdges, out_edges
from wirewise.jit import njit

__all__ = ["lower_busiest"]

_POWER = 8
_HEAT = 5e-4
"""How much the objective may grow in one move of the first pass, as a fraction."""
_COOLED_AT = 0.8
"""Fraction of the passes after which only improving moves are made."""
_EDGE_VISITS = 60_000_000
"""Passes are chosen for about this many edge visits (a second or two), within the bounds below."""
_MIN_PASSES, _MAX_PASSES = 4, 80


def lower_busiest(
    edges: InEdges,
    assignment: NDArray[np.int32],
    num_parts: int,
    weight: NDArray[np.int64],
    *,
    seed: int,
    max_imbalance: float,
) -> NDArray[np.int32]:
    """Refine a partition so that no part sends or receives more rows than the busiest did before.

    O(passes * (edges + nodes) * parts) time; a table of 4 bytes for each node and part.

    Args:
        edges: In-edges of the graph, directed or not.
        assignment: Owner of each node.
        num_parts: Number of parts.
        weight: Weight of each node, positive.
        seed: Seed of the order in which nodes are visited.
        max_imbalance: Maximum excess of a part's weight over the mean, as a fraction.
    """
    limit = weight.sum() / num_parts * (1 + max_imbalance)
    state = _State(edges, assignment, num_parts, weight)
    rng = np.random.Generator(np.random.Philox(seed))
    passes = int(np.clip(_EDGE_VISITS // max(1, len(edges.indices)), _MIN_PASSES, _MAX_PASSES))
    best, best_rows = assignment.astype(np.int32), state.busiest
    for step in range(passes):
        heat = _HEAT * max(0.0, 1 - step / (_COOLED_AT * passes))
        moves = state.one_pass(rng.permutation(len(assignment)), limit, heat)
        if state.busiest < best_rows and state.load.max() <= limit:
            best, best_rows = state.owner.copy(), state.busiest
        if moves == 0:
            break
    return best


class _State:
    """Owners and what follows from them, kept up to date by every move."""

    def __init__(
        self, edges: InEdges, assignment: NDArray[Any], num_parts: int, weight: NDArray[np.int64]
    ) -> None:
        self.edges, self.weight = edges, weight
        self.owner = assignment.astype(np.int32)
        outward = out_edges(edges)
        nodes = len(self.owner)
        source = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(outward.indptr))
        cell = source * num_parts + self.owner[outward.indices]
        # Out-neighbours of each node in each part: row u is needed by part q when entry (u, q) is not zero.
        self.count = np.bincount(cell, minlength=nodes * num_parts).reshape(nodes, num_parts).astype(np.int32)
        needed = self.count > 0
        needed[np.arange(nodes), self.owner] = False
        self.receive = needed.sum(axis=0).astype(np.int64)
        self.send = np.bincount(self.owner, needed.sum(axis=1), num_parts).astype(np.int64)
        self.load = np.bincount(self.owner, weight, num_parts).astype(np.int64)

    @property
    def busiest(self) -> int:
        return int(max(self.send.max(), self.receive.max()))

    def one_pass(self, order: NDArray[np.int64], limit: float, heat: float) -> int:
        """Visit every node once and return the number of moves."""
        tables = (self.owner, self.weight, self.count, self.send, self.receive, self.load)
        return _one_pass(self.edges.indptr, self.edges.indices, *tables, order, limit, heat)


@njit()
def _one_pass(  # type: ignore[no-untyped-def]
    indptr, indices, owner, weight, count, send, receive, load, order, limit, heat
):
    parts = len(send)
    lost = np.empty(parts, np.int64)
    gained = np.empty((parts, parts), np.int64)
    near = np.empty(parts, np.bool_)
    new_send, new_receive = np.empty(parts, np.int64), np.empty(parts, np.int64)
    moves = 0
    for v in order:
        top = max(send.max(), receive.max())
        if top == 0:
            break
        p = owner[v]
        if load[p] == weight[v] or not _neighbour_rows(v, indptr, indices, owner, count, lost, gained, near):
            continue
        best = _rows_term(send, receive, top) * (1 + heat) - 1e-12
        to = -1
        for q in range(parts):
            if q == p or not near[q] or load[q] + weight[v] > limit:
                continue
            _after_move(v, p, q, count, send, receive, lost, gained, new_send, new_receive)
            value = _rows_term(new_send, new_receive, top)
            value += ((load[p] - weight[v]) / limit) ** _POWER - (load[p] / limit) ** _POWER
            value += ((load[q] + weight[v]) / limit) ** _POWER - (load[q] / limit) ** _POWER
            if value < best:
                best, to = value, q
        if to < 0:
            continue
        _after_move(v, p, to, count, send, receive, lost, gained, new_send, new_receive)
        send[:], receive[:] = new_send, new_receive
        for e in range(indptr[v], indptr[v + 1]):
            count[indices[e], p] -= 1
            count[indices[e], to] += 1
        owner[v] = to
        load[p] -= weight[v]
        load[to] += weight[v]
        moves += 1
    return moves


@njit()
def _neighbour_rows(v, indptr, indices, owner, count, lost, gained, near):  # type: ignore[no-untyped-def]
    """Rows that in-neighbours of v would send differently without v in its part and with v in another.

    lost[a]: rows of part a that v's part needs for v alone; gained[q, a]: rows of part a that part q does not
    need yet. Also marks the parts near v and tells whether there is one besides its own.
    """
    parts, p = len(lost), owner[v]
    lost[:] = 0
    gained[:] = 0
    for q in range(parts):
        near[q] = count[v, q] > 0
    for e in range(indptr[v], indptr[v + 1]):
        u = indices[e]
        a = owner[u]
        near[a] = True
        if a != p and count[u, p] == 1:
            lost[a] += 1
        for q in range(parts):
            if count[u, q] == 0 and q != a:
                gained[q, a] += 1
    near[p] = False
    return near.any()


@njit()
def _after_move(  # type: ignore[no-untyped-def]
    v, p, q, count, send, receive, lost, gained, new_send, new_receive
):
    """Rows sent and received by each part if v moved from part p to part q."""
    new_send[:], new_receive[:] = send, receive
    for r in range(len(send)):
        if count[v, r] > 0:
            if r != p:
                new_send[p] -= 1
                new_receive[r] -= 1
            if r != q:
                new_send[q] += 1
                new_receive[r] += 1
        new_send[r] += gained[q, r] - lost[r]
        new_receive[p] -= lost[r]
        new_receive[q] += gained[q, r]


@njit()
def _rows_term(send, receive, top):  # type: ignore[no-untyped-def]
    total = 0.0
    for p in range(len(send)):
        total += (send[p] / top) ** _POWER + (receive[p] / top) ** _POWER
    return total
