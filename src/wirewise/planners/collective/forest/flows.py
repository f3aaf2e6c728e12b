"""Linear programs for flows on edges and routes, where trees alone do not determine them.

By Edmonds' theorem, trees exist if the flow from the roots to every rank is large enough, so that each condition is a
flow.

- Where switches take in more than they let out, or less: capacities of routes. Edge splitting passes on all that enters
  a switch, and so needs switches whose rates in and out are equal. A switch also sends nothing twice. Where rates
  differ, capacities of routes are sought that fit into the edges together. It has ranks^3 variables.
- How an all-reduce divides each edge between summing up and spreading, and the data between roots. A reduce-scatter and
  then an all-gather give each phase all edges, and each root the same share. Run as one pipeline, a phase may have more
  of an edge where the other needs it less, and a rank with few links need be no root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, coo_array, csr_array, eye_array, hstack, vstack

from wirewise.collective import Edge, Network
from wirewise.planners.collective.demands import pairs
from wirewise.planners.collective.forest.splitting import paths_of
from wirewise.planners.solvers import linear

__all__ = ["Division", "divide_edges", "route_capacities"]

_MOST_RANKS = 24
_PARTS = 1 << 16
"""Parts of the largest capacity that capacities of routes are whole numbers of."""
_TINY = 1e-9
_MOST_PARTS = 720
"""Parts of the rate that shares are whole numbers of."""


def route_capacities(
    network: Network, supply: NDArray[np.int64], sinks: Sequence[int], time_limit_s: float
) -> dict[tuple[int, ...], int] | None:
    """Find capacities of routes that carry the largest rate of trees.

    Args:
        network: Network in which all ranks participate.
        supply: Relative rate of trees that start at each vertex; [vertices].
        sinks: Ranks that all trees must reach.
        time_limit_s: Time limit of the linear program, in seconds.

    Returns:
        Capacities by the path (edge numbers) of each route. None if there are too many ranks, or no time.
    """
    if network.ranks > _MOST_RANKS:
        return None
    ends = pairs(network)
    routes = [network.route(*pair) or () for pair in ends]
    crossed = [(edge, number, fraction) for number, route in enumerate(routes) for edge, fraction in route]
    rows, columns, fractions = zip(*crossed, strict=True)
    out = _incidence(ends, network.ranks)
    others = [[rank for rank in range(network.ranks) if rank != sink] for sink in sinks]
    solved = _solved(
        [csr_array(-supply[own, None].astype(float)) for own in others],
        [out[own] for own in others],
        vstack([eye_array(len(ends))] * len(sinks)),
        coo_array((fractions, (rows, columns)), shape=(len(network.edges), len(ends))),
        network,
        time_limit_s,
    )
    if solved is None or solved[0] <= 0:
        return None
    capacities = solved[1:]
    whole = np.floor(capacities / capacities.max() * _PARTS * (1 + _TINY)).astype(np.int64)
    # One path stands for all of its route.
    return {paths_of(network, route)[0]: int(a) for route, a in zip(routes, whole, strict=True) if a}


class Division(NamedTuple):
    """Two parts of a network with integer capacities, and the number of trees of each root."""

    spreading: Network
    summing: Network
    """Network of the sums, its edges reversed, as trees are written from their roots."""
    roots: dict[int, int]


def divide_edges(network: Network, group: Sequence[int], time_limit_s: float) -> Division | None:
    """Find the best division of edges and data for an all-reduce. None if not found in time, or not in usable integers.

    Args:
        network: Network to divide.
        group: Ranks that take part.
        time_limit_s: Time limit of the linear program, in seconds.
    """
    count, edges = len(group), len(network.edges)
    out = _incidence([(edge.source, edge.target) for edge in network.edges], len(network.vertices))
    balance, supply = [], []
    for sign in (1, -1):
        for sink in group:
            others = [v for v in range(len(network.vertices)) if v != sink]
            balance.append(sign * out[others])
            at = [(row, group.index(v)) for row, v in enumerate(others) if v in group]
            supply.append(
                coo_array((-np.ones(len(at)), tuple(zip(*at, strict=True))), shape=(len(others), count))
            )
    one_each = vstack([eye_array(edges)] * count)
    both = hstack([eye_array(edges), eye_array(edges)])
    solved = _solved(supply, balance, block_diag([one_each, one_each]), both, network, time_limit_s)
    whole = None if solved is None else _whole(solved / solved[:count].sum())
    if whole is None:
        return None
    roots = {rank: int(part) for rank, part in zip(group, whole[:count], strict=True) if part}
    spreading, summing = whole[count : count + edges], whole[count + edges :]
    return Division(_with_rates(network, spreading), _with_rates(network, summing).reversed, roots)


def _solved(
    supply: Sequence[csr_array],
    balance: Sequence[csr_array],
    carried: csr_array,
    uses: csr_array,
    network: Network,
    time_limit_s: float,
) -> NDArray[np.float64] | None:
    """Rates of roots, then capacities, where the rates add up to the most; None if not found in time.

    Variables: rates [roots], capacities, and the flows one after the other.

    Args:
        supply: What the roots' rates feed into each flow, negative; [vertices, roots] each.
        balance: 1 where an arc of a flow leaves a vertex, -1 where it enters; [vertices, arcs] each.
        carried: Capacity that each arc of the flows takes; [arcs of all, capacities].
        uses: Capacities that share each edge of the network; [edges, capacities].
        network: Whose edges limit the capacities.
        time_limit_s: Seconds for the linear program.
    """
    roots, capacities = supply[0].shape[1], carried.shape[1]
    rates = np.array([edge.bandwidth_bytes_per_s for edge in network.edges])
    feed, flow = vstack(supply), block_diag(balance)
    vertices, arcs = flow.shape
    conserved = hstack([feed, csr_array((vertices, capacities)), flow])
    within = hstack([csr_array((arcs, roots)), -carried, eye_array(arcs)])
    fits = hstack([csr_array((len(rates), roots)), uses, csr_array((len(rates), arcs))])
    found = linear(
        np.concatenate([-np.ones(roots), np.zeros(capacities + arcs)]),
        A_ub=vstack([within, fits], format="csr"),
        b_ub=np.concatenate([np.zeros(arcs), rates / rates.max()]),
        A_eq=conserved.tocsr(),
        b_eq=np.zeros(vertices),
        budget_s=time_limit_s,
    )
    if found.x is None or found.status != 0:
        return None
    return np.asarray(found.x[: roots + capacities])


def _incidence(arcs: Sequence[tuple[int, int]], vertices: int) -> csr_array:
    """1 where an arc leaves a vertex, -1 where it enters; [vertices, arcs]."""
    numbers, values = np.arange(len(arcs)), np.ones(len(arcs))
    places = (np.array(arcs).T.ravel(), np.tile(numbers, 2))
    return coo_array((np.append(values, -values), places), shape=(vertices, len(arcs))).tocsr()


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
