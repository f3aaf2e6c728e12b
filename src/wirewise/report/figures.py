"""Figures of a result: how they are derived and how they are written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wirewise.results import ModeResult, RunResult

__all__ = [
    "MINUS",
    "MISSING",
    "TIMES",
    "ModePair",
    "accuracy_of",
    "bits",
    "count",
    "factor",
    "finite",
    "focus_name",
    "percent",
    "plain",
    "points",
    "ratio",
    "reference_name",
    "seconds",
    "signed",
    "significant",
    "size",
]

TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"
MISSING = "\N{EN DASH}"
"""What is written where nothing was measured."""

_SIZES = (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))


def finite(value: float | None) -> float | None:
    """The value, or None where it is missing, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient, or None where it says nothing."""
    top, bottom = finite(numerator), finite(denominator)
    return top / bottom if top is not None and bottom and top > 0 and bottom > 0 else None


def accuracy_of(mode: ModeResult) -> float | None:
    """Test accuracy as a fraction, or None if no epoch was evaluated or the graph has no test nodes."""
    return finite(mode.accuracy) if any("test" in record.accuracy for record in mode.epochs) else None


@dataclass(frozen=True)
class ModePair:
    """One mode next to the reference mode; every figure is None where it is undefined."""

    reference: ModeResult
    mode: ModeResult

    @property
    def speedup_epoch(self) -> float | None:
        """Times as many epochs a second."""
        return ratio(self.reference.epoch_s, self.mode.epoch_s)

    @property
    def speedup_run(self) -> float | None:
        """Training seconds of the reference's whole run for each one of the mode's, which has as many epochs."""
        return ratio(self.reference.run_s, self.mode.run_s)

    @property
    def speedup_time_to_loss(self) -> float | None:
        """Times as soon at the reference's loss."""
        return ratio(self.reference.time_to_reference_loss_s, self.mode.time_to_reference_loss_s)

    @property
    def bytes_ratio(self) -> float | None:
        """Payload bytes of the reference for each one of the mode."""
        return ratio(self.reference.bytes_sent, self.mode.bytes_sent)

    @property
    def interface_bytes_ratio(self) -> float | None:
        """Bytes on the interfaces of the reference for each one of the mode; None where no kernel counted them."""
        return ratio(self.reference.kernel_bytes_sent, self.mode.kernel_bytes_sent)

    @property
    def accuracy_delta_points(self) -> float | None:
        """Test accuracy minus the reference's, in percentage points."""
        mine, other = accuracy_of(self.mode), accuracy_of(self.reference)
        return None if mine is None or other is None else 100 * (mine - other)

    @classmethod
    def of(cls, result: RunResult, name: str) -> ModePair:
        """The mode `name` next to the reference."""
        return cls(reference=result.modes[reference_name(result)], mode=result.modes[name])


def reference_name(result: RunResult) -> str:
    """The reference mode; the first one where the named one was not trained."""
    return result.reference if result.reference in result.modes else next(iter(result.modes), "")


def focus_name(result: RunResult) -> str | None:
    """The mode that headlines speak of: adaqp if trained, else the first that is not the reference."""
    others = [name for name in result.modes if name != reference_name(result)]
    return "adaqp" if "adaqp" in others else next(iter(others), None)


def seconds(value: float | None) -> str:
    """A duration with three significant digits: "40.4 ms", "0.404 s", "1.18 s", "27.2 s", "95.0 min"."""
    value = finite(value)
    if value is None:
        return MISSING
    for unit, scale, limit in (
        ("us", 1e6, 1e-3),
        ("ms", 1e3, 0.1),
        ("s", 1.0, 3600.0),
        ("min", 1 / 60, 36000.0),
    ):
        if abs(value) < limit and (value or unit == "s"):
            return f"{significant(value * scale)} {unit}"
    return f"{significant(value / 3600)} h"


def size(value: float | None) -> str:
    """Bytes in decimal units with three significant digits: "45.7 MB"."""
    value = finite(value)
    if value is None:
        return MISSING
    if abs(value) < 1000:
        return f"{value:.0f} B"
    unit, scale = next((u for u in _SIZES if abs(value) < 999.5 * u[1]), _SIZES[-1])
    return f"{significant(value / scale)} {unit}"


def factor(value: float | None) -> str:
    """A quotient: "2.93x" with a multiplication sign."""
    return MISSING if value is None else f"{significant(value)}{TIMES}"


def percent(value: float | None) -> str:
    """A fraction as a percentage with two decimals."""
    value = finite(value)
    return MISSING if value is None else f"{100 * value:.2f} %"


def points(value: float | None) -> str:
    """A difference in percentage points with its sign."""
    value = finite(value)
    if value is None:
        return MISSING
    text = f"{abs(value):.2f}"
    sign = "" if text == "0.00" else "+" if value > 0 else MINUS
    return sign + text


def signed(share: float) -> str:
    """A share as a percentage with its sign and one decimal."""
    text = f"{abs(100 * share):.1f}"
    return f"{'' if text == '0.0' else '+' if share > 0 else MINUS}{text} %"


def count(number: int, noun: str) -> str:
    """A number of things: "1 host", "2 hosts"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def significant(value: float) -> str:
    """Three significant digits, never with an exponent below a million."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    if digits > 6:
        return f"{value:.2e}"
    # Rounding may add a digit: 9.996 is 10.0, not 10.00.
    digits = 2 - math.floor(math.log10(abs(round(value, digits)) or abs(value)))
    return f"{value:.{max(digits, 0)}f}"


def bits(value: float | None) -> str:
    """Mean bits a value, with three significant digits."""
    value = finite(value)
    return MISSING if value is None else significant(value)


def plain(value: float | None) -> str:
    """A number with four significant digits, "NaN" where training diverged."""
    return MISSING if value is None else "NaN" if math.isnan(value) else f"{value:#.4g}".rstrip(".")
