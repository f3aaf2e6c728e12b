"""Outputs of a trained model for all nodes, layer after layer in batches, on one rank or many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Data

from wirewise.errors import InputError
from wirewise.graph.sampling import NeighborSampler
from wirewise.integrations.pyg.neighbor_loader import NeighborLoader
from wirewise.integrations.pyg.sampled_loader import node_count

__all__ = ["inference"]

_Layer = Callable[[Tensor, Tensor, int], Tensor]
_MOST_HOPS = 4
_PROVED_NODES = 64
"""Nodes of a batch that is compared with batches of one node, before a layer runs on all."""
_ALONE = 16
"""Nodes whose rows are computed in two neighbourhoods."""
_TOLERANCE = 1e-4


@torch.no_grad()
def inference(
    model: nn.Module | Sequence[Callable[[Tensor, Tensor], Tensor]],
    data: Data,
    *,
    batch_size: int = 1024,
    device: torch.device | str | None = None,
    num_workers: int | None = None,
    group: dist.ProcessGroup | None = None,
    distributed: bool | None = None,
    timeout_s: float = 120.0,
) -> Tensor:
    """Outputs of all nodes, [N, ...], computed a layer at a time, so that no row is computed twice.

    A batch has all neighbours of its nodes. The number of hops that a layer needs is determined on a few nodes first:
    one for most convolutions, two for GCNConv, which reads the degrees of sources, K for TAGConv. With a process
    group, ranks share the nodes of each layer, and all of them get all outputs.

    Args:
        model: Model of PyG with `inference_per_layer` (GraphSAGE, GCN, GAT, GIN, ...), or a list of layers, each a
            function of x and edge_index such as a convolution or `lambda x, edges: conv(x, edges).relu()`.
        data: Graph with `x`, the same on all ranks. Layers get x and edge_index; weights of edges are not passed.
        batch_size: Nodes of a batch of this rank.
        device: Device on which layers run. Defaults to that of the model's parameters; outputs are on the CPU.
        num_workers: Threads that make batches ahead. Defaults to 1.
        group: Process group whose ranks share the nodes. Defaults to the default one if it is initialized.
        distributed: False if this rank computes all rows alone.
        timeout_s: Seconds after which a hung rank is an error on all others.

    Raises:
        InputError: The model is in training mode or has no layers to call, or rows of a layer depend on further nodes,
            as with norms over all nodes, or on chance.
    """
    layers, found = _layers(model), _device(model) if device is None else torch.device(device)
    if data.x is None:
        raise InputError("the Data object has no x; expected rows of features for the first layer")
    graph = Data(edge_index=data.edge_index, num_nodes=node_count(data))
    loader = NeighborLoader(
        graph,
        [-1],
        batch_size=batch_size,
        num_workers=num_workers,
        group=group,
        distributed=distributed,
        timeout_s=timeout_s,
    )
    x = data.x.cpu()
    for number, layer in enumerate(layers):
        _sample_hops(loader, _needed_hops(layer, number, loader, x, found))
        x = _all_rows(layer, loader, x, found)
    return x


def _all_rows(layer: _Layer, loader: NeighborLoader, x: Tensor, device: torch.device) -> Tensor:
    """Rows of a layer for all nodes, those of other ranks included."""
    out: Tensor | None = None
    for batch in loader:
        rows = layer(x[batch.n_id].to(device), batch.edge_index.to(device), batch.batch_size).cpu()
        if out is None:
            out = rows.new_zeros((loader.sampler.num_nodes, *rows.shape[1:]))
        out[batch.input_id] = rows
    assert out is not None
    if loader.transport is not None:
        # Every row is computed on one rank and zero on the others.
        loader.transport.all_reduce(out, "the rows of a layer")
    return out


def _needed_hops(layer: _Layer, number: int, loader: NeighborLoader, x: Tensor, device: torch.device) -> int:
    """Hops of neighbours beyond which rows of a layer stay what they are, and so do they beside other nodes."""
    nodes = np.random.default_rng(0).permutation(loader.sampler.num_nodes)[:_PROVED_NODES]
    rows = partial(_rows, layer, loader, x=x, device=device)
    # Each of them alone: together they would hold neighbours for each other that a batch of other nodes lacks.
    known = torch.cat([rows(node, 1) for node in nodes[:_ALONE, None]])
    for hops in range(1, _MOST_HOPS + 1):
        wider = torch.cat([rows(node, hops + 1) for node in nodes[:_ALONE, None]])
        if _equal(known, wider) and _equal(known, rows(nodes, hops)[:_ALONE]):
            return hops
        known = wider
    raise InputError(
        f"rows of layer {number} depend on nodes beyond {_MOST_HOPS} hops, on the other nodes of a batch or on chance; "
        "expected a layer that reads neighbours alone: compute norms over all nodes, pooling and attention on the "
        "whole graph"
    )


def _rows(
    layer: _Layer,
    loader: NeighborLoader,
    nodes: NDArray[np.int64],
    hops: int,
    *,
    x: Tensor,
    device: torch.device,
) -> Tensor:
    """Rows of a layer for some nodes."""
    sample = NeighborSampler(loader.sampler.edges, [-1] * hops, semantics="frontier").sample(nodes)
    edge_index = torch.from_numpy(sample.layers[0].edge_index())
    return layer(x[torch.from_numpy(sample.n_id)].to(device), edge_index.to(device), len(nodes))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    size = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * size, equal_nan=True)


def _sample_hops(loader: NeighborLoader, hops: int) -> None:
    """Set the number of hops of the loader, with all neighbours."""
    known = loader.sampler
    loader.sampler = NeighborSampler(known.edges, [-1] * hops, semantics=known.semantics, edge_ids=True)


def _layers(model: Any) -> list[_Layer]:
    parts = [model] if isinstance(model, nn.Module) else list(model)
    for part in parts:
        if getattr(part, "training", False):
            raise InputError(f"{type(part).__name__} is in training mode; call its eval() first")
    if not parts:
        raise InputError("there are no layers; expected one or more")
    if not hasattr(model, "inference_per_layer"):
        if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
            raise InputError(
                f"{type(model).__name__} has no inference_per_layer; expected a model of torch_geometric.nn.models, "
                "the module of a DistributedDataParallel, or a list of layers, each a function of x and edge_index"
            )
        return [partial(_seed_rows, layer) for layer in model]
    if getattr(model, "jk_mode", None) not in (None, "last"):
        raise InputError(
            f"{type(model).__name__} joins the outputs of its layers (jk={model.jk_mode!r}); expected jk=None or 'last'"
        )
    return [partial(model.inference_per_layer, number) for number in range(model.num_layers)]


def _seed_rows(
    layer: Callable[[Tensor, Tensor], Tensor], x: Tensor, edge_index: Tensor, seeds: int
) -> Tensor:
    return layer(x, edge_index)[:seeds]


def _device(model: Any) -> torch.device:
    parts = (
        [model] if isinstance(model, nn.Module) else [part for part in model if isinstance(part, nn.Module)]
    )
    return next((p.device for part in parts for p in part.parameters()), torch.device("cpu"))
