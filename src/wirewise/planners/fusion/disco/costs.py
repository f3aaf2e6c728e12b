"""What a region of operators costs as one kernel.

A formula for where no fused kernel was measured and no estimator was trained: a launch, and the longer of computing
and of moving bytes; results that stay inside a region are not moved, and an operator that is computed in two regions
is charged in both. The formula's constants are fitted to the operators that were measured alone.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from wirewise.errors import InputError
from wirewise.planners.fusion.disco.graph import Operator, OperatorGraph

__all__ = ["AnalyticCosts", "RegionCosts", "Roofline", "fit"]

Vector = NDArray[np.float64]

_ROUNDS = 20


class RegionCosts(Protocol):
    """Seconds of regions."""

    def __call__(self, operators: tuple[int, ...], outputs: tuple[int, ...]) -> float:
        """Seconds of one region.

        Args:
            operators: Numbers of its operators, ascending.
            outputs: Those whose results leave it.
        """
        ...


class Roofline(NamedTuple):
    """Constants of a device."""

    launch_s: float
    s_per_flop: float
    s_per_byte: float

    def __call__(self, flops: float, moved_bytes: float) -> float:
        return self.launch_s + max(self.s_per_flop * flops, self.s_per_byte * moved_bytes)


def fit(graph: OperatorGraph) -> Roofline:
    """The constants that miss the measured operators least: least squares of relative errors.

    Views are left out, because they move nothing. Each operator is taken to be bound by computing or by bytes,
    whichever the constants so far say, until that no longer changes.

    Raises:
        InputError: No operator but views was measured.
    """
    measured = [one for one in graph.operators if one.time_s > 0 and one.category != "view"]
    if not measured:
        raise InputError(
            f"none of {len(graph.operators)} operators has a measured time_s; measure them, or give constants"
        )
    times = np.array([one.time_s for one in measured])
    flops, moved = np.array([(one.flops, _alone_bytes(graph, one)) for one in measured]).T
    computing = np.array([one.category == "matmul" for one in measured])
    best, least = Roofline(0.0, 0.0, 0.0), np.inf
    for _ in range(_ROUNDS):
        columns = np.stack([np.ones_like(times), flops * computing, moved * ~computing], axis=1)
        found = Roofline(*_least_squares(columns, times))
        seconds = found.launch_s + np.maximum(found.s_per_flop * flops, found.s_per_byte * moved)
        missed = float(((seconds / times - 1.0) ** 2).sum())
        if missed < least:
            best, least = found, missed
        bound = found.s_per_flop * flops > found.s_per_byte * moved
        if (bound == computing).all():
            break
        computing = bound
    return best


def _least_squares(columns: Vector, times: Vector) -> list[float]:
    """Constants of at least 0; columns are scaled because bytes and seconds differ by many orders."""
    relative = columns / times[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    return (nnls(relative / scale, np.ones_like(times))[0] / scale).tolist()


def _alone_bytes(graph: OperatorGraph, one: Operator) -> float:
    return one.outside_bytes + one.output_bytes + sum(graph.operators[i].output_bytes for i in one.inputs)


class AnalyticCosts:
    """The formula, scaled for each region by how far its operators' measured times lie from theirs.

    Args:
        graph: Of the operators.
        constants: Of the device; none: fitted.

    Raises:
        InputError: As `fit`.
    """

    def __init__(self, graph: OperatorGraph, constants: Roofline | None = None) -> None:
        self.constants = constants or fit(graph)
        self._operators = graph.operators
        self._alone = [self._seconds((i,), (i,)) for i in range(len(graph.operators))]

    def __call__(self, operators: tuple[int, ...], outputs: tuple[int, ...]) -> float:
        """As `RegionCosts`; an operator alone takes what was measured."""
        if len(operators) == 1 and self._operators[operators[0]].time_s > 0:
            return self._operators[operators[0]].time_s
        measured = [i for i in operators if self._operators[i].time_s > 0 and not self._is_view(i)]
        formula = sum(self._alone[i] for i in measured)
        factor = sum(self._operators[i].time_s for i in measured) / formula if formula > 0 else 1.0
        return factor * self._seconds(operators, outputs)

    def _seconds(self, operators: tuple[int, ...], outputs: tuple[int, ...]) -> float:
        own, inside = self._operators, set(operators)
        working = [i for i in operators if not self._is_view(i)]
        read = {i for one in working for i in own[one].inputs if self._base(i, inside) < 0}
        written = {self._base(i, inside) for i in outputs} - {-1}
        moved = sum(own[i].outside_bytes for i in working) + sum(own[i].output_bytes for i in read | written)
        return self.constants(sum(own[i].flops for i in working), moved)

    def _is_view(self, operator: int) -> bool:
        return self._operators[operator].category == "view"

    def _base(self, operator: int, inside: set[int]) -> int:
        """The operator of the region that an operator is a view of, or is; -1: none."""
        while operator in inside and self._is_view(operator) and self._operators[operator].inputs:
            operator = self._operators[operator].inputs[0]
        return operator if operator in inside and not self._is_view(operator) else -1
