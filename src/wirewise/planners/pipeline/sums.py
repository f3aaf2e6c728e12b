"""Cumulative module costs, so that those of a stage are differences of two sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.trace.stages import StageTrace

__all__ = ["Ints", "ModuleSums", "Table", "Vector"]

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
Table = NDArray[np.float64]
"""Cost of each stage between two sets of modules, [sets, sets]."""


class ModuleSums:
    """Cumulative module costs for one microbatch size, [L + 1] each."""

    def __init__(self, trace: StageTrace, microbatch_size: int) -> None:
        times = np.array([trace.times(number, microbatch_size) for number in range(len(trace.modules))])
        self.forward_s, self.backward_s, self.weight_s = (_summed(times[:, i]) for i in range(3))
        modules = trace.modules
        self.saved_bytes = _summed(np.array([module.saved_bytes for module in modules]) * microbatch_size)
        self.parameter_bytes = _summed(np.array([module.parameter_bytes for module in modules]))
        self.optimizer_s = _summed(np.array([module.optimizer_s for module in modules]))
        self.output_bytes = np.array([module.output_bytes for module in modules]) * microbatch_size
        self.input_bytes = trace.input_bytes * microbatch_size
        last = np.full(len(modules), -1, np.int64)
        for source, target in trace.flows:
            last[source] = max(last[source], target)
        self.chain = trace.is_chain
        self._consumers = (
            [[t for s, t in trace.flows if s == u] for u in range(len(modules))] if not self.chain else []
        )

    def compute_s(self) -> Vector:
        """Cumulative seconds of both passes, [L + 1]."""
        return self.forward_s + self.backward_s

    def inputs(self, bounds: Ints) -> Vector:
        """Bytes that each stage receives from earlier stages (the first one: the batch); a tensor counts once.

        Args:
            bounds: First module of each stage, then the number of modules, [S + 1].
        """
        found = np.empty(len(bounds) - 1)
        found[0] = self.input_bytes
        if self.chain:
            found[1:] = self.output_bytes[bounds[1:-1] - 1]
            return found
        found[1:] = 0.0
        stage_of = np.searchsorted(bounds, np.arange(len(self.output_bytes)), side="right") - 1
        for module, users in enumerate(self._consumers):
            for stage in {int(stage_of[user]) for user in users} - {int(stage_of[module])}:
                found[stage] += self.output_bytes[module]
        return found


def _summed(values: Vector) -> Vector:
    return np.concatenate([[0.0], np.cumsum(values)])
