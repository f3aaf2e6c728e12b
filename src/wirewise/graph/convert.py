"""Graphs of other libraries as `GraphData`, by their attributes; the libraries are not imported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.graph.data import NO_SPLIT, TEST, TRAIN, VALIDATION, GraphData, SparseRows
from wirewise.graph.structure import in_edges, one_way_edge

__all__ = ["from_ogb", "from_pyg"]

_SPARSE_BELOW = 0.1


def from_pyg(
    data: Any, *, name: str = "pyg", directed: bool | None = None, mask_column: int = 0
) -> GraphData:
    """A `torch_geometric.data.Data` as a checked graph.

    Args:
        data: With `edge_index`, `x`, `y`, and either `train_mask`, `val_mask`, `test_mask` or `split` (0
            train, 1 validation, 2 test, 255 none). `edge_weight` is kept. `y` is [N], [N, 1] or 0/1 [N, C].
        name: Shown in reports.
        directed: None: undirected when every edge has its reverse.
        mask_column: Which split to take where masks are [N, splits].

    Raises:
        GraphError: An attribute is missing or not what training needs.
    """
    missing = [key for key in ("edge_index", "x", "y") if getattr(data, key, None) is None]
    if missing:
        raise GraphError(
            f"the Data object has no {', '.join(missing)}; expected edge_index, x, y and masks or split"
        )
    x = _numpy(data.x)
    y = _labels(_numpy(data.y))
    weight = getattr(data, "edge_weight", None)
    return _finish(
        edge_index=_numpy(data.edge_index),
        x=x,
        y=y,
        split=_split_of(data, len(y), mask_column),
        name=name,
        directed=directed,
        edge_weight=None if weight is None else _numpy(weight).astype(np.float32).reshape(-1),
    )


def from_ogb(dataset: Any, *, name: str) -> GraphData:
    """An `ogb.nodeproppred.NodePropPredDataset` as a checked graph; nodes without a label get no split.

    Raises:
        GraphError: The set has no node features (as ogbn-proteins), or is otherwise not usable.
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
        y=_labels(labels),
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
) -> GraphData:
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
        name=name,
    ).validate()
    if directed is None:
        directed = one_way_edge(in_edges(edge_index, graph.num_nodes)) is not None
    return graph if directed else graph.undirected()


def _labels(y: NDArray[Any]) -> NDArray[Any]:
    """[N] int64, NaN as -1; or [N, C] float32."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2:
        return y.astype(np.float32)
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1, y)
        if (broken := np.flatnonzero(y != np.floor(y))).size:
            raise GraphError(
                f"y of node {broken[0]} is {y[broken[0]]:g}; expected the number of a class, or 0/1 labels [N, C]. "
                "Real values (regression) are not supported"
            )
    return y.astype(np.int64)


def _split_of(data: Any, nodes: int, mask_column: int) -> NDArray[np.uint8]:
    given = getattr(data, "split", None)
    if given is not None:
        return _numpy(given).astype(np.uint8)
    split = np.full(nodes, NO_SPLIT, dtype=np.uint8)
    for key, value in (("train_mask", TRAIN), ("val_mask", VALIDATION), ("test_mask", TEST)):
        mask = getattr(data, key, None)
        if mask is None:
            if value == TRAIN:
                raise GraphError("the Data object has neither train_mask nor split; expected one of them")
            continue
        mask = _numpy(mask)
        if mask.ndim == 2:
            if not 0 <= mask_column < mask.shape[1]:
                raise GraphError(f"mask_column is {mask_column}; {key} has {mask.shape[1]} columns")
            mask = mask[:, mask_column]
        if mask.shape != (nodes,):
            raise GraphError(
                f"{key} has shape {list(mask.shape)}; expected one value for each of {nodes} nodes"
            )
        mask = mask.astype(bool)
        if (twice := np.flatnonzero(mask & (split != NO_SPLIT))).size:
            raise GraphError(
                f"{key} and another mask both hold node {twice[0]} ({twice.size} in all); expected each node in one "
                "of train_mask, val_mask and test_mask at most"
            )
        split[mask] = value
    return split


def _numpy(value: Any) -> NDArray[Any]:
    """A tensor (dense or sparse, on any device) or an array as a NumPy array."""
    if hasattr(value, "to_dense") and getattr(value, "layout", None) is not None:
        value = value.to_dense()
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
