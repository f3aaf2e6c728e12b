"""Conversion of the user's graph to parts, and of a part's nodes back to the user's attributes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from wirewise.errors import InputError
from wirewise.graph.splits import INDEX_NAMES, MASKS
from wirewise.integrations.pyg.edges import EdgeToken
from wirewise.integrations.pyg.own_rows import OwnRows
from wirewise.runtime import full_graph

__all__ = ["own_data", "prepare_data"]

_X_AS_GIVEN = "x_as_given"
_ABSENT = {"x": "x_absent", "y": "y_absent"}
"""Rows that parts hold where the user's graph has no such attribute: their format needs one."""
_SPLIT_NAMES = {
    "train": "train_mask",
    "val": "val_mask",
    "valid": "val_mask",
    "validation": "val_mask",
    "test": "test_mask",
}


def prepare_data(data: Any, split: Mapping[str, Any] | None) -> Any:
    """Copy the user's graph to a form from which parts can be made.

    The copy duplicates features that are not float32, the only dtype stored in parts; has zeros in place of missing
    features or labels; and without labels and masks, every node trains.

    Args:
        data: The user's Data.
        split: Nodes by "train", "valid" (or "val") and "test", as masks or node ids. Defaults to those of `data`.

    Raises:
        InputError: `split` has other names, or the number of nodes is unknown.
    """
    if data is None or not hasattr(data, "edge_index") or hasattr(data, "edge_types"):
        return data
    data = copy.copy(data)
    if split is not None:
        _set_split(data, split)
    x = getattr(data, "x", None)
    if isinstance(x, Tensor) and x.dtype != torch.float32:
        data[_X_AS_GIVEN] = x
    if x is None:
        data.x = torch.zeros(_count(data), 1)
        data[_ABSENT["x"]] = torch.ones(len(data.x), dtype=torch.bool)
    if getattr(data, "y", None) is None:
        nodes = len(data.x)
        data.y = torch.zeros(nodes, dtype=torch.int64)
        data[_ABSENT["y"]] = torch.ones(nodes, dtype=torch.bool)
        if not any(getattr(data, name, None) is not None for name in ("split", *MASKS, *INDEX_NAMES)):
            data.train_mask = torch.ones(nodes, dtype=torch.bool)
    return data


def _set_split(data: Any, split: Mapping[str, Any]) -> None:
    if unknown := sorted(set(split) - set(_SPLIT_NAMES)):
        raise InputError(
            f"split has the names {', '.join(unknown)}; expected train, valid (or val) and test, as "
            "dataset.get_idx_split() of OGB has them"
        )
    for name in ("split", *MASKS, *INDEX_NAMES):
        if getattr(data, name, None) is not None:
            data[name] = None
    for name, nodes in split.items():
        data[_SPLIT_NAMES[name]] = nodes


def _count(data: Any) -> int:
    """Number of nodes of a graph without features."""
    if getattr(data, "y", None) is not None:
        return len(data.y)
    stored = data.__dict__.get("_store", {})
    count = stored.get("num_nodes") if hasattr(stored, "get") else None
    if count is None:
        raise InputError(
            "the Data object has neither x nor y, and does not say how many nodes it has; expected num_nodes"
        )
    return int(count)


def own_data(tensors: full_graph.PartTensors, edges: int) -> Data:
    """Own nodes and their in-edges, with the user's attributes for each.

    Attributes that hold node ids (train_idx, ...) hold indices of own rows. Floating-point attributes other than
    labels are `OwnRows`, which refuse statistics over own rows.
    """
    part = tensors.part
    given = {**part.node_data, **part.edge_data}
    absent = {name for name, mark in _ABSENT.items() if given.pop(mark, None) is not None}
    own = Data(edge_index=EdgeToken.of(edges))
    own.x = None if "x" in absent else tensors.own_features()
    own.y = None if "y" in absent else tensors.y
    for name, rows in zip(MASKS, tensors.split_rows.values(), strict=True):
        own[name] = torch.zeros(part.num_own, dtype=torch.bool)
        own[name][rows] = True
    if part.edge_id is None and part.edge_weight is not None:
        own.edge_weight = torch.from_numpy(part.edge_weight.copy())
    for name, values in given.items():
        if name in absent:
            continue
        value = torch.from_numpy(np.array(values))
        if name in INDEX_NAMES:
            value = torch.nonzero(value)[:, 0]
        own["x" if name == _X_AS_GIVEN else name] = value
    for name in (*part.node_data, *part.edge_data, "x", "edge_weight"):
        # Counts of masks, classes and labels of own rows are what a script adds up over ranks itself.
        if isinstance(rows := own.get(name), Tensor) and rows.is_floating_point() and name != "y":
            own[name] = OwnRows.of(rows)
    own.n_id = tensors.ids
    if own.x is None:
        # PyG would look for it in edge_index, which answers no questions.
        own.num_nodes = part.num_own
    return own
