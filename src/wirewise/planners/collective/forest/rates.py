"""Number of trees per root, and of trees that each edge may carry.

All capacities are multiplied by U so that k trees of weight one for each root just fit: k / U is the rate of a root.
The largest rate is a fraction, known exactly from the tightest cut, with numerator k and denominator U (ForestColl,
Zhao et al. 2024). If k would be too large, it is fixed, capacities are rounded down, and U is the smallest with which
the trees still fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.bounds import tightest_cut
from wirewise.collective.maxflow import Capacities, FlowGraph
from wirewise.errors import PlanError
from wirewise.planners.collective.deadline import Deadline

__all__ = ["ScaledNetwork", "exact_rate", "is_feasible_rate", "with_trees"]

_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64)
_WORTH = 0.995
"""More trees must be quicker by half a percent."""


class ScaledNetwork(NamedTuple):
    """Edges with capacities in numbers of trees."""

    found: Capacities
    trees: int
    """Number of trees per root, k."""
    scale: float
    """U: capacities were multiplied by it, and perhaps rounded down."""

    def times(self, factor: int) -> ScaledNetwork:
        """Multiple of the trees at the same rate."""
        larger = self.found._replace(amounts=self.found.amounts * factor)
        return ScaledNetwork(larger, self.trees * factor, self.scale * factor)


def exact_rate(capacities: Capacities, supply: NDArray[np.int64], sinks: Sequence[int]) -> ScaledNetwork:
    """Compute the largest rate exactly; arguments as in `tightest_cut`."""
    ratio = tightest_cut(capacities, supply, sinks).ratio
    return ScaledNetwork(
        capacities._replace(amounts=capacities.amounts * ratio.numerator), ratio.denominator, ratio.numerator
    )


def with_trees(
    capacities: Capacities, supply: NDArray[np.int64], sinks: Sequence[int], maximum: int, deadline: Deadline
) -> ScaledNetwork:
    """Find the fewest trees per root, up to `maximum`, within half a percent of the best rate tried.

    Raises:
        PlanError: `maximum` is below 1.
    """
    if maximum < 1:
        raise PlanError(f"got {maximum} trees a root at most; expected at least 1")
    ratio = tightest_cut(capacities, supply, sinks).ratio
    if ratio.denominator <= maximum:
        return exact_rate(capacities, supply, sinks)
    best = _fixed(capacities, supply, sinks, 1, float(ratio))
    for trees in (*(count for count in _COUNTS[1:] if count < maximum), maximum):
        if deadline.left_s <= 0:
            break
        # Rounding down loses, so that no number of trees can be quicker than the exact rate.
        if float(ratio) < best.scale / best.trees * _WORTH:
            tried = _fixed(capacities, supply, sinks, trees, float(ratio) * trees)
            if tried.scale / tried.trees < best.scale / best.trees * _WORTH:
                best = tried
    return best


def is_feasible_rate(
    capacities: Capacities, supply: NDArray[np.int64], sinks: Sequence[int], trees: int
) -> bool:
    """Whether `trees` trees per unit of supply fit: flow from all roots together to every sink is large enough."""
    roots, total = np.flatnonzero(supply), trees * int(supply.sum())
    hub = capacities.vertices
    graph = FlowGraph(
        hub + 1,
        np.concatenate([np.full(len(roots), hub), capacities.sources]),
        np.concatenate([roots, capacities.targets]),
    )
    amounts = np.concatenate([supply[roots] * trees, capacities.amounts])
    return all(graph.flow(amounts, hub, sink, total) >= total for sink in sinks)


def _fixed(
    capacities: Capacities, supply: NDArray[np.int64], sinks: Sequence[int], trees: int, least: float
) -> ScaledNetwork:
    """Smallest scale at which `trees` trees fit, by bisection from the `least` that it can be."""

    def at(scale: float) -> Capacities:
        # Just below a whole number counts as it: rates and scales are floats here.
        return capacities._replace(
            amounts=np.floor(capacities.amounts * scale * (1 + 1e-12)).astype(np.int64)
        )

    low, high = least * (1 - 1e-9), least * (1 + 1e-9)
    while not is_feasible_rate(at(high), supply, sinks, trees):
        low, high = high, high * 1.25
    while high > low * (1 + 1e-9):
        middle = (low + high) / 2
        low, high = (low, middle) if is_feasible_rate(at(middle), supply, sinks, trees) else (middle, high)
    return ScaledNetwork(at(high), trees, high)
