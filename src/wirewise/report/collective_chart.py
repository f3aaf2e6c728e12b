"""Fastest algorithm by size: simulated times over message sizes, on logarithmic scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from wirewise.collective.bounds import bound
from wirewise.report import svg
from wirewise.report.collective_analysis import Analysis
from wirewise.report.figures import seconds, size
from wirewise.report.svg import Frame, Scale
from wirewise.sim.programs import simulate

__all__ = ["SIZES", "Range", "SizeTimes", "crossover_chart", "curves", "fastest"]

SIZES = tuple(4.0**power * 1e3 for power in range(11))
"""Sizes of buffers, from 1 kB to 1 GB."""
_ALIKE = 1e-3
"""Times that differ by less are called alike."""
_MOST_EVENTS = 400_000
"""Most messages times sizes that are simulated; larger programs get fewer sizes."""


class SizeTimes(NamedTuple):
    """Time of a program for each size, in seconds."""

    title: str
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]


class Range(NamedTuple):
    """Range of sizes, and the programs that are fastest in it."""

    titles: tuple[str, ...]
    from_bytes: float
    to_bytes: float


def curves(analyses: Sequence[Analysis], titles: Sequence[str]) -> list[SizeTimes]:
    """Simulated times of all programs, followed by the lower bound."""
    events = max(one.messages for one in analyses) or 1
    sizes = tuple(SIZES[i] for i in svg.thin(len(SIZES), max(_MOST_EVENTS // events, 3)))
    drawn = [
        SizeTimes(title, sizes, tuple(_finish_s(one, size_bytes) for size_bytes in sizes))
        for one, title in zip(analyses, titles, strict=True)
    ]
    return [
        *drawn,
        SizeTimes("lower bound", sizes, tuple(_bound_s(analyses, size_bytes) for size_bytes in sizes)),
    ]


def _finish_s(one: Analysis, size_bytes: float) -> float:
    found = simulate(one.program, one.network, size_bytes, reduce_s_per_byte=one.reduce_s_per_byte)
    return float(found.finish_s)


def _bound_s(analyses: Sequence[Analysis], size_bytes: float) -> float:
    """Smallest bound of the programs, which may be for different collectives."""
    programs = [(one.network, one.program) for one in analyses]
    return min(
        bound(network, own.collective, size_bytes, root=own.root, members=own.members).seconds
        for network, own in programs
    )


def fastest(series: Sequence[SizeTimes]) -> list[Range]:
    """Ranges of sizes with the fastest programs; equal neighbours are merged.

    Crossovers are interpolated on logarithmic scales.
    """
    *programs, _ = series
    sizes = programs[0].sizes
    best = [_fastest_at(programs, place) for place in range(len(sizes))]
    titles = [tuple(curve.title for curve in some) for some in best]
    ranges = [Range(titles[0], sizes[0], sizes[0])]
    for place in range(1, len(sizes)):
        now, names = ranges[-1], titles[place]
        at = _boundary(best[place - 1], best[place], place)
        ranges[-1] = now._replace(to_bytes=at)
        if now.titles != names:
            ranges.append(Range(names, at, sizes[place]))
    return [one for one in ranges if one.from_bytes < one.to_bytes] or ranges


def _fastest_at(programs: Sequence[SizeTimes], place: int) -> list[SizeTimes]:
    least = min(curve.seconds[place] for curve in programs)
    return [curve for curve in programs if curve.seconds[place] <= least * (1 + _ALIKE)]


def _boundary(before: Sequence[SizeTimes], after: Sequence[SizeTimes], place: int) -> float:
    """Where others get fastest: at the crossing, or at the size itself where one stays among the fastest."""
    one, other = before[0], after[0]
    if set(before) & set(after):
        return one.sizes[place]
    ahead = math.log(other.seconds[place - 1] / one.seconds[place - 1])
    behind = math.log(one.seconds[place] / other.seconds[place])
    low, high = math.log(one.sizes[place - 1]), math.log(one.sizes[place])
    share = ahead / (ahead + behind) if ahead + behind > 0 else 0.0
    return math.exp(low + share * (high - low))


def crossover_chart(series: Sequence[SizeTimes], width: float = 900, height: float = 400) -> str:
    """Plot time over size, both logarithmic, with a dashed bound; empty if a program sends nothing."""
    values = [s for curve in series for s in curve.seconds if s > 0]
    if not values or min(min(curve.seconds) for curve in series[:-1]) <= 0:
        return ""
    frame = Frame(70, 14, width - 190, height - 46)
    sizes = series[0].sizes
    x = Scale(math.log10(sizes[0]), math.log10(sizes[-1]), frame.left, frame.right)
    y = Scale(math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1, frame.bottom, frame.top)
    parts = [_axes(frame, x, y)]
    labels = svg.spread_labels(
        [y(math.log10(max(curve.seconds[-1], 1e-12))) for curve in series], frame.bottom, 15.0
    )
    for number, (curve, at) in enumerate(zip(series, labels, strict=True)):
        last = number == len(series) - 1
        dots = [
            (x(math.log10(size_bytes)), y(math.log10(value)) if value > 0 else math.nan)
            for size_bytes, value in zip(curve.sizes, curve.seconds, strict=True)
        ]
        kind = "goal" if last else f"line c{number % 7 + 1}"
        parts.append(svg.polyline(dots, kind))
        parts.append(
            svg.text(frame.right + 10, at + 4, curve.title, "tick" if last else f"label c{number % 7 + 1}")
        )
        parts += [] if last else _marks(curve, dots, f"dot c{number % 7 + 1}")
    return svg.document(width, height, "Time of each algorithm over the size of the buffer", "".join(parts))


def _marks(curve: SizeTimes, dots: Sequence[tuple[float, float]], kind: str) -> list[str]:
    return [
        svg.circle(at, up, 3, kind, f"{curve.title}, {size(size_bytes)}: {seconds(value)}")
        for (at, up), size_bytes, value in zip(dots, curve.sizes, curve.seconds, strict=True)
    ]


def _axes(frame: Frame, x: Scale, y: Scale) -> str:
    up = {y(power): _decade_s(power) for power in range(math.ceil(y.low), math.floor(y.high) + 1)}
    along = {x(power): _round_size(10.0**power) for power in range(math.ceil(x.low), math.floor(x.high) + 1)}
    return svg.grid(frame, along, up, "larger buffer of a rank, in or out")


def _round_size(size_bytes: float) -> str:
    value, unit = size(size_bytes).split(" ")
    return f"{float(value):g} {unit}"


def _decade_s(power: int) -> str:
    unit, scale = ("us", 6) if power < -3 else ("ms", 3) if power < 0 else ("s", 0)
    return f"{10.0 ** (power + scale):g} {unit}"
