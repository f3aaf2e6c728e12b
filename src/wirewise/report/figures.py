"""Derived figures of a result, and number formatting."""

from __future__ import annotations

import math

__all__ = [
    "MINUS",
    "MISSING",
    "TIMES",
    "bits",
    "count",
    "factor",
    "finite",
    "percent",
    "plain",
    "points",
    "ratio",
    "seconds",
    "signed",
    "significant",
    "size",
]

TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"
MISSING = "\N{EN DASH}"
"""Placeholder for missing measurements."""

_SIZES = (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is missing, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return the quotient, or None if it is undefined."""
    top, bottom = finite(numerator), finite(denominator)
    return top / bottom if top is not None and bottom and top > 0 and bottom > 0 else None


def seconds(value: float | None) -> str:
    """Format a duration with three significant digits: "40.4 ms", "0.404 s", "1.18 s", "27.2 s", "95.0 min"."""
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
    """Format bytes in decimal units with three significant digits: "45.7 MB"."""
    value = finite(value)
    if value is None:
        return MISSING
    if abs(value) < 1000:
        return f"{value:.0f} B"
    unit, scale = next((u for u in _SIZES if abs(value) < 999.5 * u[1]), _SIZES[-1])
    return f"{significant(value / scale)} {unit}".replace("-", MINUS)


def factor(value: float | None) -> str:
    """Format a ratio: "2.93x" with a multiplication sign."""
    return MISSING if value is None else f"{significant(value)}{TIMES}"


def percent(value: float | None) -> str:
    """Format a fraction as a percentage with two decimals."""
    value = finite(value)
    return MISSING if value is None else f"{100 * value:.2f} %"


def points(value: float | None) -> str:
    """Format a difference in percentage points with its sign."""
    value = finite(value)
    if value is None:
        return MISSING
    text = f"{abs(value):.2f}"
    sign = "" if text == "0.00" else "+" if value > 0 else MINUS
    return sign + text


def signed(share: float) -> str:
    """Format a fraction as a signed percentage with one decimal."""
    text = f"{abs(100 * share):.1f}"
    return f"{'' if text == '0.0' else '+' if share > 0 else MINUS}{text} %"


def count(number: int, noun: str) -> str:
    """Format a count with its noun: "1 host", "2 hosts"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def significant(value: float) -> str:
    """Format with three significant digits, without an exponent below a million."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    if digits > 6:
        return f"{value:.2e}"
    # Rounding may add a digit: 9.996 is 10.0, not 10.00.
    digits = 2 - math.floor(math.log10(abs(round(value, digits)) or abs(value)))
    return f"{value:.{max(digits, 0)}f}"


def bits(value: float | None) -> str:
    """Format mean bits per value with three significant digits."""
    value = finite(value)
    return MISSING if value is None else significant(value)


def plain(value: float | None) -> str:
    """Format with four significant digits; "NaN" if training diverged."""
    return MISSING if value is None else "NaN" if math.isnan(value) else f"{value:#.4g}".rstrip(".")
