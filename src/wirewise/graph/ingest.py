"""Write graphs as mapped folders in one pass over their source, block by block.

Edges are read once into an unnamed temporary file, then scattered to the rows of their targets, sorted and merged
there. Memory is needed for nodes only: feature rows are copied block by block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.files import exclusive_folder
from wirewise.graph.blocks import blocks, row_blocks
from wirewise.graph.data import GraphData, SparseRows
from wirewise.graph.files import edge_notes, graph_of, unsupported_parts
from wirewise.graph.kernels import add_degrees, fill_targets, is_symmetric, merge_rows, scatter_edges
from wirewise.graph.mapped import GraphWriter
from wirewise.graph.ranges import Ranges

__all__ = ["ArraySlot", "GraphSource", "Pairs", "source_of", "write_mapped", "write_source"]

Pairs = tuple[NDArray[Any], NDArray[Any], NDArray[np.float32] | None]
"""Sources, targets and weights of some edges."""


class ArraySlot(NamedTuple):
    """Name, type and shape of an array that is not yet written."""

    dtype: Any
    shape: tuple[int, ...]
    fill: Callable[[NDArray[Any]], None]
    """Function that writes the array, block by block."""


@dataclass(frozen=True, kw_only=True)
class GraphSource:
    """Graph readable in blocks."""

    name: str
    num_edges: int
    """Number of edges that `pairs` yields."""
    pairs: Callable[[], Iterable[Pairs]]
    weighted: bool
    features: Mapping[str, ArraySlot]
    """`x`, or `x_indptr`, `x_indices` and perhaps `x_data`."""
    nodes: Callable[[], Mapping[str, NDArray[Any]]]
    """Called once the features are written: `y` and `split`, perhaps `class_names`, and `num_features` with sparse
    features, as `read_graph` takes them."""
    both: bool = False
    """Whether to write every edge in both directions."""
    directed: bool | None = False
    """Whether edges have one direction. Defaults to False if every edge has its reverse."""
    num_classes: int | None = None
    """Number of classes. Defaults to the number of names, or the largest label plus one."""
    notes: tuple[str, ...] | None = None
    """Notes on the graph. Defaults to those of merging its edges."""


def write_mapped(
    data: GraphData, folder: str | os.PathLike[str], *, ranges: Ranges | None = None
) -> GraphData:
    """Write a graph as a mapped folder, and return it mapped.

    Args:
        data: Graph that is valid.
        folder: Folder for the output.
        ranges: New node ids. Defaults to the graph's own.

    Raises:
        GraphError: The graph has loops, repeated edges or data that a folder cannot hold, or the disk is full.
    """
    if lost := unsupported_parts(data):
        raise GraphError(
            f"a mapped graph does not hold {lost}; expected a graph without: write parts by save_parts, which hold all"
        )
    return write_source(source_of(data, ranges), folder)


def source_of(data: GraphData, ranges: Ranges | None = None) -> GraphSource:
    """Make a block-wise source of a graph, optionally under new node ids."""
    old = None if ranges is None else ranges.old

    def rows_of(array: NDArray[Any]) -> NDArray[Any]:
        return array if old is None else array[old]

    def pairs() -> Iterator[Pairs]:
        edges = data.simple_in_edges
        for begin, end in row_blocks(edges.indptr):
            first, stop = edges.indptr[begin], edges.indptr[end]
            source = edges.indices[first:stop]
            target = np.repeat(np.arange(begin, end, dtype=np.int32), np.diff(edges.indptr[begin : end + 1]))
            if ranges is not None:
                source, target = ranges.new[source].astype(np.int32), ranges.new[target].astype(np.int32)
            yield source, target, None if edges.weight is None else edges.weight[first:stop]

    nodes = {"y": rows_of(data.y), "split": rows_of(data.split)}
    if data.class_names is not None:
        nodes["class_names"] = np.array(data.class_names)
    if isinstance(data.x, SparseRows):
        nodes["num_features"] = np.array(data.num_features)
    return GraphSource(
        name=data.name,
        num_edges=len(data.simple_in_edges.indices),
        pairs=pairs,
        weighted=data.edge_weight is not None,
        features=_sparse_features(data.x, old)
        if isinstance(data.x, SparseRows)
        else _dense_features(data.x, old),
        nodes=lambda: nodes,
        directed=data.directed,
        num_classes=data.num_classes,
        notes=data.notes,
    )


def _dense_features(x: NDArray[np.float32], old: NDArray[np.int64] | None) -> dict[str, ArraySlot]:
    def fill(out: NDArray[Any]) -> None:
        for begin, end in blocks(len(x), x.shape[1]):
            out[begin:end] = x[begin:end] if old is None else x[old[begin:end]]

    return {"x": ArraySlot(np.float32, (int(x.shape[0]), int(x.shape[1])), fill)}


def _sparse_features(x: SparseRows, old: NDArray[np.int64] | None) -> dict[str, ArraySlot]:
    counts = np.diff(x.indptr) if old is None else np.diff(x.indptr)[old]
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def filler(array: NDArray[Any]) -> Callable[[NDArray[Any]], None]:
        def fill(out: NDArray[Any]) -> None:
            for begin, end in row_blocks(indptr):
                rows = np.arange(begin, end) if old is None else old[begin:end]
                found = SparseRows(indptr=x.indptr, indices=array, data=None, num_columns=1).rows(rows)
                out[indptr[begin] : indptr[end]] = found.indices

        return fill

    def fill_indptr(out: NDArray[Any]) -> None:
        out[:] = indptr

    found = {
        "x_indptr": ArraySlot(np.int64, indptr.shape, fill_indptr),
        "x_indices": ArraySlot(np.int32, x.indices.shape, filler(x.indices)),
    }
    if x.data is not None:
        found["x_data"] = ArraySlot(np.float32, x.data.shape, filler(x.data))
    return found


def write_source(source: GraphSource, folder: str | os.PathLike[str]) -> GraphData:
    """Write a source as a mapped folder, and return the graph, mapped and checked.

    Raises:
        GraphError: The source is unsuitable for training, or the disk is not writable; no graph is left in the
            folder.
    """
    with exclusive_folder(folder, error=GraphError) as path, GraphWriter(path) as writer:
        return _write(source, writer)


def _write(source: GraphSource, writer: GraphWriter) -> GraphData:
    given: dict[str, NDArray[Any]] = {}
    for name, filled in source.features.items():
        given[name] = writer.array(name, filled.dtype, filled.shape)
        filled.fill(given[name])
    given |= source.nodes()
    indptr, rows, values, notes_of = _rows_of(source, writer, len(given["y"]))
    edges = int(indptr[-1])
    given["edge_index"] = writer.array("edge_index", np.int32, (2, edges))
    given["edge_index"][0] = rows[:edges]
    fill_targets(indptr, given["edge_index"][1])
    if source.weighted:
        given["edge_weight"] = writer.array("edge_weight", np.float32, (edges,))
        given["edge_weight"][:] = values[:edges]
    writer.array("indptr", np.int64, indptr.shape)[:] = indptr
    found = graph_of(given, source.name)
    directed = source.directed
    if directed is None:
        directed = not is_symmetric(indptr, given["edge_index"][0])
    classes = found.num_classes if source.num_classes is None else source.num_classes
    found = replace(found, indptr=indptr, directed=directed, num_classes=classes).validate()
    writer.array("y", found.y.dtype, found.y.shape)[...] = found.y
    writer.array("split", np.uint8, found.split.shape)[:] = found.split
    return writer.finish(replace(found, notes=notes_of(found) if source.notes is None else source.notes))


def _rows_of(
    source: GraphSource, writer: GraphWriter, nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], Callable[[GraphData], tuple[str, ...]]]:
    """In-edges sorted and merged (indptr, sources, weights) in files that have no name, and what gives their notes."""
    spooled, weight, degrees, loops = _spool(source, writer, nodes)
    given = weight if source.weighted else None
    # Weights of an edge that is given twice are added; then the larger one of its directions counts.
    twice = source.both and (source.weighted or source.notes is None)
    if twice:
        degrees[:] = 0
        add_degrees(*spooled, degrees, False)
    indptr, rows, values = _sorted(
        writer, spooled, weight, degrees, both=source.both and not twice, larger=False
    )
    del spooled
    edges = int(indptr[-1])
    repeated = source.num_edges - loops - edges

    def notes(graph: GraphData) -> tuple[str, ...]:
        return edge_notes(graph, loops, repeated, given)

    if twice:
        targets = writer.scratch(np.int32, (edges,))
        fill_targets(indptr, targets)
        degrees[:] = 0
        add_degrees(rows[:edges], targets, degrees, True)
        indptr, rows, values = _sorted(
            writer, (rows[:edges], targets), values[:edges], degrees, both=True, larger=True
        )
    return indptr, rows, values, notes


def _spool(
    source: GraphSource, writer: GraphWriter, nodes: int
) -> tuple[tuple[NDArray[np.int32], NDArray[np.int32]], NDArray[np.float32], NDArray[np.int64], int]:
    """Sources and targets of all edges, their weights, in-degrees, and how many self loops there are."""
    sources, targets = (writer.scratch(np.int32, (source.num_edges,)) for _ in range(2))
    weight = writer.scratch(np.float32, (source.num_edges if source.weighted else 0,))
    degrees, at, loops = np.zeros(nodes, np.int64), 0, 0
    for u, v, w in source.pairs():
        _check_ends(u, v, at, nodes)
        end = at + len(u)
        sources[at:end], targets[at:end] = u, v
        if w is not None:
            weight[at:end] = w
        add_degrees(sources[at:end], targets[at:end], degrees, source.both)
        loops += int(np.count_nonzero(sources[at:end] == targets[at:end]))
        at = end
    if at != source.num_edges:
        raise GraphError(f"{source.name} has {at} edges; expected {source.num_edges}, it may be incomplete")
    return (sources, targets), weight, degrees, loops


def _check_ends(u: NDArray[Any], v: NDArray[Any], at: int, nodes: int) -> None:
    wrong = np.flatnonzero((u < 0) | (u >= nodes) | (v < 0) | (v >= nodes))
    if len(wrong):
        edge = int(wrong[0])
        raise GraphError(
            f"edge {at + edge} goes from node {u[edge]} to node {v[edge]}, but nodes are 0 to {nodes - 1}; remove "
            "edges that dangle or add the nodes"
        )


def _sorted(
    writer: GraphWriter,
    spooled: tuple[NDArray[np.int32], NDArray[np.int32]],
    weight: NDArray[np.float32],
    degrees: NDArray[np.int64],
    *,
    both: bool,
    larger: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    rows = writer.scratch(np.int32, (int(indptr[-1]),))
    values = writer.scratch(np.float32, (len(rows) if len(weight) else 0,))
    scatter_edges(*spooled, weight, indptr[:-1].copy(), rows, values, both)
    merge_rows(indptr, rows, values, larger)
    return indptr, rows, values
