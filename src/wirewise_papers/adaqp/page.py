"""HTML page of full-graph training: modes compared with full precision, over time, by phase and by bits."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from wirewise import units
from wirewise.plans import Plan
from wirewise.report import figures, shell
from wirewise.report.comparison_page import comparison_html
from wirewise.report.plan import plan_html
from wirewise.report.tables import print_comparison
from wirewise.results import Comparison, Variant
from wirewise_papers.adaqp import lines, mode_bars
from wirewise_papers.adaqp.pairs import ModePair, accuracy_of, focus_name, reference_name
from wirewise_papers.adaqp.records import ModeResult, RunResult
from wirewise_papers.adaqp.summary import network_words, summary_sentence
from wirewise_papers.losses import SMOOTHING

__all__ = ["measures", "modes_comparison", "page_html", "print_result"]

_TERMS = {
    "worker, rank": "One training process with one part of the graph.",
    "halo": "Nodes of other parts that a part's own nodes take rows from; these rows travel every epoch.",
    "central, marginal": "Own nodes without and with a neighbour in another part.",
    "message": "One row of activations or gradients of one node, sent from one rank to another.",
    "reference": "The mode that the others are compared with.",
}


def page_html(result: RunResult, plan: Plan | None = None) -> str:
    """Render the page.

    Args:
        result: Measured result of the run.
        plan: Plan of the run to draw, too.
    """
    charts = [_over_time(result), _phases(result), _bytes(result), _bits(result)] if result.modes else []
    drawn = plan_html(plan) if plan is not None else ""
    sections = [
        shell.section("Plan", "The bits chosen for every message of an exchange.", drawn),
        _definitions(result),
    ]
    title = f"{result.dataset}: {', '.join(result.modes) or 'nothing trained'}"
    return comparison_html(modes_comparison(result), title, sections, first=charts)


def print_result(result: RunResult, console: Console | None = None) -> None:
    """Print the comparison of modes to a console. Defaults to standard output."""
    print_comparison(modes_comparison(result), focus_name(result), console)


def modes_comparison(result: RunResult) -> Comparison:
    """Comparison of modes, one row per measure."""
    rows = measures(result) if result.modes else {}
    shape = f"{result.layers}-layer {result.model}, {result.hidden} wide"
    return Comparison(
        kind=f"wirewise run adaqp \N{MIDDLE DOT} {shape}, {result.epochs} epochs, seed {result.seed}",
        sentence=summary_sentence(result),
        cards=_cards(result),
        title="Modes",
        what="mode",
        variants={
            name: Variant(
                cells={label: cells[name] for label, (cells, _) in rows.items()},
                colour=lines.colour(result, name),
            )
            for name in result.modes
        },
        meanings={label: meaning for label, (_, meaning) in rows.items()},
        notes=(
            "All modes trained on the same parts, in turns, so that a busy moment of the machine does not fall on one "
            "mode alone."
            if len(result.modes) > 1
            else "One mode was trained.",
            _network_method(result),
            "Times, bytes, losses and accuracies were measured in this run; nothing on this page is simulated unless a "
            "note here says so.",
            *result.notes,
        ),
        facts={
            "network": f"{result.workers} workers {network_words(result)}",
            **{name.replace("_", " "): _fact(value) for name, value in result.graph.items()},
            **result.environment,
        },
    )


def _cards(result: RunResult) -> tuple[tuple[str, str, str], ...]:
    name = focus_name(result)
    if name is None:
        return ()
    both, reference = ModePair.of(result, name), reference_name(result)
    mine, other = both.mode, both.reference

    def next_to(text: str, of_reference: str) -> str:
        return f"{name} {text}, {reference} {of_reference}"

    return (
        (
            "Faster",
            figures.factor(both.speedup_run),
            next_to(
                f"{figures.seconds(mine.run_s)} for {figures.count(result.epochs, 'epoch')}",
                f"{figures.seconds(other.run_s)}; {figures.factor(both.speedup_epoch)} an epoch after warm-up",
            ),
        ),
        (
            "Sooner at the same loss",
            figures.factor(both.speedup_time_to_loss),
            _loss_card(name, both, reference),
        ),
        (*_bytes_card(both, next_to),),
        (
            "Test accuracy, points",
            figures.points(both.accuracy_delta_points),
            next_to(_accuracy(mine), _accuracy(other)),
        ),
        (
            "Mean bits a value",
            figures.bits(mine.mean_bits),
            next_to(figures.bits(mine.mean_bits), figures.bits(other.mean_bits)),
        ),
    )


def _bytes_card(both: ModePair, next_to: Callable[[str, str], str]) -> tuple[str, str, str]:
    mine, other = both.mode, both.reference
    if (counted := both.interface_bytes_ratio) is None:
        sizes = figures.size(mine.bytes_sent), figures.size(other.bytes_sent)
        return "Fewer payload bytes", figures.factor(both.bytes_ratio), next_to(*sizes)
    sizes = figures.size(mine.kernel_bytes_sent), figures.size(other.kernel_bytes_sent)
    payload = f"; {figures.factor(both.bytes_ratio)} in payload"
    return "Fewer bytes on the links", figures.factor(counted), next_to(*sizes) + payload


def _accuracy(mode: ModeResult) -> str:
    return figures.percent(accuracy_of(mode))


def _loss_card(name: str, both: ModePair, reference: str) -> str:
    mine, other = both.mode.time_to_reference_loss_s, both.reference.time_to_reference_loss_s
    if mine is None:
        return f"{name} never came within 1 % of the final loss of {reference}"
    return f"{name} {figures.seconds(mine)} to within 1 %, {reference} {figures.seconds(other)}"


def _over_time(result: RunResult) -> str:
    charts = {
        "Training loss": lines.loss_chart(result) or "No finite loss was recorded.",
        "Validation accuracy": lines.accuracy_chart(result) or "No epoch was evaluated.",
    }
    drawn = "".join(
        f'<figure><figcaption>{title}</figcaption><div class="none">{chart}</div></figure>'
        for title, chart in charts.items()
    )
    lead = (
        "Each mode has its own clock: its training and evaluation seconds, added up. Losses are averages of "
        f"up to {SMOOTHING} epochs. Rings mark when a mode came within 1 % of the dashed line."
    )
    body = f'{lines.legend(result)}<div class="pair">{drawn}</div>'
    return shell.section("Loss and accuracy over time", lead, body)


def _phases(result: RunResult) -> str:
    chart = shell.figure(mode_bars.phases_chart(result))
    lead = "Mean rank, mean epoch, the first two epochs left out; the table of modes has medians of the slowest rank."
    return shell.section("Where an epoch goes", lead, chart and chart + mode_bars.phase_table(result))


def _bytes(result: RunResult) -> str:
    counted = any(mode.kernel_bytes_sent is not None for mode in result.modes.values())
    lead = f"All ranks, all epochs; weight gradients travel as {result.gradients} in all modes. "
    lead += "Payload is what halo messages hold" + (
        "; the kernel counter saw whole packets on the hosts' interfaces, of gradients and evaluation too."
        if counted
        else ". There was no lab, so no kernel counter to compare it with."
    )
    return shell.section("Bytes sent", lead, shell.figure(mode_bars.bytes_chart(result)))


def _bits(result: RunResult) -> str:
    charts = mode_bars.bits_charts(result)
    lead = (
        "Share of the messages in each bit width. forward1 carries activations into layer 1, backward1 the "
        "gradients that come back for them."
    )
    return shell.section(
        "Bits by layer and direction", lead, charts and mode_bars.bit_legend(result) + charts
    )


def _network_method(result: RunResult) -> str:
    if result.network == "lab":
        rate = result.link_bytes_per_s
        shaped = "" if rate is None else f" whose rate is held at {units.format_rate(rate)}"
        return (
            "The network is emulated: each host of the lab is a network namespace of one machine with a link "
            f"of its own{shaped}. Bytes really cross these links; the hosts share the machine's processors."
        )
    if result.network == "slurm":
        hosts = figures.count(result.hosts, "host")
        return f"Workers ran on {hosts} of Slurm and talked over their network, as fast as it is."
    return (
        "Workers talked over the loopback interface of one machine. No link was limited, so times and "
        "speed-ups say little about a real network; bytes, bits, losses and accuracies hold for any network."
    )


def _fact(value: float) -> str:
    whole = figures.finite(value) is not None and value == int(value)
    return f"{value:,.0f}" if whole else figures.plain(value)


def _definitions(result: RunResult) -> str:
    told = {name: meaning for name, (_, meaning) in measures(result).items()} | mode_bars.phase_meanings(
        result
    )
    # Tables say what their figures mean where they have room; else it is said here.
    hidden = "" if len(result.modes) > shell.ROOMY else " small-screen"
    body = shell.terms(_TERMS, "definitions") + shell.terms(told, f"definitions{hidden}")
    return shell.section("Definitions", "", body)


def measures(result: RunResult) -> dict[str, tuple[dict[str, str], str]]:
    """Text per mode, and meaning, of each measure; measures without values are omitted."""
    reference = reference_name(result)
    pairs = {name: ModePair.of(result, name) for name in result.modes}
    rows = {}
    for label, (cell, meaning) in _MEASURES.items():
        cells = {
            name: "reference" if label in _RELATIVE and name == reference else cell(pair)
            for name, pair in pairs.items()
        }
        if set(cells.values()) - {figures.MISSING, "reference"}:
            rows[label] = cells, meaning.format(reference=reference)
    return rows


def _quartiles(pair: ModePair) -> str:
    low, high = (figures.seconds(value) for value in pair.mode.epoch_s_quartiles)
    if low == high == figures.MISSING:
        return low
    value, unit = low.rpartition(" ")[::2]
    return f"{value if high.endswith(' ' + unit) else low} to {high}"


def _reached(pair: ModePair) -> str:
    time_s = pair.mode.time_to_reference_loss_s
    if time_s is None and figures.finite(pair.reference.final_loss) is not None:
        return "never"
    return figures.seconds(time_s)


def _largest(sizes: Callable[[ModeResult], list[int]]) -> Callable[[ModePair], str]:
    return lambda pair: figures.size(max(sizes(pair.mode), default=None))


_RELATIVE = ("speed-up", "speed-up per epoch", "speed-up to loss", "difference in points")
_MEASURES: dict[str, tuple[Callable[[ModePair], str], str]] = {
    "time of the run": (
        lambda pair: figures.seconds(pair.mode.run_s),
        "Wall-clock time of all epochs on the slowest rank: warm-up, probes of links and choosing bits included, "
        "evaluation not.",
    ),
    "speed-up": (
        lambda pair: figures.factor(pair.speedup_run),
        "Time of the run of {reference} divided by that of the mode.",
    ),
    "time per epoch": (
        lambda pair: figures.seconds(pair.mode.epoch_s),
        "Median wall-clock time of an epoch on the slowest rank; choosing bits is included, evaluation and the first "
        "two epochs are not.",
    ),
    "quartiles": (_quartiles, "Lower and upper quartile of the time per epoch."),
    "speed-up per epoch": (
        lambda pair: figures.factor(pair.speedup_epoch),
        "Time per epoch of {reference} divided by that of the mode.",
    ),
    "time to loss": (
        _reached,
        "Wall-clock time, evaluations included, until the training loss was within 1 % of the final loss of "
        "{reference}.",
    ),
    "speed-up to loss": (
        lambda pair: figures.factor(pair.speedup_time_to_loss),
        "Time to loss of {reference} divided by that of the mode.",
    ),
    "final loss": (
        lambda pair: figures.plain(pair.mode.final_loss),
        "Training loss over the last epochs (moving average, as dropout makes single epochs noisy).",
    ),
    "test accuracy": (
        lambda pair: figures.percent(accuracy_of(pair.mode)),
        "Accuracy or micro-F1 on the test nodes at the epoch with the best validation accuracy.",
    ),
    "difference in points": (
        lambda pair: figures.points(pair.accuracy_delta_points),
        "Test accuracy minus that of {reference}, in percentage points.",
    ),
    "bytes sent, payload": (
        lambda pair: figures.size(pair.mode.bytes_sent),
        "Bytes of halo messages that all ranks sent over all epochs, counted where they are packed.",
    ),
    "bytes sent, kernel": (
        lambda pair: figures.size(pair.mode.kernel_bytes_sent),
        "Bytes that the kernel counted on the hosts' interfaces meanwhile: payload, headers, gradient all-reduce, "
        "evaluation and control.",
    ),
    "mean bits a value": (
        lambda pair: figures.bits(pair.mode.mean_bits),
        "Mean over all halo messages of the bits that one value travels in; 32 is full precision.",
    ),
    "peak memory": (
        _largest(lambda mode: mode.peak_memory_bytes),
        "Growth of resident memory during training on the rank that grew most.",
    ),
    "memory by formula": (
        _largest(lambda mode: mode.memory_model_bytes),
        "Part, halo and activations of the largest rank, as the documentation counts them.",
    ),
}
"""Text of a mode next to the reference, and meaning, of each measure."""
