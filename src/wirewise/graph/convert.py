"""Graphs of other libraries as `GraphData`, by their attributes; the libraries are not imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.graph.data import NO_SPLIT, TEST, TRAIN, VALIDATION, GraphData, SparseRows
from wirewise.graph.foreign import is_sparse, to_numpy
from wirewise.graph.splits import INDEX_NAMES, MASKS, mask_of, masks_of, split_of
from wirewise.graph.structure import one_way_edge

__all__ = ["from_ogb", "from_pyg", "labels_of", "refuse_other_kinds"]

_SPARSE_BELOW = 0.1
_KNOWN = frozenset(("edge_index", "x", "y", "split", "n_id", *MASKS, *INDEX_NAMES))


def from_pyg(
    data: Any, *, name: str = "pyg", directed: bool | None = None, mask_column: int | None = None
) -> GraphData:
    """Convert a `torch_geometric.data.Data` to a checked graph with all its edges, self loops and duplicates included.

    Args:
        data: Data object with `edge_index`, `x`, `y`, and either `train_mask`, `val_mask`, `test_mask`, as bools or
            as numbers of nodes (also under the names of `splits.MASKS`), or `split` (0 train, 1 validation, 2 test,
            255 none). Attributes of nodes and edges (`edge_weight`, `edge_attr`, ...) are kept unchanged, in
            `node_data` and `edge_data`; so are `y` and the masks, of which `y` and `split` of the result are what
            built-in training needs: classes (0 where `y` holds real values), and for each node the first of train,
            validation and test that holds it.
        name: Name shown in reports.
        directed: Whether edges have one direction. Defaults to False only if every edge has its reverse.
        mask_column: Index of the split to use if masks are [N, splits]. None if they are [N].

    Raises:
        GraphError: An attribute is missing, or unsuitable for training.
    """
    refuse_other_kinds(data)
    missing = [key for key in ("edge_index", "x", "y") if getattr(data, key, None) is None]
    if missing:
        raise GraphError(
            f"the Data object has no {', '.join(missing)}; expected edge_index, x, y and masks or split"
        )
    given = to_numpy(data.y)
    y = labels_of(given)
    masks = masks_of(data, len(y), mask_column)
    nodes, edges = _further_rows(data)
    weight = edges.get("edge_weight")
    return _finish(
        edge_index=to_numpy(data.edge_index),
        x=to_numpy(data.x),
        y=y,
        split=split_of(data, len(y), masks),
        name=name,
        directed=directed,
        edge_weight=None if weight is None else weight.astype(np.float32).reshape(-1),
        edge_data=edges,
        node_data={**nodes, "y": given, **masks, **_named_by_number(data, len(y))},
    )


def from_ogb(dataset: Any, *, name: str) -> GraphData:
    """Convert an `ogb.nodeproppred.NodePropPredDataset` to a checked graph; unlabelled nodes get no split.

    Raises:
        GraphError: The data set has no node features (as ogbn-proteins), or is otherwise unsuitable.
    """
    graph, labels = dataset[0]
    if graph.get("node_feat") is None:
        raise GraphError(f"{name} has no node features; expected node_feat, choose another set")
    labels = np.asarray(labels)
    split = np.full(len(labels), NO_SPLIT, dtype=np.uint8)
    for key, value in (("train", TRAIN), ("valid", VALIDATION), ("test", TEST)):
        split[np.asarray(dataset.get_idx_split()[key])] = value
    return _finish(
        edge_index=np.asarray(graph["edge_index"]),
        x=np.asarray(graph["node_feat"]),
        y=labels_of(labels),
        split=split,
        name=name,
        directed=None,
        edge_weight=None,
    )


def _finish(
    *,
    edge_index: NDArray[Any],
    x: NDArray[Any],
    y: NDArray[Any],
    split: NDArray[np.uint8],
    name: str,
    directed: bool | None,
    edge_weight: NDArray[np.float32] | None,
    edge_data: Mapping[str, NDArray[Any]] | None = None,
    node_data: Mapping[str, NDArray[Any]] | None = None,
) -> GraphData:
    if x.dtype.kind not in "biuf":
        raise GraphError(
            f"x is {x.dtype} {list(x.shape)}; expected real numbers [nodes, features]: of complex ones real and "
            "imaginary parts as columns"
        )
    if x.ndim == 2 and x.size and np.count_nonzero(x) < _SPARSE_BELOW * x.size and bool(np.isfinite(x).all()):
        features: SparseRows | NDArray[np.float32] = SparseRows.from_dense(x)
    else:
        features = x.astype(np.float32)
    classes = y.shape[1] if y.ndim == 2 else int(y.max(initial=0)) + 1
    graph = GraphData(
        edge_index=edge_index,
        x=features,
        y=y,
        split=split,
        num_classes=classes,
        directed=True,
        edge_weight=edge_weight,
        multigraph=edge_data is not None,
        edge_data=edge_data or {},
        node_data=node_data or {},
        name=name,
    ).validate()
    one_way = not directed and one_way_edge(graph.simple_in_edges) is not None
    if directed or (directed is None and one_way):
        return graph
    return graph.undirected() if one_way else dataclasses.replace(graph, directed=False)


def labels_of(y: NDArray[Any]) -> NDArray[Any]:
    """Convert labels to classes: [N] int64, NaN as -1; or [N, C] float32; zeros for real values.

    Raises:
        GraphError: The labels are not numbers.
    """
    if y.dtype.kind not in "biuf":
        raise GraphError(
            f"y is {y.dtype} {list(y.shape)}; expected numbers: classes from 0, such as "
            "torch.unique(..., return_inverse=True) or sklearn's LabelEncoder make of names"
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2:
        return y.astype(np.float32) if bool(np.isin(y, (0, 1)).all()) else np.zeros(len(y), np.int64)
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1, y)
        if bool((y != np.floor(y)).any()):
            return np.zeros(len(y), np.int64)
    return y.astype(np.int64)


def refuse_other_kinds(data: Any) -> None:
    """Raise unless the object is a `Data` of one node type with the sources and targets of its edges.

    Raises:
        GraphError: The object is not such a `Data`.
    """
    if isinstance(data, (list, tuple)):
        raise GraphError(
            f"got a {type(data).__name__} of {len(data)}; expected one Data object, such as dataset[0]"
        )
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        raise GraphError(
            f"got {type(data).__name__} with nodes of the types {', '.join(map(str, data.node_types))}; expected a "
            "Data object of one type of nodes and edges: call its to_homogeneous()"
        )
    if is_sparse(getattr(data, "edge_index", None)):
        raise GraphError(
            "edge_index is a sparse matrix; expected sources and targets, integers of shape [2, edges]: "
            "torch_geometric.utils.to_edge_index makes them of it"
        )
    if getattr(data, "edge_index", None) is None and getattr(data, "adj_t", None) is not None:
        raise GraphError(
            "the Data object holds adj_t in place of edge_index; leave out the transform ToSparseTensor"
        )


def _named_by_number(data: Any, nodes: int) -> dict[str, NDArray[np.bool_]]:
    """Masks of the nodes whose numbers the object has, under its own names for them."""
    return {
        name: mask_of(name, given, nodes)
        for name in INDEX_NAMES
        if (given := getattr(data, name, None)) is not None
    }


def _further_rows(data: Any) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Attributes of nodes and of edges, besides those that have a meaning of their own."""
    nodes: dict[str, NDArray[Any]] = {}
    edges: dict[str, NDArray[Any]] = {}
    names = list(data.keys()) if hasattr(data, "is_edge_attr") else ["edge_weight", "edge_attr"]
    for name in names:
        value = getattr(data, name, None)
        if value is None or name in _KNOWN or not hasattr(value, "shape"):
            continue
        if name in ("edge_weight", "edge_attr") or (
            hasattr(data, "is_edge_attr") and data.is_edge_attr(name)
        ):
            edges[name] = to_numpy(value)
        elif data.is_node_attr(name):
            nodes[name] = to_numpy(value)
    return nodes, edges
