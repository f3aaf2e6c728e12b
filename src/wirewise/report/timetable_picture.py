"""Picture of a pipeline timetable: actions of every position over time, and messages between positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wirewise.cost.links import Links
from wirewise.cost.stages import StageCosts
from wirewise.plans import StagePlan
from wirewise.report import figures, shell, svg
from wirewise.report.svg import Scale
from wirewise.results import MeasuredPass
from wirewise.sim.pipelines import PipelineSimulation, simulate_pipeline

__all__ = [
    "TimetableBar",
    "bars_of",
    "measured_bars",
    "simulate_plan",
    "timetable_chart",
    "timetable_section",
]

_WIDTH, _HIGH, _BETWEEN = 1000.0, 24.0, 16.0
"""Pixels of the picture, of a bar, and between positions, where messages cross."""
_COLOURS = {
    "forward": "p-central",
    "backward": "p-pack",
    "weight gradient": "p-plan",
    "optimizer": "p-dense",
}
_PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight gradient"}
_MOST_MESSAGES = 600
"""Messages that are drawn at most."""
_ORDER_ONLY = (1.0, 2.0, 1.0)
"""Forward, backward and weight gradient of plans that do not say how long these take."""


class TimetableBar(NamedTuple):
    """Pass, parameter update or message."""

    position: int
    target: int
    """Receiving position of a message; -1 for other bars."""
    phase: str
    stage: int
    update: int
    microbatch: int
    start_s: float
    end_s: float
    gradient: bool = False
    """Whether a message carries a gradient."""


def bars_of(run: PipelineSimulation, replica: int = 0) -> list[TimetableBar]:
    """Bars of one pipeline of a run; exchanges between replicas are shown in the first."""
    return [
        TimetableBar(
            op.position,
            op.target,
            op.phase,
            op.stage,
            op.update,
            op.microbatch,
            float(run.start_s[n]),
            float(run.end_s[n]),
            op.gradient,
        )
        for n, op in enumerate(run.ops)
        if op.replica == replica and run.end_s[n] > run.start_s[n]
    ]


def measured_bars(plan: StagePlan, passes: Sequence[MeasuredPass]) -> list[TimetableBar]:
    """Executed passes: of one update, or of two successive ones without a flush."""
    first = 0 if plan.weight_versions > 1 else 1
    found = [
        TimetableBar(
            plan.stages[one.stage].position, -1, _PHASES[one.kind], one.stage, one.update - first, one.microbatch,
            one.start_s, one.end_s,
        )
        for one in passes
        if one.update >= first
    ]  # fmt: skip
    return _whole_updates(found, plan.weight_versions)


def _whole_updates(bars: Sequence[TimetableBar], updates: int) -> list[TimetableBar]:
    """Bars until some updates are done, from 0 on."""
    own = [bar for bar in bars if bar.update < updates and bar.target < 0]
    begin_s = min((bar.start_s for bar in own), default=0.0)
    end_s = max((bar.end_s for bar in own), default=0.0)
    return [
        bar._replace(start_s=bar.start_s - begin_s, end_s=bar.end_s - begin_s)
        for bar in bars
        if bar.start_s < end_s
    ]


def simulate_plan(plan: StagePlan, updates: int | None = None) -> PipelineSimulation:
    """Simulate a plan's timetable with the times stored in the plan.

    Messages have no contention; exchanges and parameter updates take no time.

    Args:
        plan: Plan whose timetable is simulated.
        updates: Number of successive updates. Defaults to one, or two without a flush between them.
    """
    count, none = len(plan.stages), np.zeros(len(plan.stages))
    passes = np.array(plan.pass_s or (_ORDER_ONLY,) * count, dtype=np.float64)
    costs = StageCosts(
        forward_s=passes[:, 0],
        backward_s=passes[:, 1],
        weight_s=passes[:, 2],
        optimizer_s=none,
        edge_bytes=dict.fromkeys(plan.all_edges, 1.0),
        input_bytes=none,
        saved_bytes=none,
        parameter_bytes=none,
        state_factor=0.0,
    )
    took = dict(zip(plan.all_edges, plan.message_s, strict=False))
    return simulate_pipeline(
        plan,
        costs,
        Links.uniform(plan.world_size, np.inf),
        updates=updates or plan.weight_versions,
        edge_s=lambda source, target, _: took.get((source, target), took.get((target, source), 0.0)),
    )


def timetable_chart(
    names: Sequence[str],
    simulated: Sequence[TimetableBar],
    measured: Sequence[TimetableBar] = (),
    *,
    format_duration: Callable[[float], str] = figures.seconds,
) -> str:
    """Draw bars of every position over time, with messages as arrows; measured bars are below simulated ones.

    Args:
        names: Name of each position.
        simulated: Simulated passes, updates and messages.
        measured: Executed passes, updates and messages, on the same clock; empty if not executed.
        format_duration: Function that formats a duration.
    """
    both = [*simulated, *measured]
    if not both:
        return ""
    rows = {"": simulated, "measured": measured} if measured else {"": simulated}
    high = _HIGH * len(rows)
    left = 20 + max(svg.text_width(name, 12.5) for name in names)
    x = Scale(min(bar.start_s for bar in both), max(bar.end_s for bar in both), left, _WIDTH - 12)
    tops = [6 + number * (high + _BETWEEN) for number in range(len(names))]
    bottom = tops[-1] + high + 6
    parts = [
        f'<path d="M{svg.number(x(t))} 2V{svg.number(bottom)}" class="grid"/>'
        + svg.text(x(t), bottom + 16, format_duration(t), "tick", "middle")
        for t in svg.ticks(x.low, x.high, 8)
    ]
    for name, top in zip(names, tops, strict=True):
        parts.append(svg.text(left - 10, top + high / 2 + 4, name, "label", "end"))
        parts.append(svg.rect(left, top, x.end - left, high, "lane"))
    for row, bars in enumerate(rows.values()):
        messages = [bar for bar in bars if bar.target >= 0]
        for bar in messages if len(messages) <= _MOST_MESSAGES else ():
            parts.append(_message(bar, x, tops, row))
    for row, (said, bars) in enumerate(rows.items()):
        parts += [
            _bar(bar, x, tops[bar.position] + row * _HIGH, names[bar.position], said, format_duration)
            for bar in bars
            if bar.target < 0
        ]
    return svg.document(_WIDTH, bottom + 26, "Timetable of the pipeline", "".join(parts))


def timetable_section(
    plan: StagePlan,
    measured: Sequence[MeasuredPass] = (),
    *,
    title: str = "Timetable",
    introduction: str = "",
    extra_html: str = "",
) -> str:
    """HTML section with a plan's timetable.

    Args:
        plan: Plan whose timetable is drawn.
        measured: Executed passes, on one clock; empty if not executed.
        title: Title of the section.
        introduction: Introductory sentence in HTML.
        extra_html: HTML after the picture.
    """
    bars, updates = bars_of(simulate_plan(plan)), plan.weight_versions
    if measured and updates > 1:
        # Passes of the next update are among them as well.
        bars = _whole_updates(bars_of(simulate_plan(plan, updates + 1)), updates)
    below = measured_bars(plan, measured)
    names = [_name(plan, position) for position in range(plan.positions)]
    shown = {phase: colour for phase, colour in _COLOURS.items() if any(bar.phase == phase for bar in bars)}
    shown |= {"activations": "c0", "gradients": "p-wire"} if plan.message_s else {}
    lead = f"{introduction} " if introduction else ""
    lead += (
        "Seconds are predicted; messages have their links for themselves."
        if plan.pass_s
        else "Only the order is the plan's: it does not say how long passes take, so a forward pass is drawn as 1 and "
        "a backward pass as 2, and messages take no time."
    )
    lead += " Numbers are microbatches"
    lead += ", those of every second update pale." if plan.weight_versions > 1 else "."
    if plan.replicas > 1:
        lead += f" One of {plan.replicas} replicas is shown."
    if sum(bar.target >= 0 for bar in bars) > _MOST_MESSAGES:
        lead += " There are too many messages to draw."
    told = figures.seconds if plan.pass_s else _units
    remark = "above predicted, below measured" if measured else ""
    chart = timetable_chart(names, bars, below, format_duration=told)
    return shell.section(title, lead, shell.figure(chart, shell.legend(shown, remark)) + extra_html)


def _units(value: float) -> str:
    return f"{value:g}"


def _name(plan: StagePlan, position: int) -> str:
    own = [str(number) for number, stage in enumerate(plan.stages) if stage.position == position]
    ranks = plan.ranks[position][0]
    said = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    return f"stage{'s' * (len(own) > 1)} {', '.join(own)} on {said}"


def _bar(bar: TimetableBar, x: Scale, top: float, name: str, said: str, told: Callable[[float], str]) -> str:
    left, wide = x(bar.start_s), x(bar.end_s) - x(bar.start_s)
    what = f"microbatch {bar.microbatch}" if bar.microbatch >= 0 else f"update {bar.update}"
    tip = (
        f"{name}, {bar.phase}: {what} of stage {bar.stage}, {said or 'simulated'} "
        f"{told(bar.end_s - bar.start_s)} at {told(bar.start_s - x.low)}"
    )
    pale = " faint" if bar.update % 2 else ""
    colour = _COLOURS.get(bar.phase, "p-other")
    parts = [svg.rect(left, top + 1, max(wide - 0.6, 0.6), _HIGH - 2, f"bar {colour}{pale}", tip)]
    label = f"{bar.microbatch}"
    if bar.microbatch >= 0 and wide >= svg.text_width(label, 10.5) + 1:
        kind = "inside" + (" on-central" if colour == "p-central" else "") if not pale else ""
        parts.append(svg.text(left + wide / 2, top + _HIGH / 2 + 4, label, kind, "middle"))
    return "".join(parts)


def _message(bar: TimetableBar, x: Scale, tops: Sequence[float], row: int) -> str:
    """An arrow from the end of a pass to where and when its message arrives."""
    down = bar.target > bar.position
    middle = _HIGH * (row + 0.5)
    start, end = tops[bar.position] + middle, tops[bar.target] + middle
    edge, back = (_HIGH / 2, -4) if down else (-_HIGH / 2, 4)
    at, to = (
        (svg.number(x(bar.start_s)), svg.number(start + edge)),
        (svg.number(x(bar.end_s)), svg.number(end - edge)),
    )
    colour = "p-wire" if bar.gradient else "c0"
    return f'<path d="M{" ".join(at)}L{" ".join(to)}m-2 {back}l2 {-back}l2 {back}" class="hop {colour}"/>'
