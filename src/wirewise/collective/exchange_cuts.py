"""Cut that limits an all-to-all: the most rank pairs across it per unit of outgoing capacity.

This is the sparsest cut, NP-hard in general. Up to `ALL` vertices every cut is tried; beyond, local search moves
single vertices, from many starts. Any cut is a valid bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.maxflow import Capacities
from wirewise.jit import njit

__all__ = ["ALL", "exchange_cut"]

ALL = 20
"""Largest number of vertices for which all cuts are tried, of which there are then a million."""


def exchange_cut(capacities: Capacities, supply: NDArray[np.int64]) -> tuple[NDArray[np.bool_], bool]:
    """Find the tightest cut: vertices inside it, bool [vertices], and whether it is proved optimal.

    Args:
        capacities: Capacities of the edges.
        supply: 1 for each participating vertex, else 0; [vertices].
    """
    matrix = np.zeros((capacities.vertices, capacities.vertices), np.int64)
    np.add.at(matrix, (capacities.sources, capacities.targets), capacities.amounts)
    np.fill_diagonal(matrix, 0)
    if capacities.vertices <= ALL:
        return _try_all(matrix, supply), True
    starts = _starts(matrix, supply)
    cuts = [_improved(matrix, supply, start) for start in starts]
    return max(cuts, key=lambda inside: _ratio(matrix, supply, inside)), False


def _starts(matrix: NDArray[np.int64], supply: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Each rank alone, all but each rank, and each rank with those that are widest joined to it, ever more."""
    found = []
    for rank in np.flatnonzero(supply):
        inside = np.arange(len(supply)) == rank
        while supply[~inside].any():
            found += [inside.copy(), ~inside]
            joined = np.where(inside, -1, (matrix + matrix.T)[inside].max(axis=0))
            inside |= joined == joined.max()
    return list({start.tobytes(): start for start in found}.values())


def _ratio(matrix: NDArray[np.int64], supply: NDArray[np.int64], inside: NDArray[np.bool_]) -> float:
    leaving = matrix[inside][:, ~inside].sum()
    pairs = supply[inside].sum() * supply[~inside].sum()
    return float(pairs) / float(leaving) if leaving else 0.0


@njit()
def _sides(matrix, inside, vertex):  # type: ignore[no-untyped-def]
    """Capacity from a vertex to the others outside, and from the others inside to it."""
    out, back = 0, 0
    for other in range(len(inside)):
        if other != vertex and inside[other]:
            back += matrix[other, vertex]
        elif other != vertex:
            out += matrix[vertex, other]
    return out, back


def _all_cuts(matrix, supply):  # type: ignore[no-untyped-def]
    """Walks all subsets in Gray code, in which neighbours differ by one vertex; returns the best."""
    n, total = len(supply), supply.sum()
    inside, best_inside = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    leaving, within, best = 0, 0, 0.0
    for code in range(1, 1 << n):
        vertex, bits = 0, code
        while bits & 1 == 0:
            bits >>= 1
            vertex += 1
        out, back = _sides(matrix, inside, vertex)
        if inside[vertex]:
            inside[vertex] = False
            leaving += back - out
            within -= supply[vertex]
        else:
            inside[vertex] = True
            leaving += out - back
            within += supply[vertex]
        pairs = within * (total - within)
        if leaving > 0 and pairs > best * leaving:
            best = pairs / leaving
            best_inside[:] = inside
    return best_inside


def _climb(matrix, supply, start):  # type: ignore[no-untyped-def]
    """Moves the vertex that helps most, until none does."""
    n, total = len(supply), supply.sum()
    inside = start.copy()
    leaving, within = 0, 0
    for a in range(n):
        if inside[a]:
            within += supply[a]
            for b in range(n):
                if not inside[b]:
                    leaving += matrix[a, b]
    best = within * (total - within) / leaving if leaving > 0 else 0.0
    while True:
        choice, choice_leaving, choice_within = -1, 0, 0
        for vertex in range(n):
            out, back = _sides(matrix, inside, vertex)
            sign = -1 if inside[vertex] else 1
            new_leaving = leaving + sign * (out - back)
            new_within = within + sign * supply[vertex]
            pairs = new_within * (total - new_within)
            if new_leaving > 0 and pairs > best * new_leaving * (1 + 1e-12):
                best = pairs / new_leaving
                choice, choice_leaving, choice_within = vertex, new_leaving, new_within
        if choice < 0:
            return inside
        inside[choice] = not inside[choice]
        leaving, within = choice_leaving, choice_within


_try_all = njit()(_all_cuts)
_improved = njit()(_climb)
