"""Piecewise linear functions of a size, interpolated from measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wirewise.errors import InputError

__all__ = ["ZERO", "Curve"]

Vector = NDArray[np.float64]

_FAR = 2.0**30
"""Second knot of a straight line: so far out that its slope loses no digits."""


@dataclass(frozen=True)
class Curve:
    """Piecewise linear curve: constant below the first knot, extrapolated with the last slope beyond the last knot.

    Raises:
        InputError: There are no knots, sizes do not ascend, or a number is negative or not finite.
    """

    knots: tuple[tuple[float, float], ...]
    """Size and value."""

    def __post_init__(self) -> None:
        x, y = self._arrays
        good = np.isfinite(self._arrays).all() and (self._arrays >= 0).all()
        if not len(x) or not good or (np.diff(x) <= 0).any():
            raise InputError(
                f"knots are {list(self.knots)[:6]}; expected one or more (size, value) with finite numbers of at "
                "least 0 and sizes that rise"
            )
        if len(x) > 1 and y[-1] < y[-2]:
            raise InputError(f"the value falls to {y[-1]} at the largest size {x[-1]}; measure it again")

    @classmethod
    def line(cls, base: float, slope: float) -> Curve:
        """The line base + slope * size."""
        return cls(((0.0, base), (_FAR, base + slope * _FAR)))

    @cached_property
    def _arrays(self) -> Vector:
        return np.array(self.knots, dtype=np.float64).reshape(-1, 2).T

    @cached_property
    def _last_slope(self) -> float:
        x, y = self._arrays
        return float((y[-1] - y[-2]) / (x[-1] - x[-2])) if len(x) > 1 else 0.0

    def __call__(self, sizes: ArrayLike) -> Vector:
        """Values at the sizes, same shape."""
        x, y = self._arrays
        at = np.asarray(sizes, dtype=np.float64)
        return np.interp(at, x, y) + self._last_slope * np.maximum(at - x[-1], 0.0)

    def __add__(self, other: Curve) -> Curve:
        """The sum at each size."""
        return _through([x for x, _ in (*self.knots, *other.knots)], lambda at: self(at) + other(at))

    def times(self, factor: float) -> Curve:
        """Curve with each value times a factor."""
        return Curve(tuple((x, factor * y) for x, y in self.knots))

    def of_share(self, share: float) -> Curve:
        """Curve of the value at a fraction `share` of a size."""
        return Curve(tuple((x / share, y) for x, y in self.knots))

    def after(self, inner: Curve) -> Curve:
        """Composition self(inner(size)); `inner` must not decrease."""
        sizes = [x for x, _ in inner.knots]
        for value, _ in self.knots:
            sizes += inner.sizes_of(value)
        return _through(sizes, lambda at: self(inner(at)))

    def sizes_of(self, value: float) -> list[float]:
        """Sizes at which an increasing part of the curve has the value."""
        x, y = self._arrays
        slopes = [*(np.diff(y) / np.diff(x)), self._last_slope]
        ends = [*x[1:], np.inf]
        found = [a + (value - b) / s for a, b, s in zip(x, y, slopes, strict=True) if s > 0]
        keep = [(a, e) for a, e, s in zip(x, ends, slopes, strict=True) if s > 0]
        return [float(at) for at, (a, e) in zip(found, keep, strict=True) if a <= at <= e]

    def vertices(self, largest: float) -> list[tuple[float, float]]:
        """Knots from 0 to `largest`, as sizes and values, between which the curve is linear."""
        sizes = sorted({0.0, largest, *(x for x, _ in self.knots if x < largest)})
        return list(zip(sizes, self(sizes).tolist(), strict=True))

    def linear_coefficients(self, largest: float) -> tuple[float, float] | None:
        """Base and slope if the curve is linear from 0 to `largest`, else None."""
        points = self.vertices(largest)
        base, slope = points[0][1], (points[-1][1] - points[0][1]) / largest
        far = max(abs(base + slope * x - y) for x, y in points)
        return (base, slope) if far <= 1e-12 * max(points[-1][1], base) else None

    def nearest_line(self, largest: float) -> tuple[float, float]:
        """Base and slope, neither negative, of the least-squares line up to the largest size."""
        sizes, values = np.array(self.vertices(largest)).T
        slope, base = np.polyfit(sizes, values, 1)
        return max(float(base), 0.0), max(float(slope), 0.0)


def _through(sizes: Sequence[float], value: Callable[[list[float]], Vector]) -> Curve:
    at = sorted(set(sizes))
    # One size beyond all knots, which carries the last slope.
    at.append(2.0 * at[-1] + 1.0)
    return Curve(tuple(zip(at, value(at).tolist(), strict=True)))


ZERO = Curve(((0.0, 0.0),))
"""Curve that is zero at all sizes."""
