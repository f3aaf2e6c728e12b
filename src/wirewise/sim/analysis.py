"""Complete analysis of a trace for a report: its replay, its bottleneck, and the effect of changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.sim.breakdown import Breakdown
from wirewise.sim.diagnose import (
    BALANCED,
    DATA_READY,
    NO_COMMUNICATION,
    NO_LATENCY,
    Diagnosis,
    diagnose,
    remove_straggler,
)
from wirewise.sim.links import prepare
from wirewise.sim.sensitivity import LinkSensitivity, OpSensitivity, link_sensitivity, op_sensitivity
from wirewise.sim.step_replay import StepReplay, is_compute, replay
from wirewise.sim.steps import RecordedStep, ReplayReport, StepPrediction, replay_changed, replay_steps
from wirewise.sim.stragglers import compute_seconds, find_straggler, find_uneven
from wirewise.sim.traces import TraceRecording, record
from wirewise.sim.whatif import parse
from wirewise.trace.chrome import places
from wirewise.trace.dataflow import COLLECTIVES, Dataflow, coarsen
from wirewise.trace.files import ignore_progress
from wirewise.trace.records import Trace
from wirewise.trace.sketch import GraphSketch

__all__ = [
    "WHAT_IFS",
    "TraceAnalysis",
    "WhatIf",
    "analyse",
    "baselines",
    "critical_ops",
    "one_rank_s",
    "replay_step",
    "slower_part_s",
    "sum_of_parts_s",
    "typical_step",
]

WHAT_IFS = (
    "bandwidth=*:x2",
    "bandwidth=*:x4",
    NO_LATENCY,
    "bucket_mb=1",
    "bucket_mb=5",
    "bucket_mb=25",
    "bucket_mb=100",
    NO_COMMUNICATION,
)
"""Changes that every report tries, if they fit the job."""

_MOST_STEPS = 8
_MOST_OPS = 20_000
"""Graphs of more ops are made coarser before they are simulated again and again."""
_MOST_HOSTS = 32
_SENSITIVE_OPS = 10


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Change that was tried."""

    change: str
    """Change as text, in the format of `whatif.parse`."""
    prediction: StepPrediction | None
    refused: str = ""
    """Reason why there is no prediction."""


class TraceAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """Analysis of a trace; a report needs only the trace and this."""

    report: ReplayReport
    diagnosis: Diagnosis
    what_ifs: list[WhatIf]
    baselines: dict[str, float]
    """Seconds of a step by simpler predictions (`baselines`)."""
    links: Links
    step: int
    """Step whose measured time is nearest to the median."""
    ranks: list[Breakdown]
    """Breakdown of that step on each rank, replayed."""
    critical: set[tuple[int, int]]
    """Traced ops on the critical path of that step, as (rank, index in its list)."""
    compute_s: list[float]
    """Seconds that each rank computes in a step, median over steps."""
    link_sensitivity: list[LinkSensitivity]
    """Sensitivity of that step to each link."""
    op_sensitivity: list[OpSensitivity]


def analyse(
    trace: Trace,
    what_ifs: Sequence[str] = WHAT_IFS,
    log: Callable[[str], None] = ignore_progress,
    recording: TraceRecording | None = None,
) -> TraceAnalysis:
    """Replay a trace unchanged and with each change alone, and name the bottleneck of a step.

    Args:
        trace: Trace on aligned clocks.
        what_ifs: Changes to try, in the format of `whatif.parse`. Those that detect stragglers and late data are
            added, and those of links left out if all ranks are on one host. A change that does not fit the job is
            kept with the reason.
        log: Called with progress messages.
        recording: Steps and links of the trace. Defaults to the result of `record`.

    Raises:
        InputError: Raised by `replay_trace`.
    """
    log("building the graphs of the steps")
    found, seconds = recording or record(trace), compute_seconds(trace)
    log(f"replaying {len(found.steps)} steps")
    report = replay_steps(found.steps, found.links, interference=found.interference)
    rows = []
    for change in (*_possible(trace, what_ifs), *_own(trace, seconds)):
        log(f"replaying them with {change}")
        rows.append(_try(found, change))
    log("looking for what bounds the step")
    known = {row.change: row.prediction for row in rows if row.prediction is not None}
    typical = typical_step(found, report)
    replayed = replay_step(found, typical)
    small = _smaller(found, typical)
    hosts = small.dataflow.host_count
    return TraceAnalysis(
        report=report,
        diagnosis=diagnose(trace, report, known, seconds),
        what_ifs=rows,
        baselines=baselines(found),
        links=found.links,
        step=typical.number,
        ranks=replayed.breakdowns(),
        critical=places(trace, replayed.dataflow, replayed.critical_path().ops.tolist()),
        compute_s=np.median(seconds, axis=1).tolist(),
        link_sensitivity=link_sensitivity(small) if 1 < hosts <= _MOST_HOSTS else [],
        op_sensitivity=op_sensitivity(small, maximum=_SENSITIVE_OPS),
    )


def typical_step(recording: TraceRecording, report: ReplayReport) -> RecordedStep:
    """Step with the measured time nearest to the median."""
    measured = np.array([step.measured_s for step in report.per_step])
    return recording.steps[int(np.argmin(np.abs(measured - np.median(measured))))]


def replay_step(recording: TraceRecording, step: RecordedStep) -> StepReplay:
    """Replay a single step, with its ranks' recorded start times."""
    begin = step.begin_s - step.begin_s.min()
    return replay(step.dataflow, recording.links, begin_s=begin)


def critical_ops(trace: Trace) -> set[tuple[int, int]]:
    """Traced ops on the critical path of any step, as (rank, index in its list).

    Args:
        trace: Trace on aligned clocks.

    Raises:
        InputError: Raised by `replay_trace`.
    """
    recording = record(trace)
    found: set[tuple[int, int]] = set()
    for step in recording.steps:
        replayed = replay_step(recording, step)
        found |= places(trace, replayed.dataflow, replayed.critical_path().ops.tolist())
    return found


def baselines(recording: TraceRecording) -> dict[str, float]:
    """Mean step time by "daydream", "sum" and "max" over at most 8 steps, in seconds."""
    places = np.unique(np.linspace(0, len(recording.steps) - 1, _MOST_STEPS).round().astype(int))
    graphs = [recording.steps[place].dataflow for place in places]
    functions = {"daydream": one_rank_s, "sum": sum_of_parts_s, "max": slower_part_s}
    return {
        name: float(np.mean([predicted(graph, recording.links) for graph in graphs]))
        for name, predicted in functions.items()
    }


def _possible(trace: Trace, what_ifs: Sequence[str]) -> list[str]:
    """Changes but those of links between hosts where there is one host, and of buckets where one rank reduces none."""
    refused: tuple[str, ...] = ()
    if len({rank.header.host for rank in trace.ranks}) == 1:
        refused += ("bandwidth=", "latency=")
    if trace.world_size == 1 and not any(op.collective == "all_reduce" for op in trace.ranks[0].ops):
        refused += ("bucket_mb=",)
    return [change for change in what_ifs if not change.startswith(refused)]


def _own(trace: Trace, compute_s: NDArray[np.float64]) -> list[str]:
    """Changes that only some traces have."""
    straggler = find_straggler(trace, compute_s)
    found = [remove_straggler(straggler)] if straggler else []
    if find_uneven(compute_s):
        found.append(BALANCED)
    if any(op.kind == "data" for rank in trace.ranks for op in rank.ops):
        found.append(DATA_READY)
    return found


def _try(recording: TraceRecording, change: str) -> WhatIf:
    changes = parse(change)
    try:
        prediction = replay_changed(
            recording.steps, recording.links, changes, interference=recording.interference
        )
    except InputError as cause:
        return WhatIf(change=change, prediction=None, refused=str(cause))
    return WhatIf(change=change, prediction=prediction)


def _smaller(recording: TraceRecording, step: RecordedStep) -> StepReplay:
    if len(step.dataflow.names) > _MOST_OPS:
        step = step._replace(dataflow=coarsen(step.dataflow))
    return replay_step(recording, step)


def one_rank_s(dataflow: Dataflow, links: Links, rank: int = 0) -> float:
    """Step time from one rank's graph alone, in the style of Daydream (Zhu et al., USENIX ATC 2020), in seconds.

    Each transfer takes bytes * 2 (N - 1) / N over the bandwidth of the rank's interface, ignoring latency, other
    ranks and contention.
    """
    sketch = GraphSketch.of(dataflow)
    rate = float(links.bandwidth_out_bytes_per_s[dataflow.hosts[rank]])
    n = dataflow.ranks
    # All at once: each removal looks through the whole graph.
    sketch.remove([op for op, node in sketch.nodes.items() if node.rank not in (-1, rank)])
    for node in sketch.nodes.values():
        if node.flows:
            share = 2.0 * (n - 1) / n if node.collective == COLLECTIVES[1] else 1.0
            node.duration_s, node.flows = share * node.size_bytes / rate, []
    return replay(sketch.dataflow(), links).step_s


def _parts(dataflow: Dataflow, links: Links) -> tuple[float, float]:
    """Compute of the busiest rank, and all transfers one after the other."""
    compute = np.zeros(dataflow.ranks)
    own = is_compute(dataflow)
    np.add.at(compute, dataflow.rank[own], dataflow.duration_s[own])
    prepared = prepare(dataflow, links)
    uses, ops = prepared.uses, prepared.ops
    slowest = np.zeros(len(dataflow.names))
    need = uses.weight * ops.work[uses.owner] / uses.capacity[uses.interface]
    np.maximum.at(slowest, uses.owner, need)
    transfer = dataflow.size_bytes > 0
    return float(compute.max(initial=0.0)), float((slowest + ops.duration)[transfer].sum())


def sum_of_parts_s(dataflow: Dataflow, links: Links) -> float:
    """Compute plus communication, without overlap, in seconds."""
    return sum(_parts(dataflow, links))


def slower_part_s(dataflow: Dataflow, links: Links) -> float:
    """Larger of compute and communication, with full overlap, in seconds."""
    return max(_parts(dataflow, links))
