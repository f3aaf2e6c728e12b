"""The table of modes, the same in the terminal and on the page: one row a measure, one column a mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wirewise.report import figures
from wirewise.report.figures import Comparison
from wirewise.results import ModeResult, RunResult

__all__ = ["Measure", "measures"]


@dataclass(frozen=True)
class Measure:
    """One row of the table of modes."""

    label: str
    cells: list[str]
    """One cell a mode, in the order of the modes."""
    meaning: str


def measures(result: RunResult) -> list[Measure]:
    """The rows; those that no mode has a figure for are left out."""
    reference = figures.reference_name(result)
    pairs = [(name, Comparison.of(result, name)) for name in result.modes]

    def row(label: str, meaning: str, cell: Callable[[str, Comparison], str]) -> Measure:
        return Measure(label=label, cells=[cell(name, both) for name, both in pairs], meaning=meaning)

    def against(name: str, text: str) -> str:
        return "reference" if name == reference else text

    rows = [
        row(
            "time per epoch",
            "Median wall-clock time of an epoch on the slowest rank; choosing bits is included, evaluation "
            "and the first two epochs are not.",
            lambda _, b: figures.seconds(b.mode.epoch_s),
        ),
        row("quartiles", "Lower and upper quartile of the time per epoch.", lambda _, b: _quartiles(b.mode)),
        row(
            "speed-up per epoch",
            f"Time per epoch of {reference} divided by that of the mode.",
            lambda n, b: against(n, figures.factor(b.speedup_epoch)),
        ),
        row(
            "time to loss",
            "Wall-clock time, evaluations included, until the training loss was within 1 % of the final loss "
            f"of {reference}.",
            lambda _, b: _reached(b.mode, b.reference),
        ),
        row(
            "speed-up to loss",
            f"Time to loss of {reference} divided by that of the mode.",
            lambda n, b: against(n, figures.factor(b.speedup_time_to_loss)),
        ),
        row(
            "final loss",
            "Training loss over the last epochs (moving average, as dropout makes single epochs noisy).",
            lambda _, b: figures.plain(b.mode.final_loss),
        ),
        row(
            "test accuracy",
            "Accuracy or micro-F1 on the test nodes at the epoch with the best validation accuracy.",
            lambda _, b: figures.percent(figures.accuracy_of(b.mode)),
        ),
        row(
            "difference in points",
            f"Test accuracy minus that of {reference}, in percentage points.",
            lambda n, b: against(n, figures.points(b.accuracy_delta_points)),
        ),
        row(
            "bytes sent, payload",
            "Bytes of halo messages that all ranks sent over all epochs, counted where they are packed.",
            lambda _, b: figures.size(b.mode.bytes_sent),
        ),
        row(
            "bytes sent, kernel",
            "Bytes that the kernel counted on the hosts' interfaces meanwhile: payload, headers, gradient "
            "all-reduce, evaluation and control.",
            lambda _, b: figures.size(b.mode.kernel_bytes_sent),
        ),
        row(
            "mean bits a value",
            "Mean over all halo messages of the bits that one value travels in; 32 is full precision.",
            lambda _, b: figures.bits(b.mode.mean_bits),
        ),
        row(
            "peak memory",
            "Growth of resident memory during training on the rank that grew most.",
            lambda _, b: figures.size(max(b.mode.peak_memory_bytes, default=None)),
        ),
        row(
            "memory by formula",
            "Part, halo and activations of the largest rank, as the documentation counts them.",
            lambda _, b: figures.size(max(b.mode.memory_model_bytes, default=None)),
        ),
    ]
    empty = {figures.MISSING, "reference"}
    return [r for r in rows if any(cell not in empty for cell in r.cells)]


def _quartiles(mode: ModeResult) -> str:
    low, high = (figures.seconds(value) for value in mode.epoch_s_quartiles)
    if low == high == figures.MISSING:
        return low
    value, unit = low.rpartition(" ")[::2]
    return f"{value if high.endswith(' ' + unit) else low} to {high}"


def _reached(mode: ModeResult, reference: ModeResult) -> str:
    if mode.time_to_reference_loss_s is None and figures.finite(reference.final_loss) is not None:
        return "never"
    return figures.seconds(mode.time_to_reference_loss_s)
