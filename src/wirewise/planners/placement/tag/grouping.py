"""Grouping of a model's modules into op groups."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from wirewise.extras import import_extra
from wirewise.trace.stages import StageTrace

__all__ = ["group_modules"]

_LEAST_BYTES = 1000
"""Weight of an edge without bytes, as in TAG."""


def group_modules(trace: StageTrace, groups: int) -> list[list[int]]:
    """Group modules; returns module indices of each group, in topological order.

    METIS cuts the graph of modules where few bytes flow, with modules weighted by the root of their seconds (S. Zhang
    et al., TAG, TPDS 2023). Groups that wait for each other are cut again along the order of modules. Where several
    groups can be next, the one with the longest path behind it is (HEFT).

    Args:
        trace: Modules of the model.
        groups: Largest number of groups.
    """
    n = len(trace.modules)
    seconds = np.array([m.forward_s[-1] + m.backward_s[-1] for m in trace.modules])
    part = np.arange(n) if n <= groups else _cut(trace, groups, seconds)
    part = _acyclic(part, trace.flows, seconds)
    return _ordered(part, trace.flows, seconds)


def _cut(trace: StageTrace, groups: int, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    n, neighbours = len(trace.modules), defaultdict[int, dict[int, int]](dict)
    for source, target in trace.flows:
        weight = int(min(max(trace.modules[source].output_bytes, _LEAST_BYTES) / _LEAST_BYTES, 2**20))
        for a, b in ((source, target), (target, source)):
            neighbours[a][b] = neighbours[a].get(b, 0) + weight
    starts = np.cumsum([0, *(len(neighbours[m]) for m in range(n))])
    root = np.sqrt(seconds)
    weights = np.maximum(1000 * root / max(root.max(), 1e-30), 1).astype(int)
    # Of an extra, which a model of few modules does not need.
    pymetis = import_extra("pymetis", "gnn", f"a grouping of {n} modules")
    _, part = pymetis.part_graph(
        groups,
        adjacency=pymetis.CSRAdjacency(starts, [other for m in range(n) for other in neighbours[m]]),
        eweights=[weight for m in range(n) for weight in neighbours[m].values()],
        vweights=weights.tolist(),
        options=pymetis.Options(seed=0, ufactor=500),
    )
    return np.unique(part, return_inverse=True)[1].astype(np.int64)


def _acyclic(
    part: NDArray[np.int64], flows: tuple[tuple[int, int], ...], seconds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Groups that reach each other, cut again into as many runs of about equal seconds."""
    count = int(part.max()) + 1
    edges = np.array([(part[a], part[b]) for a, b in flows if part[a] != part[b]]).reshape(-1, 2)
    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(count, count))
    _, strong = connected_components(graph, directed=True, connection="strong")
    found = np.empty_like(part)
    made = 0
    for component in range(strong.max() + 1):
        members = np.flatnonzero(strong == component)
        modules = np.flatnonzero(np.isin(part, members))
        done = np.cumsum(seconds[modules]) - seconds[modules] / 2
        run = (done / max(seconds[modules].sum(), 1e-30) * len(members)).astype(np.int64)
        run = np.unique(np.minimum(run, len(members) - 1), return_inverse=True)[1]
        found[modules] = made + run
        made += int(run.max()) + 1
    return found


def _ordered(
    part: NDArray[np.int64], flows: tuple[tuple[int, int], ...], seconds: NDArray[np.float64]
) -> list[list[int]]:
    count = int(part.max()) + 1
    edges = {(int(part[a]), int(part[b])) for a, b in flows if part[a] != part[b]}
    own = np.bincount(part, seconds, minlength=count)
    waits = np.bincount([b for _, b in edges], minlength=count) if edges else np.zeros(count, int)
    rank, order = np.array(own), list[int]()
    ready = [group for group in range(count) if waits[group] == 0]
    # First any order, for ranks; then the one by ranks.
    for by_rank in (False, True):
        left, order, ready = waits.copy(), [], [group for group in range(count) if waits[group] == 0]
        while ready:
            group = max(ready, key=lambda one: (rank[one], -one)) if by_rank else ready[0]
            ready.remove(group)
            order.append(group)
            for a, b in sorted(edges):
                if a == group:
                    left[b] -= 1
                    if left[b] == 0:
                        ready.append(b)
        if not by_rank:
            for group in reversed(order):
                rank[group] = own[group] + max((rank[b] for a, b in edges if a == group), default=0.0)
    return [np.flatnonzero(part == group).tolist() for group in order]
