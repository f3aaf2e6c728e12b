"""Picture of a queue's jobs: resources of each cluster over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wirewise.plans import JobPlan
from wirewise.report import figures, shell, svg
from wirewise.report.svg import Scale

__all__ = ["OccupiedSpan", "jobs_chart", "jobs_section", "occupied_chart"]

_WIDTH, _HIGH, _BETWEEN = 1000.0, 9.0, 14.0
"""Pixels of the picture, of a job, and between clusters."""
_MOST = 4000
"""Bars that are drawn at most."""
_COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5")


class OccupiedSpan(NamedTuple):
    """Time span in which a job's resources on a cluster are constant."""

    job: str
    cluster: int
    start_s: float
    end_s: float
    amount: str
    """Description of its resources."""


def jobs_chart(plan: JobPlan) -> str:
    """Draw a bar per allotment in its cluster's lanes; empty if too many."""
    bars = [
        OccupiedSpan(
            one.job,
            one.cluster,
            one.start * plan.slot_s,
            one.end * plan.slot_s,
            f"{one.cpus} cpus, {one.gpus} gpus",
        )
        for one in plan.allotments
    ]
    return occupied_chart(plan.clusters, bars, plan.predicted_s)


def occupied_chart(clusters: Sequence[str], bars: Sequence[OccupiedSpan], until_s: float) -> str:
    """Draw a bar per time span in its cluster's lanes; empty if too many.

    Args:
        clusters: Names of the clusters.
        bars: Time spans, ordered by start.
        until_s: End of the picture, in seconds.
    """
    if len(bars) > _MOST:
        return ""
    left = 20 + max(svg.text_width(name, 12.5) for name in clusters)
    x = Scale(0.0, until_s, left, _WIDTH - 12)
    colours = {
        job: _COLOURS[n % len(_COLOURS)] for n, job in enumerate(dict.fromkeys(one.job for one in bars))
    }
    parts, top = [], 6.0
    for number, name in enumerate(clusters):
        lanes = _lanes([one for one in bars if one.cluster == number])
        high = _HIGH * max(len(lanes), 1)
        parts.append(svg.text(left - 10, top + high / 2 + 4, name, "label", "end"))
        parts.append(svg.rect(left, top, x.end - left, high, "lane"))
        for lane, own in enumerate(lanes):
            for one in own:
                tip = (
                    f"{one.job}: {one.amount} of {name} from {figures.seconds(one.start_s)} to "
                    f"{figures.seconds(one.end_s)}"
                )
                wide, bar = max(x(one.end_s) - x(one.start_s) - 0.6, 0.6), f"bar {colours[one.job]}"
                parts.append(svg.rect(x(one.start_s), top + lane * _HIGH, wide, _HIGH - 1, bar, tip))
        top += high + _BETWEEN
    marks = [
        f'<path d="M{svg.number(x(t))} 2V{svg.number(top - _BETWEEN + 6)}" class="grid"/>'
        + svg.text(x(t), top + 8, figures.seconds(t), "tick", "middle")
        for t in svg.ticks(x.low, x.high, 8)
    ]
    return svg.document(_WIDTH, top + 18, "Jobs on clusters over time", "".join([*marks, *parts]))


def _lanes(bars: Sequence[OccupiedSpan]) -> list[list[OccupiedSpan]]:
    """Bars dealt out so that those of a lane follow each other."""
    lanes: list[list[OccupiedSpan]] = []
    for one in bars:
        for lane in lanes:
            if lane[-1].end_s <= one.start_s:
                lane.append(one)
                break
        else:
            lanes.append([one])
    return lanes


def jobs_section(plan: JobPlan) -> str:
    """HTML section with the cluster and time of each job."""
    lead = "A bar is a job with the same processors and accelerators of a cluster; seconds are simulated."
    chart = jobs_chart(plan)
    if not chart:
        return shell.section(
            "Jobs over time", f"{lead} {len(plan.allotments)} bars are too many to draw.", ""
        )
    return shell.section("Jobs over time", lead, shell.figure(chart))
