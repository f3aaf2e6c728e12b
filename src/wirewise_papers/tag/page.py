"""HTML page of a model trained on heterogeneous hosts: measured and predicted steps, and timelines."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from wirewise.plans.deployment import DeploymentPlan
from wirewise.report import shell
from wirewise.report.comparison_page import best_of, comparison_html, fastest, predicted_variant
from wirewise.report.figures import factor, seconds, signed, size
from wirewise.report.plan import plan_html
from wirewise.results import Comparison, Variant
from wirewise_papers.tag.records import DeploymentRecord, DeploymentRun

__all__ = ["deployment_comparison", "deployment_html"]


def deployment_html(run: DeploymentRun, plans: Mapping[str, DeploymentPlan]) -> str:
    """Render the page.

    Args:
        run: Measured result to show.
        plans: Plans by their name.
    """
    where = (
        shell.section(
            f"What runs where: {escape(name)}", f"{escape(run.meanings[name])}.", plan_html(plans[name])
        )
        for name in run.plans
    )
    return comparison_html(deployment_comparison(run), f"{run.model} on unequal hosts", where)


def deployment_comparison(run: DeploymentRun) -> Comparison:
    """Comparison of plans, with time and bytes of a step."""
    first, best = next(iter(run.plans)), run.plans[run.fastest]
    said = fastest(run.fastest, len(run.plans), "plan", f"{seconds(best.step_s)} a step, measured")
    if run.fastest != first:
        said += f", {factor(run.plans[first].step_s / best.step_s)} as fast as {first}"
    unequal = [name for name, one in run.plans.items() if not one.loss_equal]
    worst = max(run.plans.values(), key=lambda one: abs(one.error))
    return Comparison(
        kind=f"wirewise run tag \N{MIDDLE DOT} {run.model} on hosts of speed "
        f"{', '.join(f'{speed:g}' for speed in run.speeds)} at {', '.join(run.links)}",
        sentence=f"{said}. "
        + (
            f"LOSSES DIFFER under {', '.join(unequal)}."
            if unequal
            else "All losses are those of one process."
        ),
        cards=(
            ("Shortest step", seconds(best.step_s), f"{run.fastest}, median of {run.steps} steps"),
            ("Predicted", seconds(best.predicted_step_s), f"{signed(best.error)} of what was measured"),
            ("Prediction error, largest", signed(worst.error), "over all plans"),
            ("Between hosts", size(best.bytes_sent), f"in a step of {run.fastest}"),
        ),
        title="A step",
        lead=f"Medians of {run.steps} steps of {run.batch} rows; plans take turns. Error: predicted over measured.",
        what="plan",
        variants={name: _variant(name, one, run) for name, one in run.plans.items()},
        notes=(
            f"Emulated: {run.emulated}.",
            "All ranks begin a step together; it ends with the update of the parameters on the last rank.",
            "Bytes are those of the interfaces, headers included. Losses of the first steps are compared with those of "
            "one process.",
        ),
    )


def _variant(name: str, one: DeploymentRecord, run: DeploymentRun) -> Variant:
    first = next(iter(run.plans))
    return predicted_variant(
        one,
        best_of(name, run.fastest, first),
        {
            "step": seconds(one.step_s),
            "speed": factor(run.plans[first].step_s / one.step_s),
            "predicted": seconds(one.predicted_step_s),
            "error": signed(one.error),
            "between hosts": size(one.bytes_sent),
            "losses": "equal" if one.loss_equal else f"differ by {one.loss_error:.1e}",
        },
    )
