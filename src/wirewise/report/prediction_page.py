"""Page of a prediction as one HTML file: timeline of every rank under a plan, and breakdown of the time."""

from __future__ import annotations

from collections.abc import Iterable

from wirewise.plans import Plan
from wirewise.report import shell, svg
from wirewise.report.figures import percent, seconds
from wirewise.report.plan import plan_html
from wirewise.report.waterfall import KIND_COLOURS, Box, lanes_chart, stack_boxes
from wirewise.sim.prediction import COMMUNICATING, Prediction

__all__ = ["prediction_html"]

_LANES = ("compute", "communication")
_LANE, _THIN, _MOST_HIGH = 18.0, 7.0, 56.0
"""Pixels of a lane; of each box in it that lies below another; of a lane at most."""
_MOST_ROWS = 16
_BUSY = ("central", "pack", "plan", "marginal", "unpack", "dense", "other")
_MOVING = ("wire", "reduce")
"""Colours in the order in which phases take them that have none of their own; neighbours are told apart."""


def prediction_html(prediction: Prediction, plan: Plan) -> str:
    """Render the page as HTML text."""
    sentence = (
        f"{_unit(prediction)} on {prediction.timeline.world_size} ranks: {seconds(prediction.step_s)} "
        f"{prediction.source} under the {prediction.family} plan by {prediction.planner}"
    )
    sections = [
        shell.head(f"wirewise sim \N{MIDDLE DOT} {prediction.source}, not measured", sentence),
        _cards(prediction),
        _timeline(prediction),
        _phases(prediction),
        shell.section("Plan", "", plan_html(plan)),
    ]
    return shell.page(f"Prediction of a {prediction.family} plan", sections)


def _unit(found: Prediction) -> str:
    return found.unit.replace("_", " ").capitalize()


def _cards(found: Prediction) -> str:
    parts = found.breakdown
    told = (
        ("Compute", parts.compute_s, "mean of the ranks"),
        ("Exposed communication", parts.exposed_communication_s, "that no compute hides"),
        ("Waiting", parts.wait_s, "neither computing nor communicating"),
        ("Hidden communication", parts.overlapped_communication_s, "beside compute"),
    )
    whole = found.step_s or 1.0
    cards = [(_unit(found), seconds(found.step_s), f"{found.timeline.world_size} ranks")]
    cards += [(name, seconds(s), f"{percent(s / whole)} of the time, {what}") for name, s, what in told]
    return shell.cards(cards)


def _timeline(found: Prediction) -> str:
    rows = _rows(found)
    shown = dict(list(rows.items())[i] for i in svg.thin(len(rows), _MOST_ROWS))
    deepest = {
        lane: max((len(stack_boxes(row[lane])) for row in shown.values()), default=0) for lane in _LANES
    }
    lanes = {lane: min(max(_LANE, _THIN * most), _MOST_HIGH) for lane, most in deepest.items() if most}
    colours = _colours(found.phases_s)
    chart = lanes_chart(shown, lanes, colours, f"{_unit(found)} on every rank, {found.source}")
    left = len(rows) - len(shown)
    lead = (
        "A rank has a lane for what keeps it busy, and below it one for the bytes that it has on the way. What goes on "
        "in a lane at the same time lies below each other. Ranks that do the same share a row."
        + (f" {left} rows are not shown." if left else "")
    )
    legend = shell.legend({phase: f"p-{colour}" for phase, colour in colours.items()})
    return shell.section("Timeline", lead, shell.figure(chart, legend))


def _rows(found: Prediction) -> dict[str, dict[str, list[Box]]]:
    """Boxes of each lane by the names of the ranks that do the same."""
    alike: dict[tuple[tuple[Box, ...], ...], list[int]] = {}
    for ranks in found.timeline.all_classes:
        lanes: dict[bool, list[Box]] = {False: [], True: []}
        for span in found.timeline.of(ranks[0]):
            name = span.phase if span.exchange in ("", found.unit) else span.exchange
            box = Box(span.start_s, span.end_s, span.phase, False, name)
            lanes[span.phase in COMMUNICATING].append(box)
        alike.setdefault((tuple(lanes[False]), tuple(lanes[True])), []).extend(ranks)
    return {
        _ranks(sorted(ranks)): dict(zip(_LANES, map(list, lanes), strict=True))
        for lanes, ranks in alike.items()
    }


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    few = ", ".join(map(str, ranks[:3]))
    return f"ranks {few}" if len(ranks) <= 3 else f"{len(ranks)} ranks: {few}, ..."


def _colours(phases: Iterable[str]) -> dict[str, str]:
    """Colour of each phase: that of its name or of a recorded op; other phases alternate between the unused colours."""
    known = {**KIND_COLOURS, **{colour: colour for colour in (*_BUSY, *_MOVING)}}
    found = {phase: known.get(phase, "") for phase in phases}
    for phase in found:
        order = _MOVING if phase in COMMUNICATING else _BUSY
        taken = list(found.values())
        found[phase] = found[phase] or min(order, key=taken.count)
    return found


def _phases(found: Prediction) -> str:
    whole = found.step_s or 1.0
    rows = [[name, seconds(value), percent(value / whole)] for name, value in found.phases_s.items()]
    lead = "Seconds of the mean rank. Phases may run beside each other, and several of one phase at the same time."
    return shell.section("Phases", lead, shell.table(["phase", "mean rank", "of the time"], rows))
