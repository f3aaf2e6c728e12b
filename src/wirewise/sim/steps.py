"""Replay of every recorded step in sequence, compared with the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.cost.intervals import percentiles95
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.sim.breakdown import Breakdown, break_down, mean_breakdown, overlap_share
from wirewise.sim.rewrite import skew_of
from wirewise.sim.step_replay import StepReplay, is_compute, replay
from wirewise.sim.whatif import Change, WhatIfJob, apply
from wirewise.trace.dataflow import KINDS, Dataflow

__all__ = [
    "CriticalOp",
    "RecordedStep",
    "ReplayReport",
    "StepPrediction",
    "StepTimes",
    "replay_changed",
    "replay_steps",
    "without_interference",
]

Vector = NDArray[np.float64]

_OUTLIER_DEVIATIONS = 3.0
_RESAMPLES = 2000


class RecordedStep(NamedTuple):
    """Recorded step on aligned clocks."""

    number: int
    dataflow: Dataflow
    begin_s: Vector
    """Time at which each rank began, [ranks]."""
    end_s: Vector
    """Time at which each rank finished, [ranks]."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Period of one step, as a mean over ranks: from the end of the previous step, if that was recorded."""

    step: int
    measured_s: float
    predicted_s: float
    outlier: bool
    """Whether its measured time is more than 3 median absolute deviations off the median; excluded from means."""


class CriticalOp(msgspec.Struct, frozen=True, kw_only=True):
    """Op on the critical path."""

    name: str
    kind: str
    rank: int
    start_s: float
    end_s: float


class StepPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Periods of simulated steps."""

    predicted_step_s: float
    """Mean of the periods."""
    p50_s: float
    p95_s: float
    ci95_s: tuple[float, float]
    """95 % confidence interval of the mean, by bootstrap."""
    ranks: int
    breakdown: Breakdown
    """Mean of ranks and steps; adds up to the mean period."""
    critical_path: list[CriticalOp]
    """Critical path of the step closest to the median."""
    source: str = "simulated"


class ReplayReport(StepPrediction, frozen=True, kw_only=True):
    """Replay of a trace, and of the trace with changes."""

    measured_step_s: float
    error: float
    """Relative error of the means, predicted / measured - 1."""
    error_ci95: tuple[float, float]
    """95 % interval of `error` by bootstrap over steps; if it contains 0, the error is not significant."""
    steps: int
    """Number of steps in the means."""
    interference: float
    per_step: list[StepTimes]
    what_if: StepPrediction | None = None


def replay_steps(
    steps: Sequence[RecordedStep],
    links: Links,
    *,
    interference: float = 1.0,
    what_if: Sequence[Change] = (),
) -> ReplayReport:
    """Replay recorded steps in order, each rank continuing where its previous step left it.

    Mean durations are not enough: the mean wait for the slowest rank exceeds the wait for the slowest mean. Every
    step is therefore replayed with its own durations, and the periods are averaged.

    Args:
        steps: Steps in order; one that does not directly follow its predecessor starts as measured.
        links: Links of the hosts of the graphs.
        interference: Slowdown factor of compute that overlaps with communication (`cost.interference`).
        what_if: Changes (`whatif.parse`); the report then includes the prediction with them.

    Raises:
        InputError: There are no steps, they differ in the number of ranks, or take no time.
    """
    _check(steps)
    flows = [without_interference(step.dataflow, links, interference) for step in steps]
    measured = _measured(steps)
    if not (measured > 0).all():
        empty = steps[int(np.argmin(measured))]
        raise InputError(
            f"step {empty.number} takes {measured.min():g} s; expected more than 0: its times are damaged, record again"
        )
    outlier = _outliers(measured)
    kept = np.flatnonzero(~outlier)
    predicted, replays, parts = _chain(steps, flows, [links] * len(steps), interference)
    base = _summary(predicted[kept], [replays[i] for i in kept], [parts[i] for i in kept])
    changed = _with_changes(steps, flows, links, what_if, interference, kept) if what_if else None
    both = np.stack([predicted[kept], measured[kept]])
    errors = _resampled(both)
    return ReplayReport(
        **{name: getattr(base, name) for name in base.__struct_fields__},
        measured_step_s=float(measured[kept].mean()),
        error=float(both[0].mean() / both[1].mean() - 1.0),
        error_ci95=percentiles95(errors[0] / errors[1] - 1.0),
        steps=len(kept),
        interference=interference,
        per_step=[
            StepTimes(step=step.number, measured_s=float(m), predicted_s=float(p), outlier=bool(o))
            for step, m, p, o in zip(steps, measured, predicted, outlier, strict=True)
        ],
        what_if=changed,
    )


def replay_changed(
    steps: Sequence[RecordedStep], links: Links, what_if: Sequence[Change], *, interference: float = 1.0
) -> StepPrediction:
    """Replay recorded steps with changes, without replaying the unchanged ones (`replay_steps`).

    Raises:
        InputError: Raised by `replay_steps`, or a change does not fit the job.
    """
    _check(steps)
    flows = [without_interference(step.dataflow, links, interference) for step in steps]
    kept = np.flatnonzero(~_outliers(_measured(steps)))
    return _with_changes(steps, flows, links, what_if, interference, kept)


def _check(steps: Sequence[RecordedStep]) -> None:
    sizes = sorted({(step.dataflow.ranks, len(step.begin_s), len(step.end_s)) for step in steps})
    if len(sizes) != 1 or len(set(sizes[0])) != 1:
        raise InputError(
            f"got {len(steps)} steps with graphs, begins and ends of {sizes} ranks; expected steps of one job"
        )


def _with_changes(
    steps: Sequence[RecordedStep],
    flows: list[Dataflow],
    links: Links,
    what_if: Sequence[Change],
    interference: float,
    kept: NDArray[np.int64],
) -> StepPrediction:
    skew = np.concatenate([skew_of(flow) for flow in flows])
    settings = [
        apply(
            list(what_if),
            WhatIfJob(dataflow=flow, links=links, skew=skew, random=np.random.default_rng(number)),
        )
        for number, flow in enumerate(flows)
    ]
    periods, replays, parts = _chain(
        steps, [s.dataflow for s in settings], [s.links for s in settings], interference
    )
    return _summary(periods[kept], [replays[i] for i in kept], [parts[i] for i in kept])


def without_interference(flow: Dataflow, links: Links, interference: float) -> Dataflow:
    """Remove the slowdown of compute that overlaps with communication from a graph.

    Args:
        flow: Graph that was recorded.
        links: Links of its hosts.
        interference: Slowdown factor of compute that overlaps with communication (`cost.interference`).
    """
    if interference == 1.0:
        return flow
    seen = replay(flow, links)
    share = overlap_share(flow, seen.start_s, seen.end_s)
    own = flow.duration_s * (1.0 - share * (1.0 - 1.0 / interference))
    return replace(flow, duration_s=np.where(is_compute(flow), own, flow.duration_s))


def _follows(steps: Sequence[RecordedStep], place: int) -> bool:
    return place > 0 and steps[place].number == steps[place - 1].number + 1


def _measured(steps: Sequence[RecordedStep]) -> Vector:
    """Period of each step, [steps]."""
    return np.array(
        [
            (step.end_s - (steps[i - 1].end_s if _follows(steps, i) else step.begin_s)).mean()
            for i, step in enumerate(steps)
        ]
    )


def _outliers(periods: Vector) -> NDArray[np.bool_]:
    far = np.abs(periods - np.median(periods))
    spread = 1.4826 * float(np.median(far))
    found: NDArray[np.bool_] = far > _OUTLIER_DEVIATIONS * spread + 1e-9 * float(np.median(periods))
    return found


def _chain(
    steps: Sequence[RecordedStep], flows: list[Dataflow], links: list[Links], interference: float
) -> tuple[Vector, list[StepReplay], list[Breakdown]]:
    """Replay steps one after the other: periods [steps], replays and where their time goes."""
    periods, replays, parts = [], [], []
    done = np.zeros(0)
    for place, (step, flow) in enumerate(zip(steps, flows, strict=True)):
        # Ranks that a change added do as the measured ones do.
        if _follows(steps, place):
            before = done - done.min()
            idle = np.maximum(step.begin_s - steps[place - 1].end_s, 0.0)
            begin = before + np.resize(idle, flow.ranks)
        else:
            begin = before = np.resize(step.begin_s - step.begin_s.min(), flow.ranks)
        result = replay(flow, links[place], interference=interference, begin_s=begin)
        done = result.finish_s
        periods.append(float((done - before).mean()))
        replays.append(result)
        parts.append(mean_breakdown(break_down(result.dataflow, result.start_s, result.end_s, before, done)))
    return np.array(periods), replays, parts


def _resampled(values: Vector) -> Vector:
    """Means of columns drawn with replacement, [rows, resamples]."""
    random = np.random.default_rng(0)
    columns = random.integers(0, values.shape[1], (_RESAMPLES, values.shape[1]))
    means: Vector = values[:, columns].mean(axis=2)
    return means


def _summary(periods: Vector, replays: list[StepReplay], parts: list[Breakdown]) -> StepPrediction:
    p50, p95 = np.percentile(periods, [50, 95]).tolist()
    typical = replays[int(np.argmin(np.abs(periods - p50)))]
    flow = typical.dataflow
    return StepPrediction(
        predicted_step_s=float(periods.mean()),
        p50_s=p50,
        p95_s=p95,
        ci95_s=percentiles95(_resampled(periods[None])[0]),
        ranks=flow.ranks,
        breakdown=mean_breakdown(parts),
        critical_path=[
            CriticalOp(
                name=flow.names[op],
                kind=KINDS[flow.kind[op]],
                rank=int(flow.rank[op]),
                start_s=float(typical.start_s[op]),
                end_s=float(typical.end_s[op]),
            )
            for op in typical.critical_path().ops.tolist()
        ],
    )
