"""Largest total weight of spanning trees that fit into undirected capacities (Tutte; Nash-Williams 1961)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.maxflow import Capacities
from wirewise.collective.partitions import tightest_partition

__all__ = ["strength"]


def strength(capacity: NDArray[np.int64]) -> Fraction:
    """The least, over all partitions, of the capacity between the parts over their number less one.

    Args:
        capacity: Whole numbers, symmetric; [n, n]. The result is 0 where the graph is in pieces.
    """
    sources, targets = np.nonzero(capacity)
    found = Capacities(len(capacity), sources, targets, capacity[sources, targets], Fraction(1))
    # Each edge enters one part in each direction.
    return tightest_partition(found, len(capacity)).ratio / 2
