"""The jobs of a queue as a picture: which cluster gave what to whom, over time."""

from __future__ import annotations

from collections.abc import Sequence

from wirewise.plans import JobAllotment, JobPlan
from wirewise.report import figures, shell, svg
from wirewise.report.svg import Scale

__all__ = ["jobs_chart", "jobs_section"]

_WIDTH, _HIGH, _BETWEEN = 1000.0, 9.0, 14.0
"""Pixels of the picture, of a job, and between clusters."""
_MOST = 4000
"""Allotments that are drawn at most."""
_COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5")


def jobs_chart(plan: JobPlan) -> str:
    """A bar for each allotment in its cluster's lanes; too many are not drawn."""
    if len(plan.allotments) > _MOST:
        return ""
    left = 20 + max(svg.text_width(name, 12.5) for name in plan.clusters)
    x = Scale(0.0, plan.predicted_s, left, _WIDTH - 12)
    colours = {
        job: _COLOURS[n % len(_COLOURS)]
        for n, job in enumerate(dict.fromkeys(a.job for a in plan.allotments))
    }
    parts, top = [], 6.0
    for number, name in enumerate(plan.clusters):
        lanes = _lanes([one for one in plan.allotments if one.cluster == number])
        high = _HIGH * max(len(lanes), 1)
        parts.append(svg.text(left - 10, top + high / 2 + 4, name, "label", "end"))
        parts.append(svg.rect(left, top, x.end - left, high, "lane"))
        for lane, allotments in enumerate(lanes):
            for one in allotments:
                start_s, end_s = one.start * plan.slot_s, one.end * plan.slot_s
                tip = (
                    f"{one.job}: {one.cpus} cpus, {one.gpus} gpus of {name} from {figures.seconds(start_s)} to "
                    f"{figures.seconds(end_s)}"
                )
                wide, bar = max(x(end_s) - x(start_s) - 0.6, 0.6), f"bar {colours[one.job]}"
                parts.append(svg.rect(x(start_s), top + lane * _HIGH, wide, _HIGH - 1, bar, tip))
        top += high + _BETWEEN
    marks = [
        f'<path d="M{svg.number(x(t))} 2V{svg.number(top - _BETWEEN + 6)}" class="grid"/>'
        + svg.text(x(t), top + 8, figures.seconds(t), "tick", "middle")
        for t in svg.ticks(x.low, x.high, 8)
    ]
    return svg.document(_WIDTH, top + 18, "Jobs on clusters over time", "".join([*marks, *parts]))


def _lanes(allotments: Sequence[JobAllotment]) -> list[list[JobAllotment]]:
    """Allotments dealt out so that those of a lane follow each other."""
    lanes: list[list[JobAllotment]] = []
    for one in allotments:
        for lane in lanes:
            if lane[-1].end <= one.start:
                lane.append(one)
                break
        else:
            lanes.append([one])
    return lanes


def jobs_section(plan: JobPlan) -> str:
    """The section of a page about who runs where and when, as HTML."""
    lead = "A bar is a job with the same processors and accelerators of a cluster; seconds are simulated."
    chart = jobs_chart(plan)
    if not chart:
        return shell.section(
            "Jobs over time", f"{lead} {len(plan.allotments)} bars are too many to draw.", ""
        )
    return shell.section("Jobs over time", lead, shell.figure(chart))
