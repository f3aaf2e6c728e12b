"""HTML page of resharding between meshes: measured and predicted times, and the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from wirewise.cost.links import Links
from wirewise.plans import ReshardPlan
from wirewise.report import shell
from wirewise.report.comparison_page import best_of, comparison_html, fastest
from wirewise.report.figures import count, factor, seconds, signed, size
from wirewise.report.plan import plan_html
from wirewise.report.reshard_picture import reshard_section
from wirewise.results import Comparison, Variant
from wirewise_papers.cross_mesh.records import ReshardRecord, ReshardRun

__all__ = ["reshard_comparison", "reshard_html"]


def reshard_html(run: ReshardRun, plans: Mapping[str, ReshardPlan], links: Links) -> str:
    """Render the page.

    Args:
        run: Measured result to show.
        plans: Plans by their name.
        links: Links with which it was predicted.
    """
    moved = (
        reshard_section(plan, links, title=f"When what travels: {escape(name)}")
        + shell.section(f"What moves: {escape(name)}", "", plan_html(plan))
        for name, plan in plans.items()
    )
    return comparison_html(reshard_comparison(run), f"{count(run.tensors, 'tensor')} between meshes", moved)


def reshard_comparison(run: ReshardRun) -> Comparison:
    """Comparison of plans, with time and bytes of a resharding."""
    best = min(run.plans, key=lambda name: run.plans[name].measured_s)
    own = run.plans[next(iter(run.plans))]
    words = f"{seconds(run.plans[best].measured_s)} a move, measured"
    said = fastest(best, len(run.plans), "plan", words)
    over = factor(own.measured_s / own.bound_s) if own.bound_s else "-"
    return Comparison(
        kind=f"wirewise run reshard \N{MIDDLE DOT} {run.ranks} ranks on hosts at {', '.join(run.links)}",
        sentence=f"{said}; the plan takes {over} of the time that none beats. "
        + ("All parts are equal bit for bit." if run.equal else "PARTS DIFFER."),
        cards=(
            ("Measured", seconds(own.measured_s), f"median of {run.turns} moves"),
            ("Bound", seconds(own.bound_s), f"measured over bound: {over}"),
            ("Predicted", seconds(own.predicted_s), _error(own)),
            ("Between hosts", size(own.bytes_between_hosts), "by the plan"),
        ),
        title="A move",
        lead="Medians; plans take turns. The dashed line is the time that no plan beats on these links. Error: "
        "predicted over measured.",
        goal=own.bound_s,
        what="plan",
        variants={name: _variant(name, one, best) for name, one in run.plans.items()},
        notes=(
            "Links, TCP and bytes are real. The bound has the links' full rates; predictions leave TCP's headers out.",
            f"Each plan moved {count(run.tensors, 'tensor')} {run.turns} times, after one move that is not counted.",
        ),
    )


def _error(one: ReshardRecord) -> str:
    return f"{signed(one.predicted_s / one.measured_s - 1)} of what was measured"


def _variant(name: str, one: ReshardRecord, best: str) -> Variant:
    measured, predicted = seconds(one.measured_s), seconds(one.predicted_s)
    return Variant(
        length=one.measured_s,
        words=f"{measured} (predicted {predicted})",
        colour=best_of(name, best),
        cells={
            "strategy": one.strategy,
            "measured": measured,
            "over the bound": factor(one.measured_s / one.bound_s) if one.bound_s else "-",
            "predicted": predicted,
            "error": signed(one.predicted_s / one.measured_s - 1),
            "between hosts": size(one.bytes_between_hosts),
            "equal": "yes" if one.equal else "NO",
        },
    )
