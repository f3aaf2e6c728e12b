"""HTML page of plans of compressed gradients: predicted and measured times, and bytes sent."""

from __future__ import annotations

from html import escape

from wirewise.report import shell, svg
from wirewise.report.bars import Stack, stacks_chart
from wirewise.report.comparison_page import best_of, comparison_html, fastest, predicted_variant
from wirewise.report.figures import MISSING, count, factor, seconds, signed, size
from wirewise.results import Comparison, Variant
from wirewise_papers.cupcake.records import CompressionRun, GroupRecord, PlanRecord

__all__ = ["MOST_GROUPS", "gradients_comparison", "gradients_html", "groups_chart"]

MOST_GROUPS = 16
"""Maximum number of groups of a plan that are drawn, evenly spaced."""
_PARTS = {"encode": "pack", "communicate": "wire", "decode": "unpack"}


def gradients_html(run: CompressionRun) -> str:
    """Render the page."""
    return comparison_html(gradients_comparison(run), f"{run.model}: groups of gradients", [_groups(run)])


def gradients_comparison(run: CompressionRun) -> Comparison:
    """Comparison of plans, with bytes of a rank in a step."""
    return Comparison(
        kind=f"wirewise run cupcake \N{MIDDLE DOT} {run.hosts} hosts at {run.link}, {run.model}",
        sentence=_sentence(run),
        cards=_cards(run),
        title="Steps",
        lead="Medians, measured in turns; the dashed line is computing alone. Payload: bytes that a rank sends in a "
        "step, computed from the plan. Sent: the same, counted by the kernel at the interface. Fewer bytes: than a "
        "ring sends of what is not compressed.",
        goal=run.forward_s + run.backward_s,
        what="plan",
        variants={name: _variant(run, name, plan) for name, plan in run.plans.items()},
        notes=(
            f"Emulated: {run.emulated}. Codecs, groups, collectives (gloo) and links are real.",
            f"{run.tensors} gradients with {run.elements:,} elements in all; codec: {run.codec}.",
            "Predicted from times of codecs and of collectives that were measured between these ranks before.",
        ),
    )


def _plain(run: CompressionRun) -> str | None:
    """The fastest plan that compresses nothing."""
    plain = [name for name, plan in run.plans.items() if all(group.codec == "none" for group in plan.groups)]
    return min(plain, key=lambda name: run.plans[name].step_s, default=None)


def _sentence(run: CompressionRun) -> str:
    best, plain = run.plans[run.fastest], _plain(run)
    said = fastest(run.fastest, len(run.plans), "plan", f"{seconds(best.step_s)} a step")
    if plain is None or plain == run.fastest:
        return f"{said}{', and it compresses nothing' if plain else ''}."
    gain = run.plans[plain].step_s / best.step_s
    return f"{said}, {factor(gain)} as fast as the best one without compression ({plain})."


def _cards(run: CompressionRun) -> tuple[tuple[str, str, str], ...]:
    best, plain = run.plans[run.fastest], _plain(run)
    errors = sorted(abs(plan.error) for plan in run.plans.values())
    over = best.step_s / best.lower_bound_s if best.lower_bound_s > 0 else None
    without = (seconds(run.plans[plain].step_s), plain) if plain else (MISSING, "no such plan was measured")
    return (
        (
            "Fastest step, measured",
            seconds(best.step_s),
            f"{run.fastest}, median of {run.steps} steps, slowest rank",
        ),
        ("Without compression", *without),
        (
            "Prediction error, median",
            f"{100 * errors[len(errors) // 2]:.1f} %",
            f"largest of all plans {100 * errors[-1]:.1f} %",
        ),
        (
            "Over the lower bound",
            factor(over),
            "measured step over what no plan of the model beats with these codecs",
        ),
        ("Computing", seconds(run.forward_s + run.backward_s), "forward, back-propagation and optimizer"),
    )


def _variant(run: CompressionRun, name: str, plan: PlanRecord) -> Variant:
    over = None if plan.bytes_sent is None else plan.bytes_sent / max(plan.payload_bytes, 1) - 1
    ring = 2 * (run.hosts - 1) / run.hosts * 4 * sum(group.elements for group in plan.groups)
    return predicted_variant(
        plan,
        best_of(name, run.fastest),
        {
            "step": seconds(plan.step_s),
            "predicted": seconds(plan.predicted_step_s),
            "error": signed(plan.error),
            "groups": str(len(plan.groups)),
            "codecs": ", ".join(dict.fromkeys(group.codec for group in plan.groups)),
            "payload": size(plan.payload_bytes),
            "sent": size(plan.bytes_sent),
            "over payload": MISSING if over is None else signed(over),
            "fewer bytes": factor(ring / plan.payload_bytes),
        },
    )


def _groups(run: CompressionRun) -> str:
    charts = {
        f"{name}, {MOST_GROUPS} of {len(plan.groups)} groups"
        if len(plan.groups) > MOST_GROUPS
        else name: chart
        for name, plan in run.plans.items()
        if (chart := groups_chart(plan.groups, f"Groups of {name}, predicted and measured"))
    }
    lead = (
        "Medians of the slowest rank; a group waits for back-propagation, and its collective for the one before. "
        "What a divisible scheme decodes on the way is part of communicating. Each plan has a scale of its own."
    )
    drawn = "".join(f"<h3>{escape(name)}</h3>{shell.figure(chart)}" for name, chart in charts.items())
    legend = shell.legend({part: f"p-{colour}" for part, colour in _PARTS.items()})
    return shell.section("Groups of each plan", lead, drawn and legend + drawn)


def groups_chart(groups: list[GroupRecord], label: str) -> str:
    """Stacked bars of each group, predicted above measured; empty if not measured."""
    rows = []
    for number in svg.thin(len(groups), MOST_GROUPS):
        group = groups[number]
        if group.measured_s is not None:
            rows += [
                _times(f"{_name(number, group)}: predicted", group.predicted_s),
                _times("measured", group.measured_s),
            ]
    return stacks_chart(rows, _PARTS, label, block=2)


def _times(label: str, times: tuple[float, float, float]) -> Stack:
    return Stack(label, dict(zip(_PARTS, times, strict=True)), seconds(sum(times)))


def _name(number: int, group: GroupRecord) -> str:
    way = group.scheme if group.codec == "none" else f"{group.codec}, {group.scheme}"
    return f"{number}: {way}, {count(group.last - group.first + 1, 'tensor')}"
