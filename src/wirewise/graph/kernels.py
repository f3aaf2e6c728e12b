"""Compiled loops over the edges of a graph that use memory for its nodes only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.jit import njit

__all__ = [
    "add_degrees",
    "drop_repeated",
    "fill_targets",
    "first_mismatch",
    "first_unsorted",
    "is_symmetric",
    "mark_needed",
    "merge_rows",
    "renumbered_rows",
    "scatter_edges",
]

_LOW = 0xFFFFFFFF


@njit()
def add_degrees(source: NDArray[Any], target: NDArray[Any], degrees: NDArray[np.int64], both: bool) -> None:
    """Add some edges to the in-degrees [N], without self loops; with `both`, their reverses, too."""
    for edge in range(len(source)):
        if source[edge] != target[edge]:
            degrees[target[edge]] += 1
            if both:
                degrees[source[edge]] += 1


@njit()
def scatter_edges(
    source: NDArray[Any],
    target: NDArray[Any],
    weight: NDArray[np.float32],
    cursor: NDArray[np.int64],
    rows: NDArray[np.int32],
    values: NDArray[np.float32],
    both: bool,
) -> None:
    """Append the sources of some edges to the rows of their targets, without self loops.

    Args:
        source: Source of each edge.
        target: Target of each edge.
        weight: Weight of each edge; empty if unweighted.
        cursor: Write position in each node's row, [N]; advanced.
        rows: Output for sources.
        values: Output for weights, in the order of `rows`.
        both: Write the reverse edges, too.
    """
    for edge in range(len(source)):
        u, v = source[edge], target[edge]
        if u == v:
            continue
        rows[cursor[v]] = u
        if len(weight):
            values[cursor[v]] = weight[edge]
        cursor[v] += 1
        if both:
            rows[cursor[u]] = v
            if len(weight):
                values[cursor[u]] = weight[edge]
            cursor[u] += 1


@njit()
def merge_rows(
    indptr: NDArray[np.int64], rows: NDArray[np.int32], values: NDArray[np.float32], keep_larger: bool
) -> None:
    """Sort every row and merge duplicates, in place: `indptr` and the start of `rows` hold the result.

    Args:
        indptr: Start of each row, then the end, [N + 1].
        rows: Sources of the edges.
        values: Weights in the order of `rows`; empty if unweighted.
        keep_larger: Keep the larger weight of merged edges; otherwise weights are added.
    """
    weighted, end = len(values) > 0, indptr[0]
    keys, held = np.empty(0, np.int64), np.empty(0, np.float32)
    out = end
    for row in range(len(indptr) - 1):
        begin, end = end, indptr[row + 1]
        count = end - begin
        if weighted:
            if count > len(keys):
                keys, held = np.empty(2 * count, np.int64), np.empty(2 * count, np.float32)
            # The place in the row makes keys unique, so that equal sources stay in the order that they had.
            for place in range(count):
                keys[place] = (np.int64(rows[begin + place]) << 32) | place
                held[place] = values[begin + place]
            keys[:count].sort()
        else:
            rows[begin:end].sort()
        indptr[row] = out
        for place in range(count):
            source = np.int32(keys[place] >> 32) if weighted else rows[begin + place]
            value = held[keys[place] & _LOW] if weighted else np.float32(1)
            if out > indptr[row] and rows[out - 1] == source:
                if weighted:
                    values[out - 1] = max(values[out - 1], value) if keep_larger else values[out - 1] + value
                continue
            rows[out] = source
            if weighted:
                values[out] = value
            out += 1
    indptr[-1] = out


@njit()
def drop_repeated(keys: NDArray[np.int64]) -> int:
    """Move the unique values of ascending keys to the front, and return their number."""
    count = min(len(keys), 1)
    for key in keys[1:]:
        if key != keys[count - 1]:
            keys[count] = key
            count += 1
    return count


@njit()
def fill_targets(indptr: NDArray[np.int64], targets: NDArray[np.int32]) -> None:
    """Write the target of each edge, from row offsets `indptr` [N + 1]."""
    for row in range(len(indptr) - 1):
        targets[indptr[row] : indptr[row + 1]] = row


@njit()
def first_mismatch(targets: NDArray[Any], indptr: NDArray[np.int64]) -> int:
    """First edge whose target is not its row by `indptr` [N + 1], or -1."""
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            if targets[edge] != row:
                return edge
    return -1


@njit()
def first_unsorted(indptr: NDArray[np.int64], indices: NDArray[Any]) -> int:
    """First node whose sources are not ascending valid ids of other nodes, or -1; `indptr` [N + 1] ascends."""
    nodes = len(indptr) - 1
    for row in range(nodes):
        before = -1
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            if source <= before or source >= nodes or source == row:
                return row
            before = source
    return -1


@njit()
def is_symmetric(indptr: NDArray[np.int64], indices: NDArray[Any]) -> bool:
    """Whether every edge has its reverse; rows ascend. Every row is read once, in source order."""
    cursor = indptr[:-1].copy()
    for row in range(len(cursor)):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            # Targets come in ascending order, so the next unread entry of the source must be this one.
            if cursor[source] == indptr[source + 1] or indices[cursor[source]] != row:
                return False
            cursor[source] += 1
    return True


@njit()
def mark_needed(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    owner: NDArray[Any],
    needed: NDArray[np.bool_],
    marginal: NDArray[np.bool_],
) -> int:
    """Mark rows that parts need from others, [parts, nodes], and marginal nodes, [nodes]; returns the edge cut."""
    cut = 0
    for row in range(len(indptr) - 1):
        part = owner[row]
        for edge in range(indptr[row], indptr[row + 1]):
            if owner[indices[edge]] != part:
                needed[part, indices[edge]] = True
                marginal[row] = True
                cut += 1
    return cut


@njit()
def renumbered_rows(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    own: NDArray[np.int64],
    number: NDArray[np.int32],
    starts: NDArray[np.int64],
    columns: NDArray[np.int32],
    position: NDArray[np.int64],
) -> None:
    """Write the in-edges of some nodes with renumbered sources, ascending.

    Args:
        indptr: Start of each node's in-edges, then the end.
        indices: Source of each edge.
        own: Nodes whose edges to write.
        number: New number of each source.
        starts: Start of the edges of each of `own`, then the end.
        columns: Output for the new numbers.
        position: Output for the index of each edge in `indices`; empty if not needed.
    """
    keys = np.empty(0, np.int64)
    for row in range(len(own)):
        begin, count = indptr[own[row]], starts[row + 1] - starts[row]
        if count > len(keys):
            keys = np.empty(2 * count, np.int64)
        for place in range(count):
            keys[place] = (np.int64(number[indices[begin + place]]) << 32) | place
        keys[:count].sort()
        for place in range(count):
            columns[starts[row] + place] = keys[place] >> 32
            if len(position):
                position[starts[row] + place] = begin + (keys[place] & _LOW)
