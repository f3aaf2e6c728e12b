"""HTML page of executed task placements: simulated and measured times, and timelines."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from wirewise.plans import PlacementPlan
from wirewise.report import shell
from wirewise.report.comparison_page import best_of, comparison_html, fastest
from wirewise.report.figures import MINUS, factor, seconds, signed, size
from wirewise.report.plan import plan_html
from wirewise.results import Comparison, Variant
from wirewise_papers.gnn_tasks.records import PlacementRecord, PlacementRun

__all__ = ["placement_comparison", "placement_html"]


def placement_html(run: PlacementRun, plans: Mapping[str, PlacementPlan]) -> str:
    """Render the page."""
    where = (
        shell.section(f"What runs where: {escape(name)}", "", plan_html(plan)) for name, plan in plans.items()
    )
    return comparison_html(placement_comparison(run), f"{run.tasks} placed tasks", [_late(run), *where])


def placement_comparison(run: PlacementRun) -> Comparison:
    """Comparison of plans, with time and bytes of an iteration."""
    return Comparison(
        kind=f"wirewise run gnn-tasks \N{MIDDLE DOT} {run.tasks} tasks on hosts at {', '.join(run.links)}",
        sentence=_sentence(run),
        cards=_cards(run),
        title="An iteration",
        lead=f"Medians of {run.turns} turns; the dashed line is the simulated bound of the fastest plan's places. "
        "Saved: share of the first plan's time. Error: simulated over measured.",
        goal=run.plans[run.fastest].lower_bound_s,
        what="plan",
        variants={name: _variant(name, one, run.fastest) for name, one in run.plans.items()},
        notes=(
            f"Emulated: {run.emulated}.",
            f"{run.iterations} iterations, carried out {run.turns} times by each plan; plans take turns.",
            "Simulated: flows share interfaces at rates that change when a flow begins or ends; a link carries 0.9 of "
            "its rate as payload.",
        ),
    )


def _sentence(run: PlacementRun) -> str:
    first, best = next(iter(run.plans)), run.plans[run.fastest]
    said = fastest(run.fastest, len(run.plans), "plan", f"{seconds(best.measured_s)} an iteration, measured")
    if len(run.plans) == 1:
        return f"{said}; {seconds(best.simulated_s)} were simulated."
    if run.fastest == first:
        return f"{said}; no other plan is faster than this one, which all are compared with."
    gains = [f"{100 * gain:.1f} %" for gain in (best.measured_gain, best.simulated_gain)]
    return f"{said}, {gains[0]} less than {first}; {gains[1]} was simulated."


def _cards(run: PlacementRun) -> tuple[tuple[str, str, str], ...]:
    best = run.plans[run.fastest]
    largest = max(abs(plan.error) for plan in run.plans.values())
    over = best.measured_s / best.lower_bound_s if best.lower_bound_s > 0 else None
    return (
        ("Fastest iteration", seconds(best.measured_s), f"{run.fastest}, median of {run.turns} turns"),
        ("Simulated", seconds(best.simulated_s), f"error {signed(best.error)} of what was measured"),
        ("Simulation error, largest", f"{100 * largest:.1f} %", "over all plans"),
        ("Over the lower bound", factor(over), "measured, over what no order of flows beats with these places"),
        ("Between hosts", size(best.crossing_bytes), f"in an iteration of {run.fastest}"),
    )  # fmt: skip


def _variant(name: str, one: PlacementRecord, best: str) -> Variant:
    measured, simulated, error = seconds(one.measured_s), seconds(one.simulated_s), signed(one.error)
    return Variant(
        length=one.measured_s,
        words=f"{measured} (simulated {simulated}, {error})",
        colour=best_of(name, best),
        cells={
            "measured": measured,
            "saved": signed(one.measured_gain),
            "simulated": simulated,
            "saved, simulated": signed(one.simulated_gain),
            "error": error,
            "lower bound": seconds(one.lower_bound_s),
            "between hosts": size(one.crossing_bytes),
        },
    )


def _late(run: PlacementRun) -> str:
    """Which task or flow of each kind strays furthest from the simulation; a plan is named in its first row."""
    rows = [
        (
            "" if number else name,
            kind,
            line,
            f"{1e3 * late_s:+.1f} ms".replace("-", MINUS),
            signed(late_s / (one.measured_s * run.iterations)),
        )
        for name, one in run.plans.items()
        for number, (kind, (line, late_s)) in enumerate(one.latest.items())
    ]
    lead = "What ended furthest from its simulated end in the turn of the median; negative: earlier."
    titles = ("plan", "kind", "which", "late", "of the whole run")
    return shell.section("Where measured and simulated differ", lead, shell.table(titles, rows))
