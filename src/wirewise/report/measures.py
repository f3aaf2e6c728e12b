"""Figures of each mode of full-graph training, the same in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable

from wirewise.report import figures
from wirewise.report.figures import ModePair
from wirewise.results import ModeResult, RunResult

__all__ = ["measures"]


def measures(result: RunResult) -> dict[str, tuple[dict[str, str], str]]:
    """Text for each mode, and meaning, of each measure; those that no mode has a figure for are left out."""
    reference = figures.reference_name(result)
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


_RELATIVE = ("speed-up per epoch", "speed-up to loss", "difference in points")
_MEASURES: dict[str, tuple[Callable[[ModePair], str], str]] = {
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
        lambda pair: figures.percent(figures.accuracy_of(pair.mode)),
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
