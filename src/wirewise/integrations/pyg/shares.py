"""Each rank's share of a Data object: every attribute of its nodes and edges, as the user gave it.

Parts know the topology that decides who sends which rows, in which an edge counts once and a loop not at all. A share
keeps beside it every edge, loops and repeated ones included, and every attribute in its own type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from wirewise import graph as graphs
from wirewise.errors import InputError
from wirewise.graph import Part
from wirewise.graph.data import NO_SPLIT, TEST, TRAIN, VALIDATION

__all__ = ["MASKS", "load_share", "local_pairs", "part_pairs", "save_shares"]

MASKS = ("train_mask", "val_mask", "test_mask")


def save_shares(data: Data, folder: Path, world_size: int, *, seed: int, mask_column: int | None) -> None:
    """Partition `data` and write a part and a share for each rank.

    Raises:
        InputError: The object is not one homogeneous graph, or has masks of several splits and no column is chosen.
        GraphError: The graph cannot be used.
    """
    data = _checked(data, mask_column)
    whole = graphs.from_pyg(_topology(data))
    owner = graphs.partition(whole, world_size, seed=seed)
    graphs.save_parts(whole, owner, folder)
    by_target = torch.from_numpy(np.asarray(owner, dtype=np.int64))[data.edge_index[1]]
    for rank in range(world_size):
        own = torch.from_numpy(graphs.load_part(folder, rank, world_size).own_ids)
        torch.save(_share(data, own, (by_target == rank).nonzero()[:, 0]), folder / _name(rank))


def load_share(folder: Path, rank: int) -> dict[str, dict[str, Any]]:
    """What `save_shares` wrote for a rank: "nodes", "edges" (with `edge_index` in global ids), "graph"."""
    share: dict[str, dict[str, Any]] = torch.load(folder / _name(rank), weights_only=True)
    return share


def _name(rank: int) -> str:
    return f"share-{rank}.pt"


def _checked(data: Any, mask_column: int | None) -> Data:
    if isinstance(data, HeteroData):
        raise InputError(
            "got a HeteroData; expected a Data with one kind of nodes (see HeteroData.to_homogeneous)"
        )
    if getattr(data, "edge_index", None) is None and getattr(data, "adj_t", None) is not None:
        raise InputError(
            "the Data object holds adj_t in place of edge_index; leave out the transform ToSparseTensor"
        )
    missing = [key for key in ("edge_index", "x") if getattr(data, key, None) is None]
    if missing:
        raise InputError(
            f"the Data object has no {', '.join(missing)}; expected edge_index, x, and masks or split"
        )
    data = data.clone().cpu()
    for name in MASKS:
        mask = data.get(name)
        if mask is None:
            continue
        if mask.dim() == 2 and mask_column is None:
            raise InputError(f"{name} holds {mask.shape[1]} splits; say which by pyg.Job(..., mask_column=0)")
        data[name] = (mask[:, mask_column] if mask.dim() == 2 else mask).bool()
    return data


def _topology(data: Data) -> Data:
    """What the parts are made from: each edge once, and labels and a split that a part can hold."""
    nodes = len(data.x)
    plain = Data(x=data.x.detach(), edge_index=torch.unique(data.edge_index, dim=1))
    y = data.get("y")
    holds = y is not None and len(y) == nodes and (not y.is_floating_point() and y.numel() == nodes)
    plain.y = y.reshape(-1) if holds else torch.zeros(nodes, dtype=torch.int64)
    masks = [(code, data[m]) for code, m in zip((TRAIN, VALIDATION, TEST), MASKS, strict=True) if m in data]
    if masks:
        plain.split = torch.full((nodes,), NO_SPLIT, dtype=torch.uint8)
        for code, mask in reversed(masks):
            plain.split[mask] = code
    elif "split" in data:
        plain.split = data.split
    return plain


def _share(data: Data, own: Tensor, edges: Tensor) -> dict[str, dict[str, Any]]:
    share: dict[str, dict[str, Any]] = {"nodes": {}, "edges": {}, "graph": {}}
    for key, value in data.to_dict().items():
        if isinstance(value, Tensor) and key == "edge_index":
            share["edges"][key] = value[:, edges]
        elif isinstance(value, Tensor) and data.is_edge_attr(key):
            share["edges"][key] = value[edges]
        elif isinstance(value, Tensor) and data.is_node_attr(key):
            share["nodes"][key] = value[own]
        elif isinstance(value, (Tensor, int, float, str, bool)) and key != "num_nodes":
            share["graph"][key] = value
    return share


def part_pairs(part: Part) -> np.ndarray:
    """Edges of a part by local numbers, int64 [2, E]."""
    target = np.repeat(np.arange(part.num_own), np.diff(part.indptr))
    return np.stack([part.indices.astype(np.int64), target])


def local_pairs(edge_index: Tensor, part: Part) -> tuple[np.ndarray, Tensor]:
    """Edges by local numbers, by target and then as given, int64 [2, E]; and the order that brings them so."""
    ids = np.concatenate([part.own_ids, part.halo_ids])
    order = np.argsort(ids)
    local = order[np.searchsorted(ids[order], edge_index.numpy())]
    by_target = np.argsort(local[1], kind="stable")
    return local[:, by_target], torch.from_numpy(by_target)
