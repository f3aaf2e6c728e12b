"""Pictures of a recovery plan: stages and their logs, recoveries over time, storage against recomputation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from wirewise.plans import RecoveryPhases, RecoveryPlan
from wirewise.plans.recovery import MessageLog
from wirewise.report import shell, svg
from wirewise.report.bars import Bar, Stack, bars_chart, stacks_chart
from wirewise.report.figures import percent, seconds, size
from wirewise.report.svg import Frame, Scale

__all__ = ["policy_rows", "recovery_sections"]

_WIDTH, _BOX, _HIGH, _GAP = 1000.0, 108.0, 58.0, 34.0
"""Pixels of the picture, of a stage's box from left to right and from top to bottom, and between two boxes."""
_ARCS, _MARGIN = 34.0, 12.0
"""Pixels above and below boxes, with arrows and without."""
_COLOURS = {"replica": "c3", "log": "c1", "checkpoint": "c2"}
_PHASES = {
    "detect": "other",
    "fence": "plan",
    "regroup": "pack",
    "restore": "wire",
    "recompute": "central",
    "resume": "dense",
}
"""Phases of a recovery in their order, with the colours of the page."""
_MOST_BARS = 24


def recovery_sections(plan: RecoveryPlan) -> Iterator[str]:
    """HTML sections of a page about a recovery plan."""
    yield _stages_section(plan)
    if plan.recoveries:
        yield _recoveries_section(plan)
    if plan.others and plan.policies:
        yield _policies_section(plan)
    if len(plan.front) > 1:
        yield _front_section(plan)
    yield shell.notes("Why this plan", plan.notes)


def policy_rows(plan: RecoveryPlan) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the plan and of other policies at the same failure rate."""
    return (
        ["policy", "copy every, steps", "overhead", "lost to a failure", "goodput"],
        [
            [
                one.name,
                str(one.interval_steps),
                percent(one.overhead),
                seconds(one.lost_s),
                percent(one.goodput),
            ]
            for one in plan.policies
        ],
    )


def _stages_section(plan: RecoveryPlan) -> str:
    logged = sum(log.bytes_per_step for log in plan.logs)
    lead = (
        "Groups of stages are framed: if a stage that is recovered by log is lost, its group goes back to the last "
        "checkpoint and computes again from the messages on the arrows, while all others wait. "
        f"{size(logged)} a step are logged, {size(logged * plan.interval_steps)} between two checkpoints."
        if plan.logs
        else "No messages are logged."
    )
    used = dict.fromkeys(stage.strategy for stage in plan.stages)
    legend = {f"from {name}": _COLOURS[name] for name in used}
    tiers = dict.fromkeys(log.tier for log in plan.logs)
    legend |= {f"logged {_where(tier)}": "p-wire" if tier == "memory" else "p-plan" for tier in tiers}
    return shell.section("Stages", lead, shell.figure(_stages_chart(plan), shell.legend(legend)))


def _where(tier: str) -> str:
    return "in memory" if tier == "memory" else "on disk"


def _stages_chart(plan: RecoveryPlan) -> str:
    each, arcs = int((_WIDTH - 20) // (_BOX + _GAP)), _ARCS if plan.logs else _MARGIN
    high = _HIGH + 2 * arcs + 8
    place = {n: (16 + n % each * (_BOX + _GAP), arcs + n // each * high) for n in range(len(plan.stages))}
    parts = list[str]()
    for group in plan.groups:
        for row in sorted({number // each for number in group}):
            own = [number for number in group if number // each == row]
            (left, top), (right, _) = place[own[0]], place[own[-1]]
            parts.append(
                svg.rect(
                    left - 9,
                    top - 9,
                    right + _BOX - left + 18,
                    _HIGH + 18,
                    "lane",
                    f"group of stages {_list(group)}",
                )
            )
    parts += [_arrow(log, place) for log in plan.logs]
    for number, stage in enumerate(plan.stages):
        left, top = place[number]
        took = f", recovered in {seconds(plan.recoveries[number].total_s)}" if plan.recoveries else ""
        tip = f"stage {number} on ranks {_list(stage.ranks)}: from {stage.strategy}{took}"
        parts.append(svg.rect(left, top, _BOX, _HIGH, f"bar faint {_COLOURS[stage.strategy]}", tip))
        middle = left + _BOX / 2
        parts.append(svg.text(middle, top + 24, f"stage {number}", "label", "middle"))
        ranks = f"rank{'s' * (len(stage.ranks) > 1)} {_list(stage.ranks)}"
        parts.append(svg.text(middle, top + 43, ranks, "tick", "middle"))
    rows = (len(plan.stages) - 1) // each + 1
    return svg.document(_WIDTH, rows * high, "Stages and logged messages", "".join(parts))


def _list(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:4]))
    return shown + (" ..." if len(numbers) > 4 else "")


def _arrow(log: MessageLog, place: dict[int, tuple[float, float]]) -> str:
    """An arc above boxes for what goes on, below them for what comes back."""
    (x, y), (to_x, to_y) = place[log.source], place[log.target]
    on = log.source < log.target
    start = x + _BOX * (0.62 if on else 0.38)
    end = to_x + _BOX * (0.38 if on else 0.62)
    edge, way = (0.0, -1) if on else (_HIGH, 1)
    bend = _ARCS * 0.9 * way
    colour = "p-wire" if log.tier == "memory" else "p-plan"
    tip = f"{log.source} -> {log.target}: {size(log.bytes_per_step)} a step {_where(log.tier)}"
    one, other = y + edge, to_y + edge
    path = (
        f"M{svg.number(start)} {svg.number(one)}C{svg.number(start)} {svg.number(one + bend)} "
        f"{svg.number(end)} {svg.number(other + bend)} {svg.number(end)} {svg.number(other)}"
        f"m-3 {6 * way}l3 {-6 * way}l3 {6 * way}"
    )
    return f'<path d="{path}" class="hop {colour}"><title>{tip}</title></path>'


def _phases_of(one: RecoveryPhases) -> dict[str, float]:
    return {phase: getattr(one, f"{phase}_s") for phase in _PHASES}


def _recoveries_section(plan: RecoveryPlan) -> str:
    numbers = svg.thin(len(plan.stages), _MOST_BARS)
    rows = [
        Stack(f"stage {n}", _phases_of(plan.recoveries[n]), seconds(plan.recoveries[n].total_s))
        for n in numbers
    ]
    left = len(plan.stages) - len(numbers)
    lead = (
        "Simulated seconds from the failure of a rank of each stage, halfway between two checkpoints, until new steps "
        "are computed." + (f" {left} stages are not shown." if left else "")
    )
    legend = shell.legend({phase: f"p-{colour}" for phase, colour in _PHASES.items()})
    chart = stacks_chart(rows, _PHASES, "Simulated recovery of each stage")
    return shell.section("Recovery", lead, shell.figure(chart, legend))


def _policies_section(plan: RecoveryPlan) -> str:
    bars = [
        Bar(one.name, one.goodput, percent(one.goodput), "c1" if one.name == "this plan" else "c0")
        for one in plan.policies
    ]
    lead = (
        f"Share of the time in which steps are computed for the first time, at a failure every {seconds(plan.mtbf_s)}, "
        "simulated. The other policies take all ranks back to their last copy of the state: checkpoint starts all "
        "processes again; checkfreq takes snapshots beside training; elastic-commit keeps commits in the memory of "
        "survivors; gemini sends each step's state to another host."
    )
    chart = shell.figure(bars_chart(bars, "Goodput of policies"))
    return shell.section("Other policies", lead, chart + shell.table(*policy_rows(plan)))


def _front_section(plan: RecoveryPlan) -> str:
    frame = Frame(70, 14, _WIDTH - 20, 262)
    prices, costs = [one.price_bytes for one in plan.front], [one.cost_s for one in plan.front]
    x = Scale(0.0, max(prices) or 1.0, frame.left, frame.right)
    y = Scale(0.0, 1.08 * max(costs) or 1.0, frame.bottom, frame.top)
    along = {x(value): size(value) for value in svg.ticks(0.0, max(prices), 5)}
    up = {y(value): seconds(value) for value in svg.ticks(0.0, max(costs), 5)}
    dots = [(x(price), y(cost)) for price, cost in zip(prices, costs, strict=True)]
    parts = [svg.grid(frame, along, up, "storage of logs a step, weighted by its price")]
    # Between two choices, the cheaper of them is all that fits.
    stairs = [dots[0], *(one for a, b in itertools.pairwise(dots) for one in ((b[0], a[1]), b))]
    parts.append(svg.polyline(stairs, "line c0"))
    for (at, high), point in zip(dots, plan.front, strict=True):
        tip = f"{size(point.price_bytes)} a step: {seconds(point.cost_s)} for each lost step"
        parts.append(svg.circle(at, high, 3.2, "dot c0", tip))
    if plan.chosen >= 0:
        at, high = dots[plan.chosen]
        parts.append(svg.circle(at, high, 6, "dot c1"))
        parts.append(svg.text(min(at + 9, frame.right - 60), high - 9, "chosen", "label c1"))
    lead = (
        "What a lost step takes to recompute, the mean over failures, against the storage of logs. Each dot is a way "
        "to group stages that no other one beats in both."
    )
    chart = svg.document(_WIDTH, 306, "Storage of logs against recomputation", "".join(parts))
    return shell.section("Storage against recomputation", lead, shell.figure(chart))
