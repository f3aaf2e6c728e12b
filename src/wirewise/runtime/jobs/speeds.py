"""Speed model of job kinds by CPUs and accelerators: fitted to measured steps, updated while jobs run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from wirewise.errors import InputError

__all__ = ["SpeedModel", "step_table"]


def step_table(measurements: Mapping[tuple[int, int], float], cpus: int, gpus: int) -> NDArray[np.float64]:
    """Fit the step time for all amounts to some measurements, [cpus + 1, gpus + 1], in seconds.

    A step takes time for input and for work on shared CPUs, for work divided over accelerators and for communication:
    a + b / c + d / g + e g + f g / c with factors of at least 0, by least squares of relative errors. More
    accelerators can therefore hurt if CPUs are few. Measured amounts keep their measured times.

    Args:
        measurements: Seconds by CPUs and accelerators.
        cpus: Maximum number of CPUs of a job.
        gpus: Maximum number of accelerators of a job.

    Raises:
        InputError: There are no measurements, or a value is not positive.
    """
    if not measurements or min(measurements.values()) <= 0:
        raise InputError(f"got the measured seconds {dict(measurements)}; expected at least one, all above 0")
    taken = np.array(list(measurements.values()))
    factors, _ = nnls(_terms(np.array(list(measurements))) / taken[:, None], np.ones(len(taken)))
    amounts = np.stack(np.meshgrid(np.arange(cpus + 1), np.arange(gpus + 1), indexing="ij"), -1)
    table = (_terms(amounts.reshape(-1, 2)) @ factors).reshape(cpus + 1, gpus + 1)
    for (c, g), seconds in measurements.items():
        table[c, g] = seconds
    return table


def _terms(amounts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Terms of the seconds of a step, [n, 5]; nothing counts as one half of a unit."""
    c, g = np.maximum(amounts, 0.5).T
    return np.stack([np.ones_like(c), 1 / c, 1 / g, g, g / c], -1)


class SpeedModel:
    """Scheduler's model of the kinds' speeds, updated while jobs run.

    The logarithm of a measured step over the expected one is the sum of an effect of the kind, one of the amount, and
    noise, all normal with mean 0; estimates are posterior means.

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
        """Update the model with a measured step time.

        Args:
            kind: Index of the kind.
            cpus: Number of CPUs of the job.
            gpus: Number of accelerators of the job.
            measured_s: Mean measured step time, in seconds.
            expected_s: Step time expected before any measurement, in seconds.

        Raises:
            InputError: A time is not positive.
        """
        if not (0 < measured_s < float("inf") and 0 < expected_s < float("inf")):
            raise InputError(
                f"got {measured_s} s measured and {expected_s} s expected; expected seconds above 0"
            )
        total, count = self._sums[kind].get((cpus, gpus), (0.0, 0))
        self._sums[kind][cpus, gpus] = total + log(measured_s / expected_s), count + 1

    def factors(self, kind: int, cpus: int, gpus: int) -> NDArray[np.float64]:
        """Estimated factors on the step times of a kind, [cpus + 1, gpus + 1]."""
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
        """Estimated progress per slot, from the expected progress, [kinds, cpus + 1, gpus + 1]."""
        _, cpus, gpus = progress.shape
        factors = [self.factors(kind, cpus - 1, gpus - 1) for kind in range(len(self._sums))]
        return progress / np.stack(factors)
