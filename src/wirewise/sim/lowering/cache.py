"""Lowering of cache plans to a mini-batch: rows of other ranks are fetched unless cached."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.plans.cache import CachePlan
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.timeline import Span, Timeline

__all__ = ["ID_BYTES", "BatchTimes", "lower_cache"]

ID_BYTES = 4
"""Bytes of a row's number on the wire."""


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Times of a mini-batch on a rank, apart from the exchange of rows.

    Raises:
        InputError: A value is negative or not finite, or rows have no bytes.
    """

    row_bytes: int
    """Bytes of one row on the wire."""
    sample_s: float = 0.0
    """Seconds of sampling, before rows are requested."""
    train_s: float = 0.0
    """Seconds of training, once the rows have arrived."""

    def __post_init__(self) -> None:
        if self.row_bytes < 1 or not all(isfinite(s) and s >= 0 for s in (self.sample_s, self.train_s)):
            raise InputError(f"got {self}; expected rows of at least 1 byte and finite seconds of at least 0")


def lower_cache(plan: CachePlan, job: Any, links: Any) -> Prediction:
    """Simulate one batch of every rank: sample, request rows, receive them, train; see `predict`.

    Both exchanges end for all ranks at once, as collectives do, and the busiest interface decides when: that of the
    mean batch, times the plan's imbalance.
    """
    times, links = expect("job", job, BatchTimes, plan), expect("links", links, Links, plan)
    same_ranks(plan, links.world_size, "the links have")
    rows = plan.imbalance * plan.fetched
    lengths = {
        "sample": times.sample_s,
        "ids": _exchange_s(rows.T, ID_BYTES, links),
        "rows": _exchange_s(rows, times.row_bytes, links),
        "train": times.train_s,
    }
    spans, now = [], 0.0
    for phase, seconds in lengths.items():
        if seconds > 0:
            spans.append(Span(rank=0, phase=phase, exchange="batch", start_s=now, end_s=now + seconds))
        now += seconds
    everybody = (tuple(range(plan.world_size)),)
    timeline = Timeline(spans=tuple(spans), world_size=plan.world_size, classes=everybody)
    return prediction_of(plan, "batch", timeline, now)


def _exchange_s(rows: NDArray[np.float64], row_bytes: int, links: Links) -> float:
    """The busiest interface decides: what it takes in (a row of the matrix) or gives out (a column)."""
    host = links.host_of_rank
    crossing = np.where(host[:, None] != host, rows * row_bytes, 0.0)
    taken = np.bincount(host, crossing.sum(axis=1), links.hosts) / links.bandwidth_in_bytes_per_s
    given = np.bincount(host, crossing.sum(axis=0), links.hosts) / links.bandwidth_out_bytes_per_s
    return float(links.latency_s.max(initial=0.0) + max(taken.max(initial=0.0), given.max(initial=0.0)))
