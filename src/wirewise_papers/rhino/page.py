"""HTML page of a model trained on several ranks by several methods."""

from __future__ import annotations

from html import escape

from wirewise.report import shell
from wirewise.report.comparison_page import best_of, comparison_html, fastest
from wirewise.report.figures import count, factor, seconds, signed, size
from wirewise.results import Comparison, Variant
from wirewise_papers.rhino.records import ParallelRecord, ParallelRun

__all__ = ["parallel_comparison", "parallel_html"]


def parallel_html(run: ParallelRun) -> str:
    """Render the page: measurements and the plan."""
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in run.why)
    table = shell.table(["block", "strategy"], list(run.choices.items())) if run.choices else ""
    reasons = shell.section(
        "What the plan does",
        escape(run.plans["rhino"].meaning) + ".",
        table + (f"<ul>{listed}</ul>" if listed else ""),
    )
    return comparison_html(parallel_comparison(run), f"{run.model} on several ranks", [reasons])


def parallel_comparison(run: ParallelRun) -> Comparison:
    """Comparison of training methods, with time and bytes of a step."""
    best, own = run.plans[run.fastest], run.plans["rhino"]
    took = fastest(run.fastest, len(run.plans), "way", f"{seconds(best.step_s)} a step, measured")
    others = {name: one.step_s for name, one in run.plans.items() if name != "rhino"}
    against = ""
    if others:
        nearest = min(others, key=others.__getitem__)
        against = f"; the plan is {factor(others[nearest] / own.step_s)} as fast as {nearest}, the best of the others"
    equal = all(one.loss_equal for one in run.plans.values())
    return Comparison(
        kind=f"wirewise run rhino \N{MIDDLE DOT} {run.model} on {count(len(run.links), 'host')} at "
        f"{', '.join(dict.fromkeys(run.links))}",
        sentence=f"{took}{against}. "
        + ("Losses are those of one device." if equal else "LOSSES DIFFER from those of one device."),
        cards=(
            ("Step of the plan", seconds(own.step_s), f"median of {run.turns} turns"),
            ("Predicted", seconds(own.predicted_step_s or 0.0), _error(own)),
            ("Sent in a step", size(own.bytes_sent), "by all hosts, measured"),
            ("Planning", seconds(run.planning_s), f"and {seconds(run.capture_s)} of capture"),
        ),
        title="A training step",
        lead="Medians; ways take turns. Error: predicted over measured.",
        what="way",
        variants={name: _variant(name, one, run) for name, one in run.plans.items()},
        notes=(
            f"Emulated: {run.emulated}.",
            f"The model has {run.parameters:,} parameters; every way trains the same weights on the same batch by SGD.",
            *(f"{name}: {one.meaning}." for name, one in run.plans.items() if one.meaning),
        ),
    )


def _error(one: ParallelRecord) -> str:
    if one.predicted_step_s is None:
        return "-"
    return f"{signed(one.predicted_step_s / one.step_s - 1)} of what was measured"


def _variant(name: str, one: ParallelRecord, run: ParallelRun) -> Variant:
    predicted = one.predicted_step_s
    return Variant(
        length=one.step_s,
        words=seconds(one.step_s) + (f" (predicted {seconds(predicted)})" if predicted else ""),
        colour=best_of(name, run.fastest),
        cells={
            "step": seconds(one.step_s),
            "predicted": "-" if predicted is None else seconds(predicted),
            "error": "-" if predicted is None else signed(predicted / one.step_s - 1),
            "sent": "-" if one.bytes_sent is None else size(one.bytes_sent),
            "sent, predicted": "-" if one.predicted_bytes is None else size(one.predicted_bytes),
            "losses": "equal" if one.loss_equal else f"OFF BY {one.loss_error:.1e}",
        },
    )
