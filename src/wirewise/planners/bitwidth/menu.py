"""A channel's choices, condensed to some sixty points that ranks can share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.bitwidth.frontier import hull
from wirewise.planners.bitwidth.problem import BFLOAT16_NOISE, ChannelProblem, noise_factor

__all__ = ["Menu", "menu_points"]

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]

_QUANTILES = np.array([0.004, 0.016, 0.05, 0.12, 0.25, 0.4, 0.55, 0.7, 0.82, 0.92, 0.98])
"""Shares of a channel's messages that have made an upgrade; close together at the heavy end."""


def menu_points(size: Ints, bits: Sequence[int]) -> int:
    """Points of every menu for rows of these sizes."""
    return len(bits) + (len(_hull_of(size, bits)) - 1) * len(_QUANTILES)


def _hull_of(size: Ints, bits: Sequence[int]) -> Ints:
    return hull(size, np.array([noise_factor(b) for b in bits]))


@dataclass(frozen=True)
class Menu:
    """Points: first all messages at each of `bits`, then mixtures by thresholds on the weight.

    A mixture is optimal for its number of bytes: a message gets more bits than another only if its weight is
    larger, and the thresholds of all widths follow from one price of a byte.
    """

    bits: tuple[int, ...]
    counts: Ints
    """Messages at each width, [points, widths]."""
    noise: Vector
    """[points]."""
    _order: Ints
    _levels: Ints
    _passed: Ints

    @classmethod
    def of(cls, channel: ChannelProblem, size: Ints, bits: Sequence[int]) -> Menu:
        """The menu of one channel.

        Args:
            channel: Messages and weights.
            size: Bytes of a row at each width.
            bits: Allowed widths, ascending.
        """
        count, widths = len(channel.weights), len(bits)
        order = np.argsort(-channel.weights, kind="stable")
        levels = _hull_of(size, bits)
        passed = _thresholds(channel.weights[order], size[levels], np.array(bits)[levels])
        bounds = np.concatenate(
            [np.full((len(passed), 1), count), passed, np.zeros((len(passed), 1), np.int64)], 1
        )
        counts = np.zeros((widths + len(passed), widths), dtype=np.int64)
        counts[:widths][np.diag_indices(widths)] = count
        counts[widths:, levels] = bounds[:, :-1] - bounds[:, 1:]
        noise = np.empty(len(counts))
        prefix = [_noise_prefix(channel, order, b) for b in bits]
        noise[:widths] = [p[-1] for p in prefix]
        noise[widths:] = sum(
            prefix[level][bounds[:, i]] - prefix[level][bounds[:, i + 1]]
            for i, level in enumerate(levels.tolist())
        )
        return cls(tuple(bits), counts, np.maximum(noise, 0.0), order, levels, passed)

    def message_bits(self, point: int) -> NDArray[np.uint8]:
        """Bits of every message in send order at a point, uint8 [n]."""
        if point < len(self.bits):
            return np.full(len(self._order), self.bits[point], dtype=np.uint8)
        rank = np.arange(len(self._order))
        level = (rank[:, None] < self._passed[point - len(self.bits)][None, :]).sum(axis=1)
        out = np.empty(len(self._order), dtype=np.uint8)
        out[self._order] = np.array(self.bits, dtype=np.uint8)[self._levels[level]]
        return out


def _noise_prefix(channel: ChannelProblem, order: Ints, bits: int) -> Vector:
    """Variance of the k heaviest messages at `bits`, [n + 1]."""
    if bits == 16 and channel.energies is not None:
        each = BFLOAT16_NOISE * channel.energies[order]
    else:
        each = noise_factor(bits) * channel.weights[order]
    return np.concatenate([[0.0], np.cumsum(each)])


def _thresholds(weights: Vector, size: Ints, bits: Ints) -> Ints:
    """Messages, heaviest first, that pass each upgrade at each point, [points, upgrades], falling in rows."""
    factor = np.array([noise_factor(int(b)) for b in bits])
    gain = -np.diff(factor) / np.diff(size)
    count, upgrades = len(weights), len(gain)
    passed = np.zeros((upgrades * len(_QUANTILES), upgrades), dtype=np.int64)
    if not count:
        return passed
    place = np.ceil(_QUANTILES * count).astype(np.int64)
    rising = weights[::-1]
    for k in range(upgrades):
        # The price at which exactly `place` messages find upgrade k worth its bytes.
        price = weights[place - 1] * gain[k]
        block = passed[k * len(place) : (k + 1) * len(place)]
        for j in range(upgrades):
            block[:, j] = count - np.searchsorted(rising, price / gain[j], side="left")
        # Equal weights pass together by price; by place the quantile itself stays exact.
        block[:, k] = place
        block[:, :k] = np.maximum(block[:, :k], place[:, None])
        block[:, k + 1 :] = np.minimum(block[:, k + 1 :], place[:, None])
    return passed
