"""What is judged: a plan that was predicted, and carried out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Setting(NamedTuple):
    """One plan of one job on one network."""

    family: str
    where: str
    """Job and network."""
    plan: str
    predicted_s: float
    """By `wirewise.sim.predict`."""
    seconds: list[float]
    """Measured, of each repeat on the slowest rank."""

    @property
    def measured_s(self) -> float:
        """The median."""
        return float(np.median(self.seconds))

    @property
    def error(self) -> float:
        """Above 0: predicted to take longer than it does."""
        return self.predicted_s / self.measured_s - 1.0
