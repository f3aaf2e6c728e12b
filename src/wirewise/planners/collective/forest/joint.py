"""How an all-reduce should divide each edge between summing up and spreading, and the data between roots.

A reduce-scatter and then an all-gather give each phase all edges, and each root the same share. Run as one pipeline, a
phase may have more of an edge where the other needs it less, and a rank with few links need be no root. The best
division is a linear program: the rate of all roots together, so that from the roots that rate flows to every rank
over the edges' parts for spreading, and from every rank to them over those for summing up (after Edmonds, each flow
condition means that the trees exist).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import block_diag, coo_array, csr_array, eye_array, hstack, vstack

from wirewise.collective import Edge, Network
from wirewise.planners.collective.combine import reversed_network

__all__ = ["Division", "divided"]

_MOST_PARTS = 720
"""Parts of the rate that shares are whole numbers of."""


class Division(NamedTuple):
    """The two parts of a network in whole numbers, and the trees that each root gets."""

    spreading: Network
    summing: Network
    """Network of the sums, its edges reversed, as trees are written from their roots."""
    roots: dict[int, int]


def divided(network: Network, group: Sequence[int], time_limit_s: float) -> Division | None:
    """The best division; None: not found in time, or not in whole numbers of a part of use.

    Args:
        network: Network to divide.
        group: Ranks that take part.
        time_limit_s: Seconds for the linear program.
    """
    rates = np.array([edge.bandwidth_bytes_per_s for edge in network.edges])
    solved = _solved(network, group, rates / rates.max(), time_limit_s)
    whole = None if solved is None else _whole(solved)
    if whole is None:
        return None
    count, edges = len(group), len(network.edges)
    roots = {rank: int(part) for rank, part in zip(group, whole[:count], strict=True) if part}
    spreading, summing = whole[count : count + edges], whole[count + edges :]
    return Division(_with_rates(network, spreading), reversed_network(_with_rates(network, summing)), roots)


def _solved(
    network: Network, group: Sequence[int], rates: NDArray[np.float64], time_limit_s: float
) -> NDArray[np.float64] | None:
    """Shares of roots, parts of edges for spreading and for summing, where the rate is one.

    Variables: shares [ranks], parts [2, edges], and for each rank a flow over each kind of part, [2, ranks, edges].
    """
    edges, count = len(network.edges), len(group)
    out = _incidence(network)
    flows = 2 * count * edges
    balance, supply = [], []
    for sign in (1, -1):
        for sink in group:
            others = [v for v in range(len(network.vertices)) if v != sink]
            balance.append(sign * out[others])
            at = [(row, group.index(v)) for row, v in enumerate(others) if v in group]
            rows, columns = zip(*at, strict=True)
            supply.append(coo_array((-np.ones(len(at)), (rows, columns)), shape=(len(others), count)))
    conserved = hstack(
        [vstack(supply), csr_array((sum(b.shape[0] for b in balance), 2 * edges)), block_diag(balance)]
    )
    one_each = vstack([eye_array(edges)] * count)
    within = hstack(
        [csr_array((flows, count)), -block_diag([one_each, one_each]), eye_array(flows)], format="csr"
    )
    fits = hstack([csr_array((edges, count)), eye_array(edges), eye_array(edges), csr_array((edges, flows))])
    variables = count + 2 * edges + flows
    found = linprog(
        np.concatenate([-np.ones(count), np.zeros(variables - count)]),
        A_ub=vstack([within, fits], format="csr"),
        b_ub=np.concatenate([np.zeros(flows), rates]),
        A_eq=conserved.tocsr(),
        b_eq=np.zeros(conserved.shape[0]),
        method="highs",
        options={"time_limit": time_limit_s},
    )
    if found.x is None or found.status != 0:
        return None
    return np.asarray(found.x[: count + 2 * edges] / found.x[:count].sum())


def _incidence(network: Network) -> csr_array:
    """1 where an edge leaves a vertex, -1 where it enters; [vertices, edges]."""
    numbers = np.arange(len(network.edges))
    ends = np.array([(edge.source, edge.target) for edge in network.edges])
    values = np.concatenate([np.ones(len(numbers)), -np.ones(len(numbers))])
    places = (ends.T.ravel(), np.concatenate([numbers, numbers]))
    return coo_array((values, places), shape=(len(network.vertices), len(network.edges))).tocsr()


def _whole(solved: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Solution in whole numbers: vertices of linear programs of small numbers have small denominators."""
    for parts in range(1, _MOST_PARTS + 1):
        scaled = solved * parts
        if np.abs(scaled - np.round(scaled)).max() < 1e-6 * parts:
            return np.round(scaled).astype(np.int64)
    return None


def _with_rates(network: Network, rates: NDArray[np.int64]) -> Network:
    pairs = zip(network.edges, rates.tolist(), strict=True)
    edges = tuple(Edge(e.source, e.target, float(rate), e.latency_s) for e, rate in pairs if rate)
    return msgspec.structs.replace(network, edges=edges)
