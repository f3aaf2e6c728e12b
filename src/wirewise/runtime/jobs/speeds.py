"""Speeds of kinds of jobs by processors and accelerators: fitted to measured steps, corrected while jobs run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from wirewise.errors import InputError

__all__ = ["SpeedModel", "step_table"]


def step_table(measured: Mapping[tuple[int, int], float], cpus: int, gpus: int) -> NDArray[np.float64]:
    """Seconds of a step for all amounts, from some that were measured, [cpus + 1, gpus + 1].

    A step takes time for input and for what ranks do on the processors that they share, for what accelerators share
    and for what they tell each other: a + b / c + d / g + e g + f g / c with factors of at least 0, by least squares of
    relative errors. So more accelerators can hurt where processors are few. Measured amounts keep what was measured.

    Args:
        measured: Seconds by processors and accelerators.
        cpus: Most processors of a job.
        gpus: Most accelerators of a job.

    Raises:
        InputError: Nothing was measured, or a figure is not above 0.
    """
    if not measured or min(measured.values()) <= 0:
        raise InputError(f"got the measured seconds {dict(measured)}; expected at least one, all above 0")
    taken = np.array(list(measured.values()))
    factors, _ = nnls(_terms(np.array(list(measured))) / taken[:, None], np.ones(len(taken)))
    amounts = np.stack(np.meshgrid(np.arange(cpus + 1), np.arange(gpus + 1), indexing="ij"), -1)
    table = (_terms(amounts.reshape(-1, 2)) @ factors).reshape(cpus + 1, gpus + 1)
    for (c, g), seconds in measured.items():
        table[c, g] = seconds
    return table


def _terms(amounts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Terms of the seconds of a step, [n, 5]; nothing counts as one half of a unit."""
    c, g = np.maximum(amounts, 0.5).T
    return np.stack([np.ones_like(c), 1 / c, 1 / g, g, g / c], -1)


class SpeedModel:
    """What schedulers believe of the kinds' speeds, while jobs run.

    The logarithm of a measured step over the expected one is the sum of an effect of the kind, one of the amount, and
    noise, all normal about 0; beliefs are their means after what was measured so far.

    Args:
        kinds: Number of kinds.
        kind_spread: Standard deviation of a kind's effect.
        amount_spread: Standard deviation of an amount's effect.
        noise: Standard deviation of the noise of one measurement.
    """

    def __init__(
        self, kinds: int, *, kind_spread: float = 0.3, amount_spread: float = 0.15, noise: float = 0.1
    ) -> None:
        self._variances = kind_spread**2, amount_spread**2, noise**2
        self._sums: Sequence[dict[tuple[int, int], tuple[float, int]]] = [{} for _ in range(kinds)]

    def observe(self, kind: int, cpus: int, gpus: int, measured_s: float, expected_s: float) -> None:
        """Learn from a step.

        Args:
            kind: Number of the kind.
            cpus: Processors that the job had.
            gpus: Accelerators that it had.
            measured_s: Seconds that its steps took, the mean of some.
            expected_s: Seconds that were expected before anything ran.

        Raises:
            InputError: Seconds that are not above 0.
        """
        if not (0 < measured_s < float("inf") and 0 < expected_s < float("inf")):
            raise InputError(
                f"got {measured_s} s measured and {expected_s} s expected; expected seconds above 0"
            )
        total, count = self._sums[kind].get((cpus, gpus), (0.0, 0))
        self._sums[kind][cpus, gpus] = total + log(measured_s / expected_s), count + 1

    def factors(self, kind: int, cpus: int, gpus: int) -> NDArray[np.float64]:
        """Factors on the seconds of a kind's steps, [cpus + 1, gpus + 1]."""
        of_kind, of_amount, noise = self._variances
        sums = self._sums[kind]
        # The effect of the kind, seen through amounts that scatter about it.
        weights = {amount: 1 / (of_amount + noise / count) for amount, (_, count) in sums.items()}
        seen = sum(weights[amount] * total / count for amount, (total, count) in sums.items())
        common = seen / (1 / of_kind + sum(weights.values()))
        found = np.full((cpus + 1, gpus + 1), common)
        for (c, g), (total, count) in sums.items():
            found[c, g] += (total - count * common) / (count + noise / of_amount)
        return np.exp(found)

    def believed(self, progress: NDArray[np.float64]) -> NDArray[np.float64]:
        """Progress of a slot as it is believed now, from what was expected, [kinds, cpus + 1, gpus + 1]."""
        _, cpus, gpus = progress.shape
        factors = [self.factors(kind, cpus - 1, gpus - 1) for kind in range(len(self._sums))]
        return progress / np.stack(factors)
