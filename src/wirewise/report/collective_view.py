"""HTML viewer for collective programs: memories, messages, times, the network and the cost.

Plays step by step or in simulated time, with two programs side by side, in one self-contained file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from wirewise.cost.collectives import ClosedForm, LowerBound, lower_bound
from wirewise.errors import InputError
from wirewise.report import collective_chart, collective_data, shell
from wirewise.report.collective_analysis import Analysis, edge_name
from wirewise.report.collective_html import CONTROLS, panes
from wirewise.report.figures import MISSING, count, factor, seconds, size
from wirewise.report.replay_rows import TextTable
from wirewise.trace import Trace

__all__ = [
    "MOST_BYTES",
    "collective_html",
    "cost_rows",
    "recorded_html",
    "recorded_rows",
    "sentence",
    "titles",
]

MOST_BYTES = 2_000_000
"""Maximum size of a page, in bytes; browsers and mail programs cannot handle larger ones."""

_SCRIPTS = ("collective_state.js", "collective_draw.js", "collective_view.js")
_ALPHA, _BETA, _GAMMA = "\N{GREEK SMALL LETTER ALPHA}\N{GREEK SMALL LETTER BETA}\N{GREEK SMALL LETTER GAMMA}"
_COLUMNS = {
    "rounds": "Steps one after the other.",
    "messages": "All that is sent, every segment counted.",
    "sent by a rank": "Bytes that the busiest rank sends, and the mean of all ranks where it is less.",
    "busiest link": "The edge of the network that is busy longest, and the bytes over it.",
    "textbook": f"Closed form of the algorithm: {_ALPHA} latency of a message, n size of the buffer, {_BETA} time of a "
    f"byte, {_GAMMA} time to add one.",
    "in rounds": "Simulated as textbooks count: all ranks take the steps together, and latencies do not overlap.",
    "simulated": "Each message starts as soon as its data and its edges are free; this is what the page plays.",
    "bound": "No program can be faster on this network: bytes over the tightest cut.",
    "over bound": "Simulated time over the bound.",
}
_TERMS = {"tight cut": "Ranks whose links to the others limit every program most; red in the network."}


def collective_html(analyses: Sequence[Analysis]) -> str:
    """Render the page of one or several programs.

    Args:
        analyses: Programs on one network; the first is shown first.

    Raises:
        InputError: There is no program, there are several networks, or the page exceeds `MOST_BYTES`.
    """
    if not analyses or any(one.network != analyses[0].network for one in analyses):
        raise InputError("got no program, or several networks; give at least one program, all on one network")
    named = titles(analyses)
    views = [collective_data.program_object(one, title) for one, title in zip(analyses, named, strict=True)]
    networks = [collective_data.network_object(analyses[0].network)]
    first = analyses[0].program
    several = f", {len(analyses)} programs" if len(analyses) > 1 else ""
    kind = f"wirewise show \N{MIDDLE DOT} {_spoken(first.collective)}, {first.ranks} ranks{several}"
    sections = [
        shell.head(kind, sentence(analyses, named)),
        _viewer(named, views, networks),
        shell.section(
            "Cost",
            _cost_lead(analyses[0]),
            f'<div class="cost">{shell.table(*cost_rows(analyses, named))}</div>',
        ),
        _crossover(analyses, named),
        shell.section(
            "All steps",
            "Before each step, with the messages that the step sends. Choose one to go there.",
            '<div id="strip"></div>',
        ),
        shell.section("Definitions", "", shell.terms(_COLUMNS | _TERMS)),
    ]
    return _page(f"{_spoken(first.collective)} {', '.join(named[:3])}", sections)


def recorded_html(trace: Trace, title: str, step: int | None = None) -> str:
    """Render the page of a recorded run: its messages and collectives over time.

    Args:
        trace: Trace on aligned clocks.
        title: Title of the run on the page.
        step: Step to show. Defaults to the whole run.

    Raises:
        TraceError: Nothing was sent.
        InputError: The page exceeds `MOST_BYTES`.
    """
    view, network = collective_data.trace_objects(trace, title, 0, step)
    part = "the whole run" if step is None else f"step {step}"
    told = (
        f"{trace.world_size} ranks, {part}: {count(len(view['messages']), 'message')} and "
        f"{count(view['collectives'], 'collective')} in {seconds(view['finish_s'])}."
    )
    sections = [
        shell.head("wirewise show \N{MIDDLE DOT} recorded run", told),
        _viewer([title], [view], [network], recorded=True),
        shell.section("Moments", "When messages begin. Choose one to go there.", '<div id="strip"></div>'),
    ]
    return _page(title, sections)


def recorded_rows(trace: Trace, step: int | None = None) -> TextTable:
    """Pairs of ranks with messages: number, bytes, time in flight.

    Raises:
        TraceError: Nothing was sent.
    """
    view, network = collective_data.trace_objects(trace, "", 0, step)
    rows = []
    for (source, target, _), sent, busy in zip(
        network["edges"], view["edge_bytes"], view["edge_busy_s"], strict=True
    ):
        count = sum(message[1:3] == [source, target] for message in view["messages"])
        rows.append([str(source), str(target), str(count), size(sent), seconds(busy)])
    return TextTable(["from", "to", "messages", "bytes", "under way"], rows)


def titles(analyses: Sequence[Analysis]) -> list[str]:
    """Title of each program: its name, with collective and ranks if they differ, and a number if equal."""
    kinds = {(one.program.collective, one.program.ranks) for one in analyses}
    programs = [one.program for one in analyses]
    told = [
        own.name if len(kinds) == 1 else f"{own.collective} {own.name}, {own.ranks} ranks" for own in programs
    ]
    return [
        name if told.count(name) == 1 else f"{name} ({told[: place + 1].count(name)})"
        for place, name in enumerate(told)
    ]


def sentence(analyses: Sequence[Analysis], named: Sequence[str]) -> str:
    """First sentence of the page."""
    best = min(range(len(analyses)), key=lambda place: analyses[place].timeline.finish_s)
    one = analyses[best]
    where = f"{size(one.size_bytes)} on {one.network.name}"
    times = f"{seconds(one.timeline.finish_s)}, {factor(one.over_bound)} the lower bound"
    if len(analyses) == 1:
        return (
            f"{_spoken(one.program.collective).capitalize()} by {named[0]} among {one.program.ranks} ranks: "
            f"{one.rounds} rounds, {one.messages} messages; {where} takes {times}."
        )
    return (
        f"{_spoken(one.program.collective).capitalize()} in {len(analyses)} ways: for {where}, {named[best]} is "
        f"fastest with {times}."
    )


def cost_rows(analyses: Sequence[Analysis], named: Sequence[str]) -> TextTable:
    """One row per program; the columns are explained at the end of the page."""
    titles_ = ["program", *_COLUMNS]
    return TextTable(titles_, [_cost_row(one, title) for one, title in zip(analyses, named, strict=True)])


def _cost_row(one: Analysis, title: str) -> list[str]:
    busiest = one.busiest_edge
    return [
        title,
        str(one.rounds),
        str(one.messages),
        _sent(one),
        MISSING if busiest is None else f"{size(one.edge_bytes[busiest])}, {edge_name(one.network, busiest)}",
        _textbook(one.textbook),
        seconds(one.in_rounds_s),
        seconds(one.timeline.finish_s),
        seconds(one.bound.seconds),
        factor(one.over_bound),
    ]


def _sent(one: Analysis) -> str:
    most, mean = size(max(one.sent_bytes)), size(sum(one.sent_bytes) / one.program.ranks)
    return most if most == mean else f"{most}, mean {mean}"


def _textbook(form: ClosedForm | LowerBound | None, between: str = " + ") -> str:
    """Closed form as text, such as "14 α + 1.75 nβ"."""
    if form is None:
        return MISSING
    parts = [(form.moved, f"n{_BETA}"), (form.added, f"n{_GAMMA}")]
    terms = [f"{form.latencies} {_ALPHA}", *(f"{float(f):.3g} {unit}" for f, unit in parts if f)]
    return between.join(terms)


def _cost_lead(one: Analysis) -> str:
    gamma = f" and {one.reduce_s_per_byte:g} s to add a byte" if one.reduce_s_per_byte else ""
    group = len(one.program.group)
    least = _textbook(lower_bound(one.program.collective, group), ", ")
    return escape(
        f"For buffers of {size(one.size_bytes)} on {one.network.name}{gamma}. Times are simulated, not measured. "
        f"Textbooks bound {group} ranks with one link each by the largest of {least}."
    )


def _crossover(analyses: Sequence[Analysis], named: Sequence[str]) -> str:
    drawn = collective_chart.curves(analyses, named)
    chart = collective_chart.crossover_chart(drawn)
    if not chart:
        return ""
    ranges = "; ".join(
        f"{escape(' and '.join(one.titles))} from {size(one.from_bytes)} to {size(one.to_bytes)}"
        for one in collective_chart.fastest(drawn)
    )
    lead = "Simulated time over the size of the buffer." + (
        f" Fastest: {ranges}." if len(analyses) > 1 else ""
    )
    return shell.section("Which size suits which program", lead, shell.figure(chart))


def _viewer(
    named: Sequence[str],
    views: list[dict[str, Any]],
    networks: list[dict[str, Any]],
    *,
    recorded: bool = False,
) -> str:
    options = "".join(f'<option value="{n}">{escape(title)}</option>' for n, title in enumerate(named))
    controls = CONTROLS.replace("{options}", options).replace("{alone}", "" if len(named) > 1 else " hidden")
    # "<" could end the element that holds the data.
    text = json.dumps({"views": views, "networks": networks}, separators=(",", ":")).replace("<", "\\u003c")
    silent = "" if any(view["messages"] for view in views) else " silent"
    kind = f' class="recorded{silent}"' if recorded else ""
    return (
        f'<section id="viewer"{kind}>{controls}{panes(recorded)}'
        f'<script type="application/json" id="views">{text}</script></section>'
    )


def _page(title: str, sections: Sequence[str]) -> str:
    assets = resources.files("wirewise.report")
    page = shell.page(
        title,
        sections,
        style=(assets / "collective_view.css").read_text("utf-8"),
        script=f"(() => {{\n{''.join((assets / name).read_text('utf-8') for name in _SCRIPTS)}}})();\n",
    )
    if len(page) > MOST_BYTES:
        raise InputError(
            f"the page would be {size(len(page))}; pages of more than {size(MOST_BYTES)} are not written: show "
            "fewer ranks, programs or segments, or one step of the run"
        )
    return page


def _spoken(collective: str) -> str:
    return collective.replace("_", "-")
