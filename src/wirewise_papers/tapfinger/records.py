"""Records of queues, simulated and executed."""

from __future__ import annotations

import msgspec

from wirewise.results import ExecutedQueue

__all__ = ["JobsRun", "RealQueue", "SchedulerRecord"]


class SchedulerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated queues under one scheduler; times in slots."""

    mean_jct: float
    """Mean job completion time, averaged over queues, in slots."""
    ci95: tuple[float, float]
    """95 % interval of that mean, by Student's t over the queues."""
    makespan: float
    """Mean slot in which the last job of a queue ends."""
    p99: float
    """99th percentile of job completion time, averaged over queues, in slots."""
    quantiles: tuple[float, ...]
    """Percentiles 0, 5, ..., 100 of job completion time over all queues, in slots."""


class RealQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Measured queue of real jobs under one scheduler, with its prediction."""

    planner: str
    predicted_jct_s: float
    """Simulated mean job completion time, in seconds."""
    measured_jct_s: float
    """Measured mean completion time of the jobs that were not abandoned, in seconds."""
    error: float
    """Relative error, predicted / measured - 1."""
    predicted_makespan_s: float
    measured_makespan_s: float
    slot_s: float
    clusters: tuple[str, ...]
    predicted_ends_s: dict[str, float]
    """Simulated end of each job."""
    executed: ExecutedQueue
    start_s: float
    """Median seconds of a start, measured beforehand."""
    stop_s: float
    """Median seconds of a stop, measured beforehand."""
    kept: float
    """Fraction of a slot's progress that a job makes if it was resized in the slot, by these times."""
    step_s: dict[str, dict[str, float]]
    """Measured seconds of a step, by kind, then by processors and accelerators as "2x1"."""
    notes: tuple[str, ...] = ()


class JobsRun(msgspec.Struct, frozen=True, kw_only=True):
    """Schedulers compared on simulated queues, and one of them on real jobs."""

    queues: str
    """Description of the queues' distribution."""
    seeds: int
    kept: float
    """Fraction of a slot's progress that a job makes if it was resized in the slot, simulated."""
    schedulers: dict[str, SchedulerRecord]
    """Schedulers by name, by ascending mean completion time."""
    real: RealQueue | None
