"""HTML of pipeline modes: time, memory and loss of an update, and timetables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from wirewise.plans import StagePlan
from wirewise.report.comparison_page import best_of, fastest, predicted_variant
from wirewise.report.figures import count, factor, percent, seconds, signed, size
from wirewise.report.plan import plan_html
from wirewise.report.timetable_picture import timetable_section
from wirewise.results import Comparison, Variant
from wirewise_papers.pipedream_2bw.records import PipelineRecord, PipelineRun

__all__ = ["pipeline_comparison", "timetables"]


def timetables(run: PipelineRun, plans: Mapping[str, StagePlan]) -> Iterator[str]:
    """Sections of each mode: planned and measured timetable, and the plan.

    Args:
        run: Measured modes of the run.
        plans: Plan of each mode.
    """
    for name, plan in plans.items():
        yield timetable_section(
            plan,
            run.modes[name].passes,
            title=f"Timetable: {escape(name)}",
            introduction=escape(run.meanings[name][:1].upper() + run.meanings[name][1:] + "."),
            extra_html=plan_html(plan),
        )


def pipeline_comparison(run: PipelineRun) -> Comparison:
    """Comparison of modes, with time, bytes and loss."""
    first = next(iter(run.modes))
    best = run.modes[run.fastest]
    took = fastest(run.fastest, len(run.modes), "mode", f"{seconds(best.step_s)} an update, measured")
    sentence = f"{took}; {seconds(best.predicted_step_s)} was predicted."
    if run.fastest != first:
        speed = factor(run.modes[first].step_s / best.step_s)
        loss = signed(best.final_loss / run.modes[first].final_loss - 1)
        sentence = f"{took} with emulated computing, {speed} as fast as {first}; final loss {loss}."
    worst = max(run.modes.values(), key=lambda one: abs(one.error))
    return Comparison(
        kind=f"wirewise run pipedream-2bw \N{MIDDLE DOT} {run.stages} stages in {count(run.replicas, 'replica')} "
        f"on {run.hosts} hosts at {run.link}",
        sentence=sentence,
        cards=(
            ("Shortest update", seconds(best.step_s), f"{run.fastest}, median"),
            ("Idle", percent(best.bubble), f"of a rank's time, {run.fastest}"),
            ("Prediction error, largest", signed(worst.error), "over all modes"),
        ),
        title="An update of the weights",
        lead=f"Medians over {run.updates} updates of {run.microbatches} microbatches in each mode. To the loss: "
        f"training until the loss is within 1 % of the last one of {first}.",
        what="mode",
        variants={name: _variant(name, one, run) for name, one in run.modes.items()},
        notes=(
            f"Emulated: {run.emulated}.",
            "Modes train equal models on equal text and take turns; the first update of a turn fills the pipeline and "
            "does not count.",
            "Memory: weights in all versions, gradients, optimizer and saved activations of the fullest rank, counted.",
            "With two versions of the weights, gradients are one update old; losses are those of equal updates. Rates "
            "rise, then fall to zero, in all modes alike.",
        ),
    )


def _variant(name: str, one: PipelineRecord, run: PipelineRun) -> Variant:
    first = next(iter(run.modes))
    return predicted_variant(
        one,
        best_of(name, run.fastest, first),
        {
            "update": seconds(one.step_s),
            "speed": factor(run.modes[first].step_s / one.step_s),
            "predicted": seconds(one.predicted_step_s),
            "idle": percent(one.bubble),
            "memory": size(one.peak_bytes),
            "final loss": f"{one.final_loss:.3f}",
            "to the loss": seconds(one.time_to_reference_loss_s),
        },
    )
