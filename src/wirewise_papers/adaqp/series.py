"""Series of a result for charts: losses and accuracies over time, mean phases, fractions of bits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from wirewise.results import EpochRecord
from wirewise_papers.adaqp.records import ModeResult
from wirewise_papers.losses import smooth

__all__ = [
    "PHASES",
    "WARM_UP",
    "EpochPoint",
    "accuracies",
    "bit_exchanges",
    "bits_change",
    "losses",
    "mean_bits",
    "mean_phases",
    "shares",
    "smoothed_losses",
]

WARM_UP = 2
"""Number of first epochs excluded from times per epoch."""

PHASES = {
    "wire": "waiting for halo messages with nothing left to compute",
    "reduce": "waiting for the all-reduce of the weight gradients",
    "pack": "encoding rows into message buffers",
    "unpack": "decoding message buffers into rows",
    "central": "computing while halo messages are on the wire",
    "marginal": "all other computing of the model",
    "dense": "dense layers, where they are timed on their own",
    "plan": "choosing bits",
    "other": "everything else",
}
"""Phases of an epoch in drawing order, with their meaning."""


@dataclass(frozen=True)
class EpochPoint:
    """A value of one epoch at its wall-clock time."""

    epoch: int
    elapsed_s: float
    value: float


def losses(mode: ModeResult) -> list[EpochPoint]:
    """Training loss of each epoch, averaged with the few before it, at the time of the epoch's end.

    A loss that is not finite is kept, so that lines break there.
    """
    return _dots(mode.epochs, smoothed_losses(mode.epochs))


def smoothed_losses(records: list[EpochRecord]) -> list[float]:
    """Mean training loss of each epoch and the few before it; NaN where one of them is not finite."""
    return smooth([record.loss for record in records])


def accuracies(mode: ModeResult) -> list[EpochPoint]:
    """Validation accuracy in percent of the epochs that were evaluated."""
    values = [record.accuracy.get("validation") for record in mode.epochs]
    return [
        dot
        for dot in _dots(mode.epochs, [math.nan if v is None else 100 * v for v in values])
        if math.isfinite(dot.value)
    ]


def mean_phases(mode: ModeResult) -> dict[str, float]:
    """Mean seconds in each phase over the epochs after the warm-up, drawn order first, zeros left out."""
    records = mode.epochs[WARM_UP:] or mode.epochs
    names = {name for record in records for name in record.phases}
    order = [name for name in PHASES if name in names] + sorted(names - set(PHASES))
    means = {name: _mean([record.phases.get(name, 0.0) for record in records]) for name in order}
    return {name: value for name, value in means.items() if math.isfinite(value) and value > 0}


def bits_change(mode: ModeResult) -> bool:
    """Whether messages of one exchange have several bit widths."""
    exchanges = bit_exchanges(mode)
    return any(len({b for r in mode.epochs for b in r.bits.get(name, {})}) > 1 for name in exchanges)


def bit_exchanges(mode: ModeResult) -> list[str]:
    """Exchanges with counted messages: forward layers, then backward layers."""
    names = {name for record in mode.epochs for name in record.bits}
    return sorted(names, key=lambda name: (not name.startswith("forward"), name))


def mean_bits(records: list[EpochRecord], exchange: str = "") -> float | None:
    """Mean bit width of messages in one exchange, or of all, over some epochs; None without messages."""
    counts = [
        item
        for record in records
        for name, by_bits in record.bits.items()
        if not exchange or name == exchange
        for item in by_bits.items()
    ]
    total = sum(count for _, count in counts)
    return sum(bits * count for bits, count in counts) / total if total else None


def shares(counts: dict[int, int]) -> dict[int, float]:
    """Fraction of messages at each bit width, ascending."""
    total = sum(counts.values())
    return {bits: counts[bits] / total for bits in sorted(counts) if counts[bits]} if total else {}


def _dots(records: list[EpochRecord], values: list[float]) -> list[EpochPoint]:
    ends = accumulate(record.train_s + record.eval_s for record in records)
    return [EpochPoint(r.epoch, t, v) for r, t, v in zip(records, ends, values, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if all(map(math.isfinite, values)) else math.nan
