"""Cost of a region of operators fused into one kernel.

A formula for use without measured fused kernels and without an estimator: a launch, plus the larger of compute and
memory time; results that stay inside a region are not moved, and an operator computed in two regions is charged in
both. The constants are fitted to operators measured alone.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.sim.compiled import inner, outer
from wirewise.sim.regions import arrays
from wirewise.trace.operators import FusionGraph, Operator

__all__ = ["AnalyticCosts", "RegionCosts", "Roofline", "fit"]

Vector = NDArray[np.float64]
Numbers = NDArray[np.int64]

_ROUNDS = 20


class RegionCosts(Protocol):
    """Cost model of regions."""

    def __call__(self, operators: tuple[int, ...], outputs: tuple[int, ...]) -> float:
        """Seconds of one region.

        Args:
            operators: Numbers of its operators, ascending.
            outputs: Operators whose results leave it.
        """
        ...


class Roofline(NamedTuple):
    """Roofline constants of a device."""

    launch_s: float
    s_per_flop: float
    s_per_byte: float

    def __call__(self, flops: float, moved_bytes: float) -> float:
        return self.launch_s + max(self.s_per_flop * flops, self.s_per_byte * moved_bytes)


def fit(graph: FusionGraph) -> Roofline:
    """Fit the constants to the measured operators, by least squares of relative errors.

    Views are left out, because they move no bytes. Each operator is classified as compute-bound or memory-bound by
    the current constants, until this no longer changes.

    Raises:
        InputError: Only views were measured.
    """
    measured = [one for one in graph.operators if one.time_s > 0 and one.category != "view"]
    if not measured:
        raise InputError(
            f"none of {len(graph.operators)} operators has a measured time_s; measure them with "
            "wirewise.profile.operators.measure_operators and save the graph again, or give constants"
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
    # Ranks load this module for other costs, and should not wait for the solvers.
    from scipy.optimize import nnls

    relative = columns / times[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    return (nnls(relative / scale, np.ones_like(times))[0] / scale).tolist()


def _alone_bytes(graph: FusionGraph, one: Operator) -> float:
    return one.outside_bytes + one.output_bytes + sum(graph.operators[i].output_bytes for i in one.inputs)


class AnalyticCosts:
    """Roofline formula, scaled for each region by the ratio of its operators' measured and predicted times.

    Args:
        graph: Graph of the operators.
        constants: Constants of the device. Defaults to fitted ones.

    Raises:
        InputError: Raised by `fit`.
    """

    def __init__(self, graph: FusionGraph, constants: Roofline | None = None) -> None:
        self.constants = constants or fit(graph)
        self._work = _work(graph)
        for i in range(len(graph.operators)):
            flops, moved, _, _ = _summed(self._work, np.array([i]), np.array([i]))
            self._work.alone_s[i] = self.constants(flops, moved)

    def __call__(self, operators: tuple[int, ...], outputs: tuple[int, ...]) -> float:
        """Seconds of a region, as `RegionCosts` says; an operator alone takes what was measured."""
        own = np.array(operators)
        if len(operators) == 1 and self._work.time_s[own[0]] > 0:
            return float(self._work.time_s[own[0]])
        leaving = np.array(outputs, dtype=np.int64)
        flops, moved, measured, formula = _summed(self._work, own, leaving)
        factor = measured / formula if formula > 0 else 1.0
        return factor * self.constants(flops, moved)


class _Work(NamedTuple):
    """Compute and memory traffic of operators, [n] each but the inputs."""

    input_start: Numbers
    inputs: Numbers
    is_view: NDArray[np.bool_]
    flops: Vector
    outside_bytes: Vector
    output_bytes: Vector
    time_s: Vector
    """Measured seconds."""
    alone_s: Vector
    """Seconds of each operator alone, by the formula."""


def _work(graph: FusionGraph) -> _Work:
    own, of = graph.operators, arrays(graph)
    return _Work(
        of.input_start,
        of.inputs,
        is_view=np.array([one.category == "view" for one in own]),
        flops=np.array([one.flops for one in own]),
        outside_bytes=np.array([float(one.outside_bytes) for one in own]),
        output_bytes=np.array([float(one.output_bytes) for one in own]),
        time_s=np.array([one.time_s for one in own]),
        alone_s=np.zeros(len(own)),
    )


@outer
def _summed(work: _Work, operators: Numbers, outputs: Numbers) -> tuple[float, float, float, float]:
    """Operations and bytes of a region, and seconds of its operators alone: measured, and by the formula.

    It reads everything from outside once; views move nothing.
    """
    inside, moved = np.zeros(len(work.is_view), dtype=np.bool_), np.zeros(len(work.is_view), dtype=np.bool_)
    inside[operators] = True
    flops = from_outside = measured = formula = 0.0
    for one in operators:
        if work.is_view[one]:
            continue
        flops, from_outside = flops + work.flops[one], from_outside + work.outside_bytes[one]
        if work.time_s[one] > 0.0:
            measured, formula = measured + work.time_s[one], formula + work.alone_s[one]
        for e in range(work.input_start[one], work.input_start[one + 1]):
            if _base(work, inside, work.inputs[e]) < 0:
                moved[work.inputs[e]] = True
    for one in outputs:
        base = _base(work, inside, one)
        if base >= 0:
            moved[base] = True
    return flops, from_outside + work.output_bytes[moved].sum(), measured, formula


@inner
def _base(work: _Work, inside: NDArray[np.bool_], operator: int) -> int:
    """The operator of the region that an operator is a view of, or is; -1: none."""
    while (
        inside[operator]
        and work.is_view[operator]
        and work.input_start[operator] < work.input_start[operator + 1]
    ):
        operator = work.inputs[work.input_start[operator]]
    return operator if inside[operator] and not work.is_view[operator] else -1
