"""Whole graph in one process: edges, features, labels and split, validated before use."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.graph.structure import (
    InEdges,
    entries_of,
    in_edges,
    offsets_of,
    one_way_edge,
    order_by_target,
    symmetrize,
)

__all__ = ["NO_SPLIT", "SPLITS", "TEST", "TRAIN", "VALIDATION", "GraphData", "SparseRows"]

TRAIN, VALIDATION, TEST, NO_SPLIT = 0, 1, 2, 255
_CHUNK = 1 << 18
"""Values that are looked at together, so that a mapped graph is checked in little memory."""
SPLITS = {"train": TRAIN, "validation": VALIDATION, "test": TEST, "none": NO_SPLIT}


@dataclass(frozen=True, kw_only=True)
class SparseRows:
    """Rows of a sparse matrix (CSR); `data` is None if every stored value is one."""

    indptr: NDArray[np.int64]
    """Start of each row's values, [rows + 1]: those of row r are `indptr[r]` to `indptr[r + 1]`."""
    indices: NDArray[np.int32]
    """Column of each value, [values]."""
    data: NDArray[np.float32] | None
    """Stored values, [values]. None if all are one."""
    num_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.indptr) - 1, self.num_columns

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.indptr.nbytes + self.indices.nbytes + (0 if self.data is None else self.data.nbytes))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def rows(self, index: NDArray[Any]) -> SparseRows:
        """Select the rows `index` (int [n]), in that order, as a new matrix of n rows."""
        at, counts = entries_of(self.indptr, index)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        data = None if self.data is None else self.data[at]
        return SparseRows(indptr=indptr, indices=self.indices[at], data=data, num_columns=self.num_columns)

    def to_dense(self) -> NDArray[np.float32]:
        """Convert to a dense float32 array; duplicate entries are added."""
        return np.asarray(self.to_scipy().toarray(), dtype=np.float32)

    def to_scipy(self) -> sp.csr_matrix:
        """Convert to a SciPy CSR matrix, float32."""
        data = np.ones(len(self.indices), np.float32) if self.data is None else self.data
        return sp.csr_matrix((data, self.indices, self.indptr), shape=self.shape)

    @classmethod
    def from_dense(cls, x: NDArray[Any]) -> SparseRows:
        """Build from the nonzeros of a dense array; `data` is None if all of them are one."""
        row, column = np.nonzero(x)
        indptr = offsets_of(row, len(x))
        values = np.asarray(x[row, column], dtype=np.float32)
        data = None if bool(np.all(values == 1)) else values
        return cls(indptr=indptr, indices=column.astype(np.int32), data=data, num_columns=x.shape[1])

    def validate(self) -> None:
        """Raise GraphError unless offsets, columns and values describe a matrix."""
        steps = np.diff(self.indptr)
        if len(self.indptr) == 0 or self.indptr[0] != 0 or bool((steps < 0).any()):
            raise GraphError(
                "x_indptr does not start at 0 or decreases; expected the row offsets of a CSR matrix"
            )
        if self.indptr[-1] != len(self.indices):
            raise GraphError(
                f"x_indptr ends at {self.indptr[-1]}, but x_indices has {len(self.indices)} values; expected "
                "equal numbers, the file may be incomplete"
            )
        if self.data is not None and len(self.data) != len(self.indices):
            raise GraphError(
                f"x_data has {len(self.data)} values and x_indices {len(self.indices)}; expected as many"
            )
        if self.num_columns < 1:
            raise GraphError(f"num_features is {self.num_columns}; expected at least one feature")
        wrong = np.flatnonzero((self.indices < 0) | (self.indices >= self.num_columns))
        if len(wrong):
            node = int(np.searchsorted(self.indptr, wrong[0], side="right")) - 1
            raise GraphError(
                f"x_indices of node {node} names column {self.indices[wrong[0]]}; expected 0 to "
                f"{self.num_columns - 1} (num_features is {self.num_columns})"
            )


@dataclass(frozen=True, kw_only=True)
class GraphData:
    """Graph with features, labels and a split. N nodes, E edges, F features, C classes.

    An edge (u, v) means that v aggregates from u. If `directed` is False, the list holds both directions. When parts
    are made, self loops are dropped and duplicates merged, their weights added; a `multigraph` keeps all.
    """

    edge_index: NDArray[Any]
    """Source and target of each edge, int [2, E]."""
    x: SparseRows | NDArray[np.float32]
    """Features, float32 [N, F], or sparse rows of that shape."""
    y: NDArray[Any]
    """Labels, int64 [N], -1 where unknown; or float32 [N, C] of zeros and ones for several labels per node."""
    split: NDArray[np.uint8]
    """Split of each node, [N]: 0 train, 1 validation, 2 test, 255 none."""
    num_classes: int
    class_names: tuple[str, ...] | None = None
    directed: bool = False
    edge_weight: NDArray[np.float32] | None = None
    """Weight of each edge, [E]. Defaults to 1 for every edge."""
    indptr: NDArray[np.int64] | None = None
    """Start of each node's in-edges, [N + 1], in `edge_index`, then the end, where the list is sorted by target and
    source and free of loops and repeated edges already, as that of a mapped graph; None if it need not be."""
    multigraph: bool = False
    """Whether self loops and repeated edges are kept."""
    edge_data: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further rows [E, ...] of a multigraph by name, in the order of `edge_index`."""
    node_data: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further rows [N, ...] by name, copied to the parts unchanged."""
    name: str = "graph"
    notes: tuple[str, ...] = ()
    """Notes for the user, such as values that were left out or merged when the graph was read."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return len(self.y)

    @property
    def num_edges(self) -> int:
        """Number of entries in the edge list; an undirected edge counts twice."""
        return int(self.edge_index.shape[1])

    @property
    def num_features(self) -> int:
        """Input width, F."""
        return int(self.x.shape[1])

    @property
    def multilabel(self) -> bool:
        """Whether a node may have several classes."""
        return self.y.ndim == 2

    def count(self, split: int) -> int:
        """Number of nodes in one split."""
        return int(np.count_nonzero(self.split == split))

    @cached_property
    def in_edges(self) -> InEdges:
        """Sorted in-neighbours of each node; duplicates are kept in a multigraph only."""
        if not self.multigraph:
            return self.simple_in_edges
        indptr = offsets_of(self.edge_index[1], self.num_nodes)
        weight = None if self.edge_weight is None else self.edge_weight[self.edge_order].astype(np.float32)
        sources = self.edge_index[0][self.edge_order].astype(np.int32)
        return InEdges(indptr, sources, weight, tuple(self.edge_data))

    @cached_property
    def simple_in_edges(self) -> InEdges:
        """Sorted in-neighbours of each node, without self loops and duplicates."""
        if self.indptr is not None:
            return InEdges(self.indptr, self.edge_index[0], self.edge_weight)
        return in_edges(self.edge_index, self.num_nodes, self.edge_weight)

    @cached_property
    def edge_order(self) -> NDArray[np.int64]:
        """Column of `edge_index` for each edge of `in_edges` of a multigraph; [E]."""
        return order_by_target(self.edge_index)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of edges, features, labels and split, independent of edge order."""
        digest = hashlib.blake2b(digest_size=16)
        x = self.x
        features = [x.indptr, x.indices, x.data] if isinstance(x, SparseRows) else [x]
        order = self.edge_order if self.edge_data else None
        more = [self.edge_data[name][order] for name in sorted(self.edge_data)]
        more += [self.node_data[name] for name in sorted(self.node_data)]
        for array in [*self.in_edges[:3], *features, self.y, self.split, *more]:
            if array is not None:
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        digest.update(f"{self.directed} {self.num_classes} {self.num_features}".encode())
        return digest.hexdigest()

    def undirected(self) -> GraphData:
        """Graph with every edge in both directions, once, and without self loops.

        Raises:
            GraphError: Edges carry data, which would be ambiguous.
        """
        if self.edge_data:
            raise GraphError(
                f"edges carry {', '.join(self.edge_data)}; expected both directions of each edge in edge_index already"
            )
        edges, weight = symmetrize(self.edge_index, self.num_nodes, self.edge_weight)
        return dataclasses.replace(
            self, edge_index=edges, edge_weight=weight, indptr=None, directed=False, multigraph=False
        )

    def dense_x(self) -> NDArray[np.float32]:
        """Features as a dense array, [N, F]."""
        return self.x.to_dense() if isinstance(self.x, SparseRows) else self.x

    def validate(self) -> GraphData:
        """Validate everything that training relies on, and return the graph itself.

        Raises:
            GraphError: An edge, node, column or length is invalid; the message names the first one and what is valid.
        """
        if self.num_nodes == 0:
            raise GraphError("the graph has no nodes (y is empty); expected at least one")
        # Rows first: nodes are counted by y, and a y that is too short would show as edges that dangle.
        if (rows := self.x.shape[0]) != self.num_nodes:
            raise GraphError(
                f"x has {rows} rows and y has {self.num_nodes}; expected one row for each node in both"
            )
        _check_edges(self)
        _check_features(self)
        _check_labels(self)
        _check_split(self)
        return self


def _check_edges(data: GraphData) -> None:
    edges, nodes = data.edge_index, data.num_nodes
    if edges.ndim != 2 or edges.shape[0] != 2 or not np.issubdtype(edges.dtype, np.integer):
        raise GraphError(
            f"edge_index is {edges.dtype} {list(edges.shape)}; expected integers of shape [2, edges], "
            "the sources in the first row and the targets in the second"
        )
    if edges.size and (edges.min() < 0 or edges.max() >= nodes):
        wrong = np.flatnonzero(((edges < 0) | (edges >= nodes)).any(axis=0))
        edge = int(wrong[0])
        raise GraphError(
            f"edge {edge} goes from node {edges[0, edge]} to node {edges[1, edge]}, but nodes are 0 to "
            f"{nodes - 1}; {len(wrong)} of {edges.shape[1]} edges dangle, remove them or add the nodes"
        )
    weight = data.edge_weight
    if weight is not None:
        if weight.shape != (edges.shape[1],):
            raise GraphError(f"edge_weight has shape {list(weight.shape)}; expected one weight for each edge")
        bad = np.flatnonzero(~np.isfinite(weight))
        if len(bad):
            raise GraphError(f"edge_weight of edge {bad[0]} is {weight[bad[0]]}; expected finite numbers")
    if data.indptr is not None:
        _check_sorted(data, data.indptr)
    _check_rows(data.edge_data, edges.shape[1], "edge")
    _check_rows(data.node_data, nodes, "node")
    if data.edge_data and not data.multigraph:
        raise GraphError("edge_data needs a multigraph: edges that are merged have no row of their own")
    if not data.directed:
        lonely = one_way_edge(data.simple_in_edges)
        if lonely is not None:
            raise GraphError(
                f"the graph is marked undirected, but edge {lonely[0]} -> {lonely[1]} has no reverse; call "
                ".undirected() to add the missing directions, or set directed=True"
            )


def _check_sorted(data: GraphData, indptr: NDArray[np.int64]) -> None:
    """Raise GraphError unless the edge list is in the order that `indptr` says."""
    from wirewise.graph.kernels import first_mismatch, first_unsorted

    edges, nodes = data.edge_index, data.num_nodes
    steps = np.diff(indptr)
    if indptr.shape != (nodes + 1,) or indptr[0] or indptr[-1] != edges.shape[1] or bool((steps < 0).any()):
        raise GraphError(
            f"indptr does not ascend from 0 to {edges.shape[1]} in {nodes + 1} steps; expected the begin of each "
            "node's in-edges, then the end"
        )
    if (node := first_unsorted(indptr, edges[0])) >= 0:
        raise GraphError(
            f"in-edges of node {node} do not ascend by source, or hold the node; expected an edge list without loops "
            "and repeated edges where indptr is given"
        )
    if (edge := first_mismatch(edges[1], indptr)) >= 0:
        raise GraphError(
            f"edge {edge} goes to node {edges[1, edge]}, against indptr; expected edges by target where indptr is given"
        )


def _check_rows(given: Mapping[str, NDArray[Any]], count: int, what: str) -> None:
    for name, rows in given.items():
        if rows.ndim == 0 or len(rows) != count or rows.dtype.kind not in "biufc":
            raise GraphError(
                f"{name} is {rows.dtype} {list(rows.shape)}; expected numbers with a row for each of {count} {what}s"
            )


def _check_features(data: GraphData) -> None:
    x = data.x
    if isinstance(x, SparseRows):
        x.validate()
    elif x.ndim != 2 or not np.issubdtype(x.dtype, np.floating):
        raise GraphError(f"x is {x.dtype} {list(x.shape)}; expected floats of shape [nodes, features]")
    if x.shape[1] < 1:
        raise GraphError("x has no columns; expected at least one feature")
    values = x.data if isinstance(x, SparseRows) else x.reshape(-1)
    bad = () if values is None else (at for at in range(0, len(values), _CHUNK) if not _finite(values, at))
    if values is None or (begin := next(iter(bad), None)) is None:
        return
    at = begin + int(np.flatnonzero(~np.isfinite(values[begin : begin + _CHUNK]))[0])
    if isinstance(x, SparseRows):
        node, column = int(np.searchsorted(x.indptr, at, side="right")) - 1, int(x.indices[at])
    else:
        node, column = divmod(at, x.shape[1])
    raise GraphError(
        f"x of node {node}, column {column} is {values[at]}; expected finite "
        "numbers, replace missing values before training"
    )


def _finite(values: NDArray[Any], begin: int) -> bool:
    return bool(np.isfinite(values[begin : begin + _CHUNK]).all())


def _check_labels(data: GraphData) -> None:
    y = data.y
    if data.class_names is not None and len(data.class_names) != data.num_classes:
        raise GraphError(f"class_names has {len(data.class_names)} names for {data.num_classes} classes")
    if data.multilabel:
        if y.shape[1] != data.num_classes or not np.issubdtype(y.dtype, np.floating):
            raise GraphError(f"y is {y.dtype} {list(y.shape)}; expected float32 [nodes, {data.num_classes}]")
        wrong = np.argwhere((y != 0) & (y != 1))
        if len(wrong):
            node, column = wrong[0]
            raise GraphError(
                f"y of node {node}, class {column} is {y[node, column]}; expected 0 or 1, or "
                "one class number a node as y of shape [nodes]"
            )
        return
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise GraphError(
            f"y is {y.dtype} {list(y.shape)}; expected integers [nodes], or float32 [nodes, classes]"
        )
    unlabelled = (
        (y == -1) & (data.split == NO_SPLIT) if data.split.shape == y.shape else np.zeros(len(y), bool)
    )
    bad = np.flatnonzero(((y < 0) | (y >= data.num_classes)) & ~unlabelled)
    if len(bad):
        raise GraphError(
            f"y of node {bad[0]} is {y[bad[0]]}; expected a class from 0 to {data.num_classes - 1} (or -1 "
            f"for a node without a split, value {NO_SPLIT}); {len(bad)} nodes are wrong"
        )


def _check_split(data: GraphData) -> None:
    split = data.split
    if split.shape != (data.num_nodes,):
        raise GraphError(
            f"split has shape {list(split.shape)} and y {data.num_nodes} rows; expected one value a node"
        )
    bad = np.flatnonzero(~np.isin(split, list(SPLITS.values())))
    if len(bad):
        raise GraphError(
            f"split of node {bad[0]} is {split[bad[0]]}; expected 0 (train), 1 (validation), 2 (test) or 255 "
            "(none)"
        )
    if data.count(TRAIN) == 0:
        raise GraphError("no node has split 0 (train); expected at least one training node in the graph")
