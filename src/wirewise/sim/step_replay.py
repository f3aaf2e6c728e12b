"""Replay of one step's dataflow graph: times of every op, critical path, breakdown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.interference import slowed_s
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.sim import critical
from wirewise.sim.breakdown import Breakdown, break_down, mean_breakdown, members, overlap_share
from wirewise.sim.engine import Run, run
from wirewise.sim.links import PreparedGraph, prepare
from wirewise.sim.timeline import Span, Timeline
from wirewise.trace.dataflow import KINDS, Dataflow

__all__ = ["CriticalPath", "StepReplay", "replay"]

Vector = NDArray[np.float64]

_ROUNDS_OF_INTERFERENCE = 8


@dataclass(frozen=True)
class CriticalPath:
    """Ops that determine the end of a step."""

    ops: NDArray[np.int64]
    """Ops in order; the end of each enabled the start of the next."""
    slack_s: Vector
    """Slack of each op, [n]: seconds that it can end later without delaying the end of the step."""


@dataclass(frozen=True)
class StepReplay:
    """Simulated step; all times in seconds on one clock."""

    dataflow: Dataflow
    """Graph with durations that include the fitted interference."""
    links: Links
    prepared: PreparedGraph
    run: Run
    begin_s: Vector
    """Earliest start of each rank, [ranks]."""

    @property
    def start_s(self) -> Vector:
        """Start of every op, in seconds, [n]."""
        return self.run.start

    @property
    def end_s(self) -> Vector:
        """End of every op, in seconds, [n]."""
        return self.run.end

    @property
    def step_s(self) -> float:
        """Seconds from the first rank's start to the last op's end."""
        return (
            float(self.run.end.max(initial=0.0) - self.begin_s.min(initial=np.inf))
            if len(self.run.end)
            else 0.0
        )

    @cached_property
    def finish_s(self) -> Vector:
        """End of each rank's own ops and the idle time after them, in seconds, [ranks]."""
        own = self.dataflow.rank >= 0
        found = self.begin_s.copy()
        np.maximum.at(found, self.dataflow.rank[own], (self.run.end + self.dataflow.gap_s)[own])
        return found

    def critical_path(self) -> CriticalPath:
        """Critical path, and slack of all ops, through the graph and the order on resources."""
        return CriticalPath(critical.critical_path(self.run), critical.slack(self.prepared.ops, self.run))

    def breakdown(self) -> Breakdown:
        """Breakdown of the step of the mean rank."""
        return mean_breakdown(self.breakdowns())

    def breakdowns(self) -> list[Breakdown]:
        """Breakdown of the step of each rank."""
        until = np.full(self.dataflow.ranks, self.run.end.max(initial=0.0))
        begin = np.full(self.dataflow.ranks, self.begin_s.min(initial=0.0))
        return break_down(self.dataflow, self.run.start, self.run.end, begin, until)

    def timeline(self, classes: tuple[tuple[int, ...], ...] = ()) -> Timeline:
        """Spans of all ops with a duration; the phase is the kind, the exchange the name.

        A transfer is a span of each participating rank, and an op without a rank one of all.

        Args:
            classes: Classes of equivalent ranks, of which the graph has the ops of the first; empty if it has those
                of all.
        """
        flow = self.dataflow
        everybody = [own[0] for own in classes] or list(range(flow.ranks))
        parts = members(flow)
        spans = [
            Span(
                rank=rank,
                phase=KINDS[flow.kind[op]],
                exchange=flow.names[op],
                start_s=float(self.run.start[op]),
                end_s=float(self.run.end[op]),
            )
            for op in np.flatnonzero(self.run.end > self.run.start).tolist()
            for rank in ([int(flow.rank[op])] if flow.rank[op] >= 0 else parts[op].tolist() or everybody)
        ]
        return Timeline(spans=tuple(spans), world_size=flow.ranks, classes=classes)


def replay(
    dataflow: Dataflow, links: Links, *, interference: float = 1.0, begin_s: Vector | None = None
) -> StepReplay:
    """Simulate a step.

    Args:
        dataflow: Graph of all ranks.
        links: Bandwidths and latencies of its hosts.
        interference: Slowdown factor of compute while its rank communicates; `dataflow.duration_s` is then the time
            without communication.
        begin_s: Earliest start of each rank, in seconds, [ranks]. Defaults to 0.

    Raises:
        InputError: Ops form a cycle, a time is negative or not finite, or links are of too few hosts.
    """
    _check(dataflow)
    begin = np.zeros(dataflow.ranks) if begin_s is None else np.asarray(begin_s, dtype=np.float64)
    result = _once(dataflow, links, begin)
    if interference == 1.0:
        return result
    compute = is_compute(dataflow)
    for _ in range(_ROUNDS_OF_INTERFERENCE):
        share = overlap_share(result.dataflow, result.start_s, result.end_s)
        seconds = np.where(compute, slowed_s(dataflow.duration_s, share, interference), dataflow.duration_s)
        settled = np.allclose(seconds, result.dataflow.duration_s, rtol=1e-4, atol=0.0)
        result = _once(replace(dataflow, duration_s=seconds), links, begin)
        if settled:
            break
    return result


def is_compute(dataflow: Dataflow) -> NDArray[np.bool_]:
    """Mask of the ops that occupy one rank's compute resource, [n]."""
    idle = [KINDS.index(kind) for kind in ("communication", "wait", "step", "data")]
    return (dataflow.rank >= 0) & ~np.isin(dataflow.kind, idle)


def _once(dataflow: Dataflow, links: Links, begin: Vector) -> StepReplay:
    prepared = prepare(dataflow, links, begin)
    out = run(prepared.ops, prepared.uses)
    never = np.flatnonzero(np.isnan(out.end))
    if len(never):
        names = ", ".join(repr(dataflow.names[op]) for op in never[:5])
        raise InputError(
            f"{len(never)} ops wait for each other, among them {names}; expected a graph without cycles: "
            "check the clocks and the order of the trace"
        )
    return StepReplay(dataflow, links, prepared, out, begin)


def _check(dataflow: Dataflow) -> None:
    for name in ("duration_s", "gap_s", "size_bytes"):
        values = getattr(dataflow, name)
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(bad):
            raise InputError(
                f"{name} of op {dataflow.names[bad[0]]!r} is {values[bad[0]]}; expected a finite number >= 0: "
                "check the clocks of the trace"
            )
