"""One HTML file about plans of compressed gradients: predicted against measured, and what was sent."""

from __future__ import annotations

from html import escape

from wirewise.report import shell
from wirewise.report.figures import MISSING, factor, seconds, size
from wirewise.report.gradients_bars import MOST_GROUPS, groups_chart, groups_legend
from wirewise.report.replay_bars import Bar, bars_chart
from wirewise.report.replay_rows import signed
from wirewise.results import CompressionRun, PlanRecord

__all__ = ["gradients_html"]


def gradients_html(run: CompressionRun) -> str:
    """The page as text."""
    kind = f"wirewise run cupcake \N{MIDDLE DOT} {run.hosts} hosts at {run.link}, {run.model}"
    sections = [
        shell.head(kind, _sentence(run)),
        _cards(run),
        _steps(run),
        *(_groups(name, plan) for name, plan in run.plans.items()),
        _bytes(run),
        _notes(run),
    ]
    return shell.page(f"{run.model}: groups of gradients", sections)


def _plain(run: CompressionRun) -> str | None:
    """The fastest plan that compresses nothing."""
    plain = [name for name, plan in run.plans.items() if all(group.codec == "none" for group in plan.groups)]
    return min(plain, key=lambda name: run.plans[name].step_s, default=None)


def _sentence(run: CompressionRun) -> str:
    best, plain = run.plans[run.fastest], _plain(run)
    said = f"{run.fastest} is the fastest of {len(run.plans)} plans: {seconds(best.step_s)} a step"
    if plain is None or plain == run.fastest:
        return f"{said}{', and it compresses nothing' if plain else ''}."
    gain = run.plans[plain].step_s / best.step_s
    return f"{said}, {factor(gain)} as fast as the best one without compression ({plain})."


def _cards(run: CompressionRun) -> str:
    best, plain = run.plans[run.fastest], _plain(run)
    errors = sorted(abs(plan.error) for plan in run.plans.values())
    over = best.step_s / best.lower_bound_s if best.lower_bound_s > 0 else None
    return shell.cards(
        [
            (
                "Fastest step, measured",
                seconds(best.step_s),
                f"{run.fastest}, median of {run.steps} steps, slowest rank",
            ),
            (
                "Without compression",
                seconds(run.plans[plain].step_s) if plain else MISSING,
                plain or "no such plan was measured",
            ),
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
        ]
    )


def _steps(run: CompressionRun) -> str:
    bars = [
        Bar(name, plan.step_s, f"predicted {seconds(plan.predicted_step_s)}, {signed(plan.error)}", colour)
        for name, plan in run.plans.items()
        for colour in ["c2" if name == run.fastest else "c1"]
    ]
    whole = run.forward_s + run.backward_s
    chart = bars_chart(bars, "Measured step of each plan", whole)
    lead = "Medians, measured in turns; the dashed line is computing alone."
    return shell.section("Steps", lead, f"<figure>{chart}</figure>" if chart else "")


def _groups(name: str, plan: PlanRecord) -> str:
    chart = groups_chart(plan.groups, f"Groups of {name}, predicted and measured")
    lead = (
        "Medians of the slowest rank; a group waits for back-propagation, and its collective for the one before. "
        "What a divisible scheme decodes on the way is part of communicating."
    )
    if len(plan.groups) > MOST_GROUPS:
        lead = f"{MOST_GROUPS} of {len(plan.groups)} groups. {lead}"
    body = f"{groups_legend()}<figure>{chart}</figure>" if chart else ""
    return shell.section(f"Groups of {escape(name)}", lead, body)


def _bytes(run: CompressionRun) -> str:
    rows = []
    for name, plan in run.plans.items():
        elements = sum(group.elements for group in plan.groups)
        over = None if plan.bytes_sent is None else plan.bytes_sent / max(plan.payload_bytes, 1) - 1
        ring = 2 * (run.hosts - 1) / run.hosts * 4 * elements
        rows.append(
            [
                name,
                str(len(plan.groups)),
                ", ".join(dict.fromkeys(group.codec for group in plan.groups)),
                size(plan.payload_bytes),
                size(plan.bytes_sent),
                MISSING if over is None else signed(over),
                factor(ring / plan.payload_bytes),
            ]
        )
    titles = ["plan", "groups", "codecs", "payload", "sent", "headers and more", "less than uncompressed"]
    lead = "Bytes of a rank in a step. Payload: computed from the plan. Sent: counted by the kernel at the interface."
    return shell.section("Bytes", lead, shell.table(titles, rows))


def _notes(run: CompressionRun) -> str:
    told = [
        f"Emulated: {run.emulated}. Codecs, groups, collectives (gloo) and links are real.",
        f"{run.tensors} gradients with {run.elements:,} elements in all; codec: {run.codec}.",
        "Predicted from times of codecs and of collectives that were measured between these ranks before.",
    ]
    items = "".join(f"<li>{escape(text)}</li>" for text in told)
    return shell.section("Notes", "", f'<ul class="how">{items}</ul>')
