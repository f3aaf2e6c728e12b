"""Seconds that a mini-batch's rows of other machines take, by plan and links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.plans.cache import CachePlan
from wirewise.sim.timeline import Span, Timeline

__all__ = ["ID_BYTES", "fetch_batch"]

ID_BYTES = 4
"""Of a row's number on the wire."""


def fetch_batch(plan: CachePlan, row_bytes: int, links: Links) -> Timeline:
    """When each machine has its ids out and its rows in; both exchanges end for all at once, as collectives do.

    Args:
        plan: Rows by sender and receiver.
        row_bytes: Of one row on the wire.
        links: Of the machines; those of one host share its interface.

    Raises:
        PlanError: The links are those of another number of ranks.
    """
    if links.world_size != plan.world_size:
        raise PlanError(
            f"the plan is for {plan.world_size} ranks, the links are those of {links.world_size}; give the links of "
            "this job"
        )
    rows = plan.fetched
    ids_s = _exchange_s(rows.T, ID_BYTES, links)
    rows_s = _exchange_s(rows, row_bytes, links)
    spans = []
    for rank in range(plan.world_size):
        spans.append(Span(rank=rank, phase="ids", exchange="batch", start_s=0.0, end_s=ids_s))
        spans.append(Span(rank=rank, phase="rows", exchange="batch", start_s=ids_s, end_s=ids_s + rows_s))
    return Timeline(spans=tuple(spans), world_size=plan.world_size)


def _exchange_s(rows: NDArray[np.float64], row_bytes: int, links: Links) -> float:
    """The busiest interface decides: what it takes in (a row of the matrix) or gives out (a column)."""
    host = links.host_of_rank
    crossing = np.where(host[:, None] != host, rows * row_bytes, 0.0)
    taken = np.bincount(host, crossing.sum(axis=1), links.hosts) / links.bandwidth_in_bytes_per_s
    given = np.bincount(host, crossing.sum(axis=0), links.hosts) / links.bandwidth_out_bytes_per_s
    return float(links.latency_s.max(initial=0.0) + max(taken.max(initial=0.0), given.max(initial=0.0)))
