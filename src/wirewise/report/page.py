"""One HTML file about a run: nothing is loaded from elsewhere, so it can be mailed, archived and printed."""

from __future__ import annotations

from html import escape

from wirewise import units
from wirewise.plans import Plan
from wirewise.report import bars, figures, lines, series, shell
from wirewise.report.figures import Comparison
from wirewise.report.measures import Measure, measures
from wirewise.report.plan import plan_html
from wirewise.report.summary import network_words, summary_sentence
from wirewise.results import ModeResult, RunResult

__all__ = ["page_html"]


_ROOMY = 3
"""Most modes whose table has room for the meaning of each row."""

_TERMS = {
    "worker, rank": "One training process with one part of the graph.",
    "halo": "Nodes of other parts that a part's own nodes take rows from; these rows travel every epoch.",
    "central, marginal": "Own nodes without and with a neighbour in another part.",
    "message": "One row of activations or gradients of one node, sent from one rank to another.",
    "reference": "The mode that the others are compared with.",
}


def page_html(result: RunResult, plan: Plan | None = None) -> str:
    """The page as text."""
    title = f"{result.dataset}: {', '.join(result.modes) or 'nothing trained'}"
    sections = [_head(result), _cards(result)]
    if result.modes:
        sections += [_over_time(result), _phases(result), _bytes(result), _bits(result), _table(result)]
    if plan is not None:
        sections.append(
            shell.section("Plan", "The bits chosen for every message of an exchange.", plan_html(plan))
        )
    sections += [_method(result), _definitions(result)]
    return shell.page(title, sections)


def _head(result: RunResult) -> str:
    model = f"{result.layers}-layer {result.model}, {result.hidden} wide"
    shape = f"{model}, {result.epochs} epochs, seed {result.seed}"
    return shell.head(f"wirewise run \N{MIDDLE DOT} {shape}", summary_sentence(result))


def _cards(result: RunResult) -> str:
    name = figures.focus_name(result)
    if name is None:
        return ""
    both, reference = Comparison.of(result, name), figures.reference_name(result)
    mine, other = both.mode, both.reference
    cards = [
        (
            "Epochs per second",
            figures.factor(both.speedup_epoch),
            f"{figures.seconds(mine.epoch_s)} an epoch, {reference} {figures.seconds(other.epoch_s)}",
        ),
        (
            "Sooner at the same loss",
            figures.factor(both.speedup_time_to_loss),
            _loss_card(both, reference),
        ),
        (
            "Fewer payload bytes",
            figures.factor(both.bytes_ratio),
            f"{figures.size(mine.bytes_sent)}, {reference} {figures.size(other.bytes_sent)}",
        ),
        (
            "Test accuracy, points",
            figures.points(both.accuracy_delta_points),
            f"{_accuracy(mine)}, {reference} {_accuracy(other)}",
        ),
        (
            "Mean bits a value",
            figures.bits(mine.mean_bits),
            f"{reference} {figures.bits(other.mean_bits)}",
        ),
    ]
    return (
        f'<p class="who"><b class="mode {lines.colour(result, name)}">{escape(name)}</b> against '
        f'<b class="mode {lines.colour(result, reference)}">{escape(reference)}</b></p>'
        f"{shell.cards(cards)}"
    )


def _accuracy(mode: ModeResult) -> str:
    return figures.percent(figures.accuracy_of(mode))


def _loss_card(both: Comparison, reference: str) -> str:
    mine, other = both.mode.time_to_reference_loss_s, both.reference.time_to_reference_loss_s
    if mine is None:
        return f"never within 1 % of the final loss of {reference}"
    return f"{figures.seconds(mine)} to within 1 %, {reference} {figures.seconds(other)}"


def _over_time(result: RunResult) -> str:
    charts = {
        "Training loss": lines.loss_chart(result) or "No finite loss was recorded.",
        "Validation accuracy": lines.accuracy_chart(result) or "No epoch was evaluated.",
    }
    figures_html = "".join(
        f'<figure><figcaption>{title}</figcaption><div class="none">{chart}</div></figure>'
        for title, chart in charts.items()
    )
    lead = (
        "Each mode has its own clock: its training and evaluation seconds, added up. Losses are averages of "
        f"up to {series.SMOOTHING} epochs. Rings mark when a mode came within 1 % of the dashed line."
    )
    body = f'{lines.legend(result)}<div class="pair">{figures_html}</div>'
    return shell.section("Loss and accuracy over time", lead, body)


def _phases(result: RunResult) -> str:
    chart = bars.phases_chart(result)
    lead = (
        "Mean rank, mean epoch, the first two epochs left out. The table has the median on the slowest rank."
    )
    table = f'<table class="modes phases{_many(result)}">{bars.phase_table(result)}</table>'
    body = f'<figure>{chart}</figure><div class="scroll">{table}</div>' if chart else ""
    return shell.section("Where an epoch goes", lead, body)


def _bytes(result: RunResult) -> str:
    chart = bars.bytes_chart(result)
    counted = any(mode.kernel_bytes_sent is not None for mode in result.modes.values())
    lead = "All ranks, all epochs. Payload is what halo messages hold"
    lead += (
        "; the kernel counter saw whole packets on the hosts' interfaces, of gradients and evaluation too."
        if counted
        else ". There was no lab, so no kernel counter to compare it with."
    )
    return shell.section("Bytes sent", lead, f"<figure>{chart}</figure>" if chart else "")


def _bits(result: RunResult) -> str:
    charts = bars.bits_charts(result)
    lead = (
        "Share of the messages in each bit width. forward1 carries activations into layer 1, backward1 the "
        "gradients that come back for them."
    )
    return shell.section("Bits by layer and direction", lead, charts and bars.bit_legend(result) + charts)


def _table(result: RunResult) -> str:
    head = "".join(
        f'<th scope="col" class="num"><span class="mode {lines.colour(result, name)}">'
        f"{escape(name)}</span></th>"
        for name in result.modes
    )
    rows = "".join(map(_table_row, measures(result)))
    head = f'<thead><tr><td></td>{head}<td class="meaning"></td></tr></thead>'
    return shell.section(
        "Modes",
        "",
        f'<div class="scroll"><table class="modes{_many(result)}">{head}<tbody>{rows}</tbody></table></div>',
    )


def _many(result: RunResult) -> str:
    """A class for tables so wide that the meanings of their rows find no room."""
    return " many" if len(result.modes) > _ROOMY else ""


def _table_row(measure: Measure) -> str:
    cells = "".join(f'<td class="num">{escape(cell)}</td>' for cell in measure.cells)
    meaning = f'<td class="meaning">{escape(measure.meaning)}</td>'
    return f'<tr><th scope="row">{escape(measure.label)}</th>{cells}{meaning}</tr>'


def _method(result: RunResult) -> str:
    how = [
        "All modes trained on the same parts, in turns, so that a busy moment of the machine does not fall "
        "on one mode alone."
        if len(result.modes) > 1
        else "One mode was trained.",
        _network_method(result),
        "Times, bytes, losses and accuracies were measured in this run; nothing on this page is simulated "
        "unless a note here says so.",
        *result.notes,
    ]
    items = "".join(f"<li>{escape(text)}</li>" for text in how)
    facts = {
        "network": f"{result.workers} workers {network_words(result)}",
        **{name.replace("_", " "): _fact(value) for name, value in result.graph.items()},
        **result.environment,
    }
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_environment_value(name, value)}</dd></div>"
        for name, value in facts.items()
    )
    return shell.section(
        "How this was measured", "", f'<ul class="how">{items}</ul><dl class="facts">{rows}</dl>'
    )


def _network_method(result: RunResult) -> str:
    if result.network == "lab":
        rate = result.link_bytes_per_s
        shaped = "" if rate is None else f" whose rate is held at {units.format_rate(rate)}"
        return (
            "The network is emulated: each host of the lab is a network namespace of one machine with a link "
            f"of its own{shaped}. Bytes really cross these links; the hosts share the machine's processors."
        )
    return (
        "Workers talked over the loopback interface of one machine. No link was limited, so times and "
        "speed-ups say little about a real network; bytes, bits, losses and accuracies hold for any network."
    )


def _environment_value(name: str, value: str) -> str:
    return f"<code>{escape(value)}</code>" if name == "command" else escape(value)


def _fact(value: float) -> str:
    return (
        f"{value:,.0f}" if figures.finite(value) is not None and value == int(value) else figures.plain(value)
    )


def _definitions(result: RunResult) -> str:
    terms = "".join(_term(name, meaning) for name, meaning in _TERMS.items())
    figures_told = "".join(_term(m.label, m.meaning) for m in measures(result))
    figures_told += "".join(_term(name, meaning) for name, meaning in bars.phase_meanings(result).items())
    # Tables say what their figures mean where they have room; else it is said here.
    hidden = "" if _many(result) else " small-screen"
    body = f'<dl class="definitions">{terms}</dl><dl class="definitions{hidden}">{figures_told}</dl>'
    return shell.section("Definitions", "", body)


def _term(name: str, meaning: str) -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(meaning)}</dd></div>"
