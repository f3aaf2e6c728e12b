"""HTML page of job schedulers: simulated queues, and timelines of real jobs on clusters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from wirewise.report import shell, svg
from wirewise.report.comparison_page import best_of, comparison_html
from wirewise.report.figures import count, seconds, signed
from wirewise.report.jobs_picture import OccupiedSpan, occupied_chart
from wirewise.report.svg import Frame, Scale
from wirewise.results import Comparison, ExecutedShare, Variant
from wirewise_papers.tapfinger.records import JobsRun, RealQueue, SchedulerRecord

__all__ = ["jobs_comparison", "jobs_html"]

_TUNED = "threshold"
"""The rule of two tuned numbers for each kind, which every other scheduler is judged by."""
_LINES = ("c1", "c2", "c3", "c4", "c5", "c6")
_STEP = 5
"""Percent of the jobs between two quantiles."""


def jobs_html(run: JobsRun) -> str:
    """Render the page."""
    sections = [_distribution(run)]
    if run.real is not None:
        sections += [_clusters(run.real), _lengths(run.real), _jobs(run.real)]
    return comparison_html(
        jobs_comparison(run), f"{count(len(run.schedulers), 'scheduler')} of jobs", sections
    )


def jobs_comparison(run: JobsRun) -> Comparison:
    """Comparison of schedulers, with completion times in slots."""
    best = next(iter(run.schedulers))
    own, tuned = run.schedulers["tapfinger"], run.schedulers[_TUNED]
    over = own.mean_jct / tuned.mean_jct
    verdict = (
        f"the learned policy takes {over:.3f} of the time of the tuned threshold rule"
        if over < 1
        else f"THE LEARNED POLICY DOES NOT BEAT the tuned threshold rule: {over:.3f} of its time"
    )
    real = run.real
    notes = [
        "Slots of queues are simulated; threshold and tiresias have amounts tuned on as many other queues, and "
        "tapfinger is the policy alone, without the comparison with the tuned rule that `wirewise plan jobs` makes.",
        f"A job that was given something else keeps {run.kept:g} of that slot's progress, simulated.",
    ]
    if real is not None:
        notes += [
            "Processes, messages, states and slots of real jobs are real; what accelerators compute is slept.",
            "What was simulated of the real jobs is their queue with the seconds of steps, starts and stops that were "
            f"measured before: {seconds(real.start_s)} a start, {seconds(real.stop_s)} a stop.",
            *real.notes,
            *(f"{one}." for one in real.executed.notes),
        ]
    return Comparison(
        kind=f"wirewise run tapfinger \N{MIDDLE DOT} {run.queues}, {count(run.seeds, 'seed')}",
        sentence=f"{best} takes {run.schedulers[best].mean_jct:.2f} slots from arrival to end on average, the least of "
        f"{count(len(run.schedulers), 'scheduler')}, simulated; {verdict}.",
        cards=_cards(run),
        title="Slots from a job's arrival to its end, simulated",
        lead=f"Means over {count(run.seeds, 'queue')}, with 95 % intervals; dashed: the tuned threshold rule.",
        goal=tuned.mean_jct,
        what="scheduler",
        variants={name: _variant(name, one, best) for name, one in run.schedulers.items()},
        notes=tuple(notes),
    )


def _cards(run: JobsRun) -> tuple[tuple[str, str, str], ...]:
    own, real = run.schedulers["tapfinger"], run.real
    cards = [("tapfinger", f"{own.mean_jct:.2f} slots", "mean from arrival to end, simulated")]
    if real is not None:
        failures = sum(len(one.failures) for one in real.executed.jobs)
        moved = sum(max(len(one.shares) - 1, 0) for one in real.executed.jobs)
        cards += [
            (
                "Real jobs",
                seconds(real.measured_jct_s),
                f"mean of {len(real.executed.jobs)} under {real.planner}",
            ),
            ("Simulated before", seconds(real.predicted_jct_s), f"error {signed(real.error)}"),
            ("Stopped and started again", str(moved), f"{count(failures, 'failure')}"),
        ]
    return tuple(cards)


def _variant(name: str, one: SchedulerRecord, best: str) -> Variant:
    half = (one.ci95[1] - one.ci95[0]) / 2
    return Variant(
        length=one.mean_jct,
        words=f"{one.mean_jct:.2f} ± {half:.2f}",
        colour=best_of(name, best),
        cells={
            "mean slots": f"{one.mean_jct:.2f}",
            "95 % interval": f"{one.ci95[0]:.2f} to {one.ci95[1]:.2f}",
            "99 of 100 within": f"{one.p99:.1f}",
            "all done": f"{one.makespan:.1f}",
        },
    )


def _distribution(run: JobsRun) -> str:
    """Fraction of the jobs that are done within so many slots, for the best few schedulers, tuned rule and policy."""
    names = list(dict.fromkeys([*list(run.schedulers)[:4], _TUNED, "tapfinger"]))
    frame = Frame(56, 14, 984, 300)
    longest = max(run.schedulers[name].quantiles[-2] for name in names)
    x, y = Scale(0.0, longest or 1.0, frame.left, frame.right), Scale(0.0, 100.0, frame.bottom, frame.top)
    parts = [svg.axes(frame, x, y, "slots from arrival to end", "{:g} %")]
    colours = dict(zip(names, _LINES, strict=False))
    for name in names:
        # The last of all jobs would make the others too small to see.
        dots = [(x(slots), y(_STEP * n)) for n, slots in enumerate(run.schedulers[name].quantiles[:-1])]
        parts.append(svg.polyline(dots, f"line {colours[name]}"))
    chart = svg.document(1000, 346, "Share of jobs done within so many slots", "".join(parts))
    return shell.section(
        "How long jobs take",
        "Share of all jobs that are done within so many slots of their arrival, up to 95 of 100; simulated.",
        shell.figure(chart, shell.legend(colours)),
    )


def _clusters(real: RealQueue) -> str:
    """Bars of the jobs on their clusters."""
    bars = sorted(
        (
            OccupiedSpan(job.name, one.cluster, one.start_s, one.end_s, f"{one.cpus} cpus, {one.gpus} gpus")
            for job in real.executed.jobs
            for one in job.shares
        ),
        key=lambda one: one.start_s,
    )
    chart = occupied_chart(real.clusters, bars, real.measured_makespan_s)
    return shell.section(
        f"Real jobs under {real.planner}",
        "A bar is a job with the same processors and accelerators of a cluster; seconds are measured.",
        shell.figure(chart),
    )


def _lengths(real: RealQueue) -> str:
    """Lines of the jobs that wait and run."""
    moments = real.executed.moments
    frame = Frame(56, 14, 984, 200)
    x = Scale(0.0, real.measured_makespan_s or 1.0, frame.left, frame.right)
    most = max((max(one.waiting, one.running) for one in moments), default=1)
    y = Scale(0.0, most + 0.5, frame.bottom, frame.top)
    parts = [svg.axes(frame, x, y, "seconds")]
    colours = {"waiting": "c1", "running": "c2"}
    for name, colour in colours.items():
        dots: list[tuple[float, float]] = []
        for one in moments:
            height = y(getattr(one, name))
            if dots:
                dots.append((x(one.at_s), dots[-1][1]))
            dots.append((x(one.at_s), height))
        parts.append(svg.polyline(dots, f"line {colour}"))
    chart = svg.document(1000, 246, "Jobs that wait and run over time", "".join(parts))
    return shell.section(
        "Lengths of the queue",
        "Jobs after the decisions of each slot.",
        shell.figure(chart, shell.legend(colours)),
    )


def _jobs(real: RealQueue) -> str:
    """A row for each real job."""
    rows = [
        [
            job.name,
            job.kind,
            str(job.steps),
            seconds(job.arrival_s),
            seconds(job.shares[0].start_s) if job.shares else "-",
            "given up" if job.words else seconds(job.ended_s),
            seconds(real.predicted_ends_s[job.name]),
            _had(job.shares, real.clusters) or "-",
            "; ".join(job.failures) or "-",
        ]
        for job in real.executed.jobs
    ]
    titles = ["job", "kind", "steps", "arrived", "started", "ended", "ended, simulated", "had", "failures"]
    return shell.section(
        "The real jobs",
        "Clusters and the processors x accelerators that each had, one after the other; simulated is what was expected "
        "before the run.",
        shell.table(titles, rows),
    )


def _had(shares: Sequence[ExecutedShare], clusters: Sequence[str]) -> str:
    """Amounts of a job, by the clusters that it ran on: "left 1x1, 2x1; right 4x2"."""
    stays = groupby(shares, lambda one: one.cluster)
    return "; ".join(
        f"{clusters[cluster]} {', '.join(f'{one.cpus}x{one.gpus}' for one in stay)}"
        for cluster, stay in stays
    )
