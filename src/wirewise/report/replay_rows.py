"""Tables of a replayed trace as text cells, for terminals and pages alike."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from wirewise.report import svg
from wirewise.report.figures import MISSING, finite, percent, seconds, signed, significant
from wirewise.sim.analysis import TraceAnalysis
from wirewise.sim.breakdown import Breakdown
from wirewise.sim.diagnose import describe_change
from wirewise.sim.steps import ReplayReport, StepPrediction
from wirewise.sim.stragglers import processor_seconds
from wirewise.trace.clocks import ClockQuality
from wirewise.trace.records import Trace
from wirewise.units import format_rate

__all__ = [
    "BASELINES",
    "PARTS",
    "TextTable",
    "baseline_rows",
    "breakdown_rows",
    "clock_rows",
    "critical_rows",
    "link_rows",
    "op_rows",
    "rank_rows",
    "step_rows",
    "what_if_rows",
]

PARTS = {
    "compute_s": "compute",
    "exposed_communication_s": "exposed communication",
    "wait_s": "waiting",
    "overlapped_communication_s": "communication beside compute",
}
BASELINES = {
    "daydream": "one rank's graph, bytes over rate (in the style of Daydream)",
    "sum": "compute plus communication",
    "max": "the larger of compute and communication",
}
_MOST_STEPS = 12


class TextTable(NamedTuple):
    """Table whose cells are all text."""

    titles: list[str]
    rows: list[list[str]]


def rank_rows(trace: Trace, analysis: TraceAnalysis) -> TextTable:
    """Ranks with their hosts, ops, compute and CPU time; the straggler is marked."""
    spent = processor_seconds(trace)
    known = [] if spent is None else ["on a processor", "waiting for one"]
    titles = ["rank", "host", "ops", "compute a step", *known, ""]
    rows = []
    for place, (recorded, compute) in enumerate(zip(trace.ranks, analysis.compute_s, strict=True)):
        rank = recorded.header.rank
        remarks = ["straggler"] if rank == analysis.diagnosis.straggler_rank else []
        remarks += [] if recorded.complete else ["cut off"]
        ops = f"{len(recorded.ops):,}"
        own = [] if spent is None else [seconds(float(part[place])) for part in spent]
        rows.append([str(rank), recorded.header.host, ops, seconds(compute), *own, ", ".join(remarks)])
    return TextTable(titles, rows)


def clock_rows(trace: Trace, qualities: list[ClockQuality]) -> TextTable:
    """Clock of each rank of an aligned trace."""
    rows = []
    for recorded, fit, quality in zip(trace.ranks, trace.offsets, qualities, strict=True):
        header = recorded.header
        drift = f"{1e6 * fit.drift:+.2f} us/s"
        cells = [seconds(fit.offset_s), drift, seconds(quality.spread_s), seconds(quality.uncertainty_s)]
        rows.append([str(header.rank), header.host, *cells])
    return TextTable(["rank", "host", "offset", "drift", "spread of ends", "off by at most"], rows)


def step_rows(report: ReplayReport) -> TextTable:
    """Measured and replayed steps, 12 at most."""
    kept = [report.per_step[i] for i in svg.thin(len(report.per_step), _MOST_STEPS)]
    rows = [
        [
            str(step.step),
            seconds(step.measured_s),
            seconds(step.predicted_s),
            signed(step.predicted_s / step.measured_s - 1) if step.measured_s > 0 else MISSING,
            "outlier, in no mean" if step.outlier else "",
        ]
        for step in kept
    ]
    return TextTable(["step", "measured", "replayed", "error", ""], rows)


def breakdown_rows(breakdown: Breakdown, after: StepPrediction | None = None) -> TextTable:
    """Breakdown of the mean rank's time, before and after changes."""
    titles = ["part of the mean rank's step", "replayed", *(["with the change"] if after else [])]
    columns = [breakdown, *([after.breakdown] if after else [])]
    rows = [[name, *(seconds(getattr(one, part)) for one in columns)] for part, name in PARTS.items()]
    return TextTable(titles, rows)


def critical_rows(report: StepPrediction, maximum: int = 10) -> TextTable:
    """Ops with the most time on the critical path."""
    taken: dict[tuple[str, str, int], float] = defaultdict(float)
    for op in report.critical_path:
        taken[op.name, op.kind, op.rank] += op.end_s - op.start_s
    whole = sum(taken.values())
    longest = sorted((key for key in taken if taken[key] > 0), key=lambda key: -taken[key])[:maximum]
    rows = []
    for key in longest:
        name, kind, rank = key
        whose = str(rank) if rank >= 0 else "several"
        rows.append([name, kind, whose, seconds(taken[key]), percent(taken[key] / whole)])
    return TextTable(["op on the critical path", "kind", "rank", "time", "of the path"], rows)


def baseline_rows(report: ReplayReport, baselines: dict[str, float]) -> TextTable:
    """Replay and simpler predictions compared with the measurement."""
    rows = [["measured", seconds(report.measured_step_s), ""]]
    rows.append(["replay", seconds(report.predicted_step_s), signed(report.error)])
    for name, value in baselines.items():
        rows.append([BASELINES[name], seconds(value), signed(value / report.measured_step_s - 1)])
    return TextTable(["step", "time", "error"], rows)


def what_if_rows(analysis: TraceAnalysis) -> TextTable:
    """Changes with their predicted step times, or why these are unknown."""
    base = analysis.report.predicted_step_s
    rows = []
    for row in analysis.what_ifs:
        found = row.prediction
        if found is None:
            rows.append([describe_change(row.change), row.change, MISSING, MISSING, row.refused])
            continue
        low, high = found.ci95_s
        interval = f"95 %: {seconds(low)} to {seconds(high)}"
        after = found.predicted_step_s
        rows.append(
            [describe_change(row.change), row.change, seconds(after), signed(after / base - 1), interval]
        )
    return TextTable(["change", "--what-if", "step", "longer by", ""], rows)


def link_rows(analysis: TraceAnalysis, hosts: list[str]) -> TextTable:
    """Gains of faster links."""
    rates = analysis.links.bandwidth_out_bytes_per_s
    rows = []
    for one in analysis.link_sensitivity:
        rate = float(rates.mean() if one.host < 0 else rates[one.host])
        limit, gains = finite(one.kink_factor), one.s_for_twice_the_rate > 0
        far = "64 times the rate and more" if limit is None else f"{significant(limit)} times the rate"
        rows.append(
            [
                "all hosts" if one.host < 0 else hosts[one.host],
                MISSING if finite(rate) is None else format_rate(rate),
                seconds(one.s_for_twice_the_rate),
                far if gains else MISSING,
            ]
        )
    return TextTable(["links of", "rate", "saved at twice the rate", "gains of one kind up to"], rows)


def op_rows(analysis: TraceAnalysis) -> TextTable:
    """Gains of faster ops."""
    rows = [
        [one.name, str(one.rank), f"{one.s_per_s:.2f} s", seconds(one.kink_s)]
        for one in analysis.op_sensitivity
    ]
    return TextTable(["op", "rank", "saved for 1 s less of the op", "until it takes"], rows)
