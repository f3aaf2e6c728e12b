"""Picture of a reshard plan: transfers on the interfaces of hosts over time, coloured by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import NamedTuple

import numpy as np

from wirewise.cost.links import Links
from wirewise.plans import ReshardPlan
from wirewise.report import figures, shell, svg
from wirewise.report.svg import Scale
from wirewise.sim.lowering.reshard import SliceTimes, simulate_tasks

__all__ = ["drawn_links", "reshard_section", "way_rows"]

_WIDTH, _HIGH, _MOST_HIGH, _BETWEEN, _COLOURS = 1000.0, 16.0, 96.0, 8.0, 7
"""Pixels of the picture, of a bar, of the bars of an interface, and between interfaces; colours of rounds."""
_SAME = 0.01
"""Fraction of the picture by which a transfer may begin before another ends and still stand behind it."""
_MOST = 1500
"""Transfers that are drawn at most."""
_ANY = 1e9
"""Bytes per second of interfaces where a plan says nothing of them."""


class _Bar(NamedTuple):
    travel: SliceTimes
    depth: int
    """Place below others that use the interface at the same time."""


def drawn_links(plan: ReshardPlan) -> Links:
    """Links for drawing a plan without links: all as fast as the interfaces of its bound."""
    rate = plan.busiest.bandwidth_bytes_per_s / max(len(plan.busiest.hosts), 1)
    links = Links.uniform(max(plan.hosts) + 1, rate if 0 < rate < np.inf else _ANY)
    return replace(links, host_of_rank=np.array(plan.hosts))


def way_rows(plan: ReshardPlan, travels: Sequence[SliceTimes]) -> dict[str, list[SliceTimes]]:
    """Transfers of each used interface: out of each host, into it, and between ranks inside it."""
    found: dict[tuple[int, int], list[SliceTimes]] = {}
    for one in travels:
        ways: set[tuple[int, int]] = set()
        for here, there in one.tree.edges:
            a, b = plan.hosts[here], plan.hosts[there]
            ways |= {(a, 2)} if a == b else {(a, 0), (b, 1)}
        for way in ways:
            found.setdefault(way, []).append(one)
    words = ("out of host", "into host", "inside host")
    return {f"{words[kind]} {host}": found[host, kind] for host, kind in sorted(found)}


def reshard_section(
    plan: ReshardPlan, links: Links, *, title: str = "When what travels", introduction: str = ""
) -> str:
    """HTML section with the transfers of a plan.

    Args:
        plan: Plan whose transfers are drawn.
        links: Links between its ranks, for the simulation.
        title: Title of the section.
        introduction: Introductory sentence in HTML.
    """
    travels = [one for one in simulate_tasks(plan.tasks, plan.chunk_bytes, links) if one.end_s > one.start_s]
    if not travels or len(travels) > _MOST:
        return ""
    lead = escape(introduction) + (
        f" Predicted seconds of {figures.count(len(travels), 'transfer')} on the interfaces of hosts; a transfer "
        "stands at each interface on its way. Numbers are tasks of the plan; transfers that share an interface at a "
        "time lie below each other."
    )
    rounds = sorted({plan.tasks[one.task].round for one in travels})
    shown = {f"round {number}": _colour(number) for number in rounds[:_COLOURS]}
    remark = "further rounds in the same colours again" if len(rounds) > _COLOURS else ""
    return shell.section(
        title, lead.strip(), shell.figure(_chart(plan, travels), shell.legend(shown, remark))
    )


def _chart(plan: ReshardPlan, travels: Sequence[SliceTimes]) -> str:
    end_s = max(one.end_s for one in travels)
    rows = {name: _stacked(own, _SAME * end_s) for name, own in way_rows(plan, travels).items()}
    left = 20 + max(svg.text_width(name, 12.5) for name in rows)
    x = Scale(0.0, end_s, left, _WIDTH - 12)
    deep = [1 + max(bar.depth for bar in bars) for bars in rows.values()]
    high = [min(_HIGH * count, _MOST_HIGH) for count in deep]
    bottom = 6 + sum(high) + _BETWEEN * len(high)
    parts = [
        f'<path d="M{svg.number(x(t))} 2V{svg.number(bottom)}" class="grid"/>'
        + svg.text(x(t), bottom + 16, figures.seconds(t), "tick", "middle")
        for t in svg.ticks(x.low, x.high, 8)
    ]
    top = 6.0
    for (name, bars), size, count in zip(rows.items(), high, deep, strict=True):
        parts.append(svg.text(left - 10, top + size / 2 + 4, name, "label", "end"))
        parts.append(svg.rect(left, top, x.end - left, size, "lane"))
        for bar in bars:
            parts += _bar(plan, bar, x, top + bar.depth * size / count, size / count, name)
        top += size + _BETWEEN
    return svg.document(_WIDTH, bottom + 26, "Transfers of the plan over time", "".join(parts))


def _stacked(travels: Sequence[SliceTimes], tolerance_s: float) -> list[_Bar]:
    found, free = list[_Bar](), list[float]()
    for one in sorted(travels, key=lambda travel: (travel.start_s, travel.task)):
        depth = next((n for n, until in enumerate(free) if until <= one.start_s + tolerance_s), len(free))
        free[depth : depth + 1] = [one.end_s]
        found.append(_Bar(one, depth))
    return found


def _bar(plan: ReshardPlan, bar: _Bar, x: Scale, top: float, high: float, name: str) -> Iterator[str]:
    one = bar.travel
    task = plan.tasks[one.task]
    to = ", ".join(str(there) for _, there in one.tree.edges)
    tip = (
        f"{name}, round {task.round}: task {one.task}, {figures.size(one.tree.size_bytes)} from rank {one.tree.sender} "
        f"to {to} ({task.strategy}), {figures.seconds(one.end_s - one.start_s)} at {figures.seconds(one.start_s)}"
    )
    left, wide = x(one.start_s), x(one.end_s) - x(one.start_s)
    gap = 0.0625 * high
    yield svg.rect(left, top + gap, max(wide - 0.6, 0.6), high - 2 * gap, f"bar {_colour(task.round)}", tip)
    if high == _HIGH and wide >= svg.text_width(str(one.task), 10.5) + 2:
        yield svg.text(left + wide / 2, top + high / 2 + 4, str(one.task), "inside on-central", "middle")


def _colour(number: int) -> str:
    return f"c{1 + number % _COLOURS}"
