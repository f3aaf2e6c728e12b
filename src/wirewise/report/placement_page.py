"""One HTML file about placements of tasks that were carried out: simulated against measured, and what runs where."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from wirewise.plans import PlacementPlan
from wirewise.report import shell
from wirewise.report.figures import factor, seconds, size
from wirewise.report.plan import plan_html
from wirewise.report.replay_bars import Bar, bars_chart
from wirewise.report.replay_rows import signed
from wirewise.results import PlacementRun

__all__ = ["placement_html"]


def placement_html(run: PlacementRun, plans: Mapping[str, PlacementPlan]) -> str:
    """The page as text."""
    kind = f"wirewise run gnn-tasks \N{MIDDLE DOT} {run.tasks} tasks on hosts at {', '.join(run.links)}"
    sections = [
        shell.head(kind, sentence(run)),
        _cards(run),
        _iterations(run),
        _late(run),
        *(
            shell.section(f"What runs where: {escape(name)}", "", plan_html(plan))
            for name, plan in plans.items()
        ),
        _notes(run),
    ]
    return shell.page(f"{run.tasks} placed tasks", sections)


def sentence(run: PlacementRun) -> str:
    """What the run found, in a sentence."""
    first, best = next(iter(run.plans)), run.plans[run.fastest]
    said = f"{run.fastest} is the fastest of {len(run.plans)} plans: {seconds(best.measured_s)} an iteration, measured"
    if run.fastest == first:
        return f"{said}; no other plan is faster than this one, which all are compared with."
    gains = [f"{100 * gain:.1f} %" for gain in (best.measured_gain, best.simulated_gain)]
    return f"{said}, {gains[0]} less than {first}; {gains[1]} was simulated."


def _cards(run: PlacementRun) -> str:
    best = run.plans[run.fastest]
    errors = sorted(abs(plan.error) for plan in run.plans.values())
    return shell.cards(
        [
            ("Fastest iteration", seconds(best.measured_s), f"{run.fastest}, median of {run.turns} turns"),
            ("Simulated", seconds(best.simulated_s), f"{signed(best.error)} of what was measured"),
            ("Simulation error, largest", f"{100 * errors[-1]:.1f} %", "over all plans"),
            (
                "Over the lower bound",
                factor(best.measured_s / best.lower_bound_s if best.lower_bound_s > 0 else None),
                "measured, over what no order of flows beats with these places",
            ),
            ("Between hosts", size(best.crossing_bytes), "in an iteration"),
        ]
    )


def _iterations(run: PlacementRun) -> str:
    bars = [
        Bar(name, one.measured_s, f"simulated {seconds(one.simulated_s)}, {signed(one.error)}", colour)
        for name, one in run.plans.items()
        for colour in ["c2" if name == run.fastest else "c1"]
    ]
    goal = run.plans[run.fastest].lower_bound_s
    lead = "Medians of turns; the dashed line is the simulated bound of the fastest plan's places."
    chart = bars_chart(bars, "Measured iteration of each plan", goal)
    rows = [
        (
            name,
            seconds(one.measured_s),
            signed(one.measured_gain),
            seconds(one.simulated_s),
            signed(one.simulated_gain),
            seconds(one.lower_bound_s),
            size(one.crossing_bytes),
        )
        for name, one in run.plans.items()
    ]
    titles = ("plan", "measured", "saved", "simulated", "saved, simulated", "lower bound", "between hosts")
    return shell.section("An iteration", lead, f"<figure>{chart}</figure>{shell.table(titles, rows)}")


def _late(run: PlacementRun) -> str:
    """Which task or flow of each kind strays furthest from the simulation."""
    rows = [
        (name, kind, line, f"{1e3 * late_s:+.1f} ms", signed(late_s / (one.measured_s * run.iterations)))
        for name, one in run.plans.items()
        for kind, (line, late_s) in one.latest.items()
    ]
    lead = "What ended furthest from its simulated end in the turn of the median; negative: earlier."
    titles = ("plan", "kind", "which", "late", "of the whole run")
    return shell.section("Where measured and simulated differ", lead, shell.table(titles, rows))


def _notes(run: PlacementRun) -> str:
    told = [
        f"Emulated: {run.emulated}.",
        f"{run.iterations} iterations, carried out {run.turns} times by each plan; plans take turns.",
        "Simulated: flows share interfaces at rates that change when a flow begins or ends; a link carries 0.9 of "
        "its rate as payload.",
    ]
    items = "".join(f"<li>{escape(text)}</li>" for text in told)
    return shell.section("How this was measured", "", f'<ul class="how">{items}</ul>')
