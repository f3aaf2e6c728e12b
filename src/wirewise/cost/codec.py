"""Encode and decode times of messages, in seconds, by bit width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from wirewise.errors import InputError

__all__ = ["CodecCost", "fit_codec"]


class CodecCost(msgspec.Struct, frozen=True, kw_only=True):
    """Measured seconds per value and per row on one core, by bit width; a missing width costs nothing."""

    pack_s_per_value: dict[int, float] = msgspec.field(default_factory=dict)
    unpack_s_per_value: dict[int, float] = msgspec.field(default_factory=dict)
    pack_s_per_row: dict[int, float] = msgspec.field(default_factory=dict)
    unpack_s_per_row: dict[int, float] = msgspec.field(default_factory=dict)

    def pack_s(self, counts: Mapping[int, int], width: int) -> float:
        """Seconds to gather and encode `counts[b]` rows of `width` values for each bit width b."""
        return _seconds(self.pack_s_per_value, self.pack_s_per_row, counts, width)

    def unpack_s(self, counts: Mapping[int, int], width: int) -> float:
        """Seconds to decode `counts[b]` rows of `width` values for each bit width b."""
        return _seconds(self.unpack_s_per_value, self.unpack_s_per_row, counts, width)

    @classmethod
    def of_rates(cls, pack: Mapping[int, float], unpack: Mapping[int, float]) -> CodecCost:
        """Costs from throughputs in float32 bytes per second, by bit width."""
        return cls(
            pack_s_per_value={b: 4.0 / rate for b, rate in pack.items()},
            unpack_s_per_value={b: 4.0 / rate for b, rate in unpack.items()},
        )


def _seconds(
    per_value: Mapping[int, float], per_row: Mapping[int, float], counts: Mapping[int, int], width: int
) -> float:
    return sum(n * (width * per_value.get(b, 0.0) + per_row.get(b, 0.0)) for b, n in counts.items())


def fit_codec(
    pack: Sequence[tuple[int, int, int, float]], unpack: Sequence[tuple[int, int, int, float]]
) -> CodecCost:
    """Fit codec costs to measured (bits, rows, width, seconds).

    With rows of several widths, the cost per row is separated from the cost per value; otherwise all is charged to
    values.

    Raises:
        InputError: A sample has no rows, or its time is negative or not finite.
    """
    pack_value, pack_row = _fit_direction(pack, "pack")
    unpack_value, unpack_row = _fit_direction(unpack, "unpack")
    return CodecCost(
        pack_s_per_value=pack_value,
        unpack_s_per_value=unpack_value,
        pack_s_per_row=pack_row,
        unpack_s_per_row=unpack_row,
    )


def _fit_direction(
    samples: Sequence[tuple[int, int, int, float]], name: str
) -> tuple[dict[int, float], dict[int, float]]:
    value: dict[int, float] = {}
    row: dict[int, float] = {}
    for bits, rows, width, seconds in samples:
        if rows < 1 or width < 1 or not np.isfinite(seconds) or seconds < 0:
            raise InputError(
                f"{name} sample of {bits} bits has {rows} rows of width {width} in {seconds} s; expected "
                "at least one row and a finite time, measure it again"
            )
    for bits in sorted({s[0] for s in samples}):
        data = np.array([s[1:] for s in samples if s[0] == bits], dtype=np.float64)
        # One row as the unit: seconds a row = a row's own cost + width * cost of a value.
        widths, per_row = data[:, 1], data[:, 2] / data[:, 0]
        value[bits], row[bits] = float(np.median(per_row / widths)), 0.0
        if len(np.unique(widths)) > 1:
            slope, base = np.polyfit(widths, per_row, 1).tolist()
            if slope > 0 and base > 0:
                value[bits], row[bits] = slope, base
    return value, row
