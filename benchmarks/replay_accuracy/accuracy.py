"""Rows R2 to R6 and P1: recorded jobs replayed as they were, and what recording costs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from jobs import baselines, off, percent, replayed, run
from workloads import REAL, VIRTUAL, Work

from common import Page, paired, spread, verdict
from wirewise.trace import Trace, match
from wirewise.trace.match import slot_starts
from wirewise.trace.segments import own_work

R2_MEAN, R2_P95 = 0.02, 0.05
R3_MEAN, R3_MAX = 0.03, 0.05
R4_MEAN, R4_MAX = 0.04, 0.08
R5_WITHIN, R5_SPAN_WITHIN, R6_TIMES = 0.05, 0.10, 3.0
P1_MOST, P1_BYTES = 0.03, 1e6
PARTS = ("compute_s", "exposed_communication_s", "overlapped_communication_s", "wait_s")


def virtual(page: Page, preset: dict) -> None:
    """R2, R3, R5, R6 on virtual accelerators."""
    page.add(
        "## R2, R3, R6: replay of recorded steps\n\nVirtual accelerators (compute is slept: emulated), real "
        "DistributedDataParallel, gloo and shaped links of a lab; one rank a host. In-sample: links are fitted from "
        "the trace itself; the rows `grid` and `ranks` are held out. `error`: mean predicted step against mean "
        "measured step. `a step`: mean and 95th percentile of the "
        "absolute errors of single steps. `one rank`, `sum`, `max`: simple predictions with the same links."
    )
    _replays(page, preset["virtual"], list(VIRTUAL), preset, (R3_MEAN, R3_MAX))


def real(page: Page, preset: dict) -> None:
    """R4."""
    page.add("## R4: the same with real computing\n\nTwo ranks that compute on a core each.")
    _replays(page, preset["real"], list(REAL), preset, (R4_MEAN, R4_MAX))


def _replays(page: Page, cases: list, models: list[str], preset: dict, claims: tuple[float, float]) -> None:
    titles = (
        "link",
        "ranks",
        "model",
        "step ms",
        "error",
        "95 % interval",
        "a step",
        "one rank",
        "sum",
        "max",
    )
    rows, parts = [], []
    with page.table(*titles, "overlapped") as row:
        for rate, hosts in cases:
            works = [Work(folder="+", model=model, steps=preset["steps"]) for model in models]
            for done in run(works, hosts, rate):
                report = replayed(done)
                single = np.array(
                    [abs(off(s.predicted_s, s.measured_s)) for s in report.per_step if not s.outlier]
                )
                simple = {n: off(s, report.measured_step_s) for n, s in baselines(done).items()}
                overlap = report.breakdown.overlapped_communication_s / report.predicted_step_s
                rows.append((report.error, single, simple, overlap))
                spans = (overlap_span(done.trace), done.ddp_overlap_s)
                parts.append((rate, hosts, done.work.model, report, measured_parts(done.trace), spans))
                low, high = report.error_ci95
                row(
                    rate,
                    hosts,
                    done.work.model,
                    f"{report.measured_step_s * 1e3:.1f}",
                    percent(report.error),
                    f"{percent(low)} to {percent(high)}",
                    f"{100 * single.mean():.1f} %, {100 * np.percentile(single, 95):.1f} %",
                    *(percent(value) for value in simple.values()),
                    f"{100 * overlap:.0f} %",
                )
    _claims(page, rows, claims)
    _breakdown(page, parts)


def _claims(page: Page, rows: list, claims: tuple[float, float]) -> None:
    errors = np.abs([row[0] for row in rows])
    single = np.concatenate([row[1] for row in rows])
    simple = {name: np.abs([row[2][name] for row in rows]) for name in rows[0][2]}
    half = np.argsort([-row[3] for row in rows])[: max(len(rows) // 2, 1)]
    best = min(simple.values(), key=lambda values: values[half].mean())
    with page.table("claim", "figure", "threshold") as row:
        row("mean absolute error", f"{100 * errors.mean():.2f} %", verdict(errors.mean(), most=claims[0]))
        row("largest absolute error", f"{100 * errors.max():.2f} %", verdict(errors.max(), most=claims[1]))
        row("a single step, mean", f"{100 * single.mean():.2f} %", verdict(single.mean(), most=R2_MEAN))
        p95 = float(np.percentile(single, 95))
        row("a single step, 95th percentile", f"{100 * p95:.2f} %", verdict(p95, most=R2_P95))
        for name, values in simple.items():
            row(f"`{name}`, mean absolute error", f"{100 * values.mean():.1f} %", "")
        times = float(best[half].mean() / errors[half].mean())
        told = f"best simple prediction over ours, the {len(half)} with most overlap"
        row(told, f"{times:.1f}", verdict(times, least=R6_TIMES))


def _breakdown(page: Page, parts: list) -> None:
    page.add(
        "### R5: where the time goes, measured and predicted\n\nShares of the step in %, mean of ranks: compute, "
        "exposed communication, overlapped communication, waiting. `span`: from the launch of the first bucket to "
        "the last gradient in the trace, and in the last step of which the logger of DistributedDataParallel tells."
    )
    worst, worst_span = 0.0, 0.0
    with page.table(
        "link", "ranks", "model", "measured", "predicted", "largest difference", "span ms"
    ) as row:
        for rate, hosts, model, report, measured, (span, told) in parts:
            predicted = np.array([getattr(report.breakdown, part) for part in PARTS])
            step = report.measured_step_s
            apart = float(np.abs(predicted - measured).max() / step)
            worst = max(worst, apart)
            shares = [" / ".join(f"{100 * v / step:.1f}" for v in values) for values in (measured, predicted)]
            worst_span = max(worst_span, abs(off(span, told))) if told and span > 0 else worst_span
            row(
                rate,
                hosts,
                model,
                *shares,
                f"{100 * apart:.1f} points",
                f"{span * 1e3:.1f} / {told * 1e3:.1f}",
            )
        parts_told = f"{100 * worst:.1f} points, {verdict(worst, most=R5_WITHIN)}"
        row(
            "",
            "",
            "all",
            "",
            "",
            parts_told,
            f"{percent(worst_span)}, {verdict(worst_span, most=R5_SPAN_WITHIN)}",
        )


def overlap_span(trace: Trace) -> float:
    """Seconds from the launch of the first bucket to the last gradient on rank 0, median of steps."""
    found = []
    for step in trace.steps():
        ops = trace.of(0, step)
        first = min(op.start_s for op in ops if op.name.startswith("bucket") and op.kind == "communication")
        found.append(max(op.end_s for op in ops if op.gradient_bytes) - first)
    return float(np.median(found))


def measured_parts(trace: Trace) -> np.ndarray:
    """Seconds of PARTS in the recorded steps themselves, mean of steps and ranks."""
    moving = communicating(trace)
    sums, count = np.zeros(4), 0
    ends: dict[int, dict[int, float]] = defaultdict(dict)
    for rank, recorded in enumerate(trace.ranks):
        marks = {op.step: op for op in recorded.ops if op.kind == "step"}
        for step in trace.steps():
            ends[rank][step] = marks[step].end_s
            begin = ends[rank].get(step - 1, marks[step].start_s)
            busy = [(piece.start_s, piece.end_s) for _, piece in own_work(trace.of(rank, step))]
            sums += _parts(busy, moving[rank], begin, marks[step].end_s)
            count += 1
    return sums / count


def communicating(trace: Trace) -> list[list[tuple[float, float]]]:
    """When each rank communicates: from when the last rank came and a slot was free until it is done."""
    groups = defaultdict(list)
    for one in match(trace):
        groups[one.group].append(one)
    found: list[list[tuple[float, float]]] = [[] for _ in trace.ranks]
    for ones in groups.values():
        for one, begin in zip(ones, slot_starts(ones, ones[0].slots), strict=True):
            for rank, op in zip(one.ranks, one.ops, strict=True):
                found[rank].append((begin, op.end_s))
    return found


def _parts(busy: list, moving: list, begin: float, end: float) -> np.ndarray:
    """(compute, exposed, overlapped, neither) between two times, by a sweep over all starts and ends."""
    marks = [(max(a, begin), min(b, end), kind) for spans, kind in ((busy, 0), (moving, 1)) for a, b in spans]
    events = sorted((t, kind, by) for a, b, kind in marks if b > a for t, by in ((a, 1), (b, -1)))
    found, depth, at = np.zeros(4), [0, 0], begin
    for t, kind, by in [*events, (end, 0, 0)]:
        both = (depth[0] > 0, depth[1] > 0)
        found += (t - at) * np.array([both[0], both[1] and not both[0], all(both), not any(both)])
        depth[kind] += by
        at = t
    return found


def overhead(page: Page, preset: dict) -> None:
    """P1."""
    page.add(
        "## P1: what recording costs\n\nReal computing, 2 ranks; the same job recorded and not, in turns; the ratio is "
        "that of mean steps, turn by turn. Bytes are those of a rank's file for 100 steps."
    )
    titles = (
        "model",
        "bucket MB",
        "collectives a step",
        "step ms",
        "recorded / not",
        "bytes a rank and 100 steps",
    )
    with page.table(*titles, "threshold") as row:
        for model, cap in preset["overhead"]:
            both = [
                Work(folder=folder, model=model, bucket_mb=cap, steps=preset["overhead_steps"])
                for _ in range(preset["turns"])
                for folder in ("-", "+")
            ]
            # The first two warm the processes up.
            done = run(both[:2] + both, 2, "400mbit")[2:]
            plain, traced = done[::2], done[1::2]
            ratio = paired([d.step_s for d in traced], [d.step_s for d in plain])
            first = traced[0]
            count = sum(op.kind == "communication" for op in first.trace.of(0, first.trace.steps()[1]))
            size = 100 * first.file_bytes / preset["overhead_steps"]
            middle = float(np.median(ratio))
            row(
                model,
                cap,
                count,
                spread([d.step_s for d in plain], 1e3),
                spread(ratio, digits=3),
                f"{size:,.0f}",
                f"{verdict(middle, most=1 + P1_MOST)}; {verdict(size, most=P1_BYTES)}",
            )
