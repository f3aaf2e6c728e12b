"""What routes between ranks should carry where switches take in more than they let out, or less.

Edge splitting passes on all that enters a switch, and so needs switches whose rates in and out are equal. A switch also
sends nothing twice. Where rates differ, the best use of the routes is a linear program: capacities of routes that fit
into the edges together, through which a flow of one rate reaches every sink from all roots (after Edmonds, each flow
condition means that the trees exist). It has ranks^3 variables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import block_diag, coo_array, csr_array, eye_array, hstack, vstack

from wirewise.collective import Network

__all__ = ["routed_paths"]

_MOST_RANKS = 24
_PARTS = 1 << 16
"""Parts of the largest capacity that capacities are whole numbers of."""
_TINY = 1e-9


def routed_paths(
    network: Network, supply: NDArray[np.int64], sinks: Sequence[int], time_limit_s: float
) -> dict[tuple[int, ...], int] | None:
    """Capacities of routes that carry the largest rate of trees.

    Args:
        network: Where; all ranks take part.
        supply: Relative rate of trees that start at each vertex; [vertices].
        sinks: Ranks that all trees must reach.
        time_limit_s: Seconds for the linear program.

    Returns:
        By route (numbers of edges) its capacity; None: too many ranks, or no time.
    """
    if network.ranks > _MOST_RANKS:
        return None
    pairs = [(s, t) for s in range(network.ranks) for t in network.neighbours(s)]
    routes = [network.route(*pair) or () for pair in pairs]
    solved = _solved(network, pairs, routes, supply, sinks, time_limit_s)
    if solved is None:
        return None
    whole = np.floor(solved / solved.max() * _PARTS * (1 + _TINY)).astype(np.int64)
    return {route: int(amount) for route, amount in zip(routes, whole, strict=True) if amount}


def _solved(
    network: Network,
    pairs: Sequence[tuple[int, int]],
    routes: Sequence[tuple[int, ...]],
    supply: NDArray[np.int64],
    sinks: Sequence[int],
    time_limit_s: float,
) -> NDArray[np.float64] | None:
    """Capacities of the pairs; variables: the rate, capacities [pairs], flows [sinks, pairs]."""
    count, ranks = len(pairs), network.ranks
    rates = np.array([edge.bandwidth_bytes_per_s for edge in network.edges])
    crossed = [(edge, number) for number, route in enumerate(routes) for edge in route]
    edges, numbers = zip(*crossed, strict=True)
    uses = coo_array((np.ones(len(crossed)), (edges, numbers)), shape=(len(rates), count))
    out = _leaving(pairs, ranks)
    balance, wanted = [], []
    for sink in sinks:
        others = [rank for rank in range(ranks) if rank != sink]
        balance.append(out[others])
        wanted.append(-supply[others].astype(float))
    flows = len(sinks) * count
    conserved = hstack(
        [
            csr_array(np.concatenate(wanted)[:, None]),
            csr_array((len(sinks) * (ranks - 1), count)),
            block_diag(balance),
        ]
    )
    within = hstack([csr_array((flows, 1)), -vstack([eye_array(count)] * len(sinks)), eye_array(flows)])
    fits = hstack([csr_array((len(rates), 1)), uses, csr_array((len(rates), flows))])
    found = linprog(
        np.concatenate([[-1.0], np.zeros(count + flows)]),
        A_ub=vstack([within, fits], format="csr"),
        b_ub=np.concatenate([np.zeros(flows), rates / rates.max()]),
        A_eq=conserved.tocsr(),
        b_eq=np.zeros(conserved.shape[0]),
        method="highs",
        options={"time_limit": time_limit_s},
    )
    if found.x is None or found.status != 0 or found.x[0] <= 0:
        return None
    return np.asarray(found.x[1 : 1 + count])


def _leaving(pairs: Sequence[tuple[int, int]], ranks: int) -> csr_array:
    """1 where a pair leaves a rank, -1 where it enters; [ranks, pairs]."""
    ends = np.array(pairs)
    numbers = np.arange(len(pairs))
    values = np.concatenate([np.ones(len(pairs)), -np.ones(len(pairs))])
    places = (ends.T.ravel(), np.concatenate([numbers, numbers]))
    return coo_array((values, places), shape=(ranks, len(pairs))).tocsr()
