"""Train a user's own PyTorch Geometric model on a partitioned graph.

    model = distribute(Net(...), graph)      # graph: a LocalGraph of this rank
    logits = model(x, edge_index)            # x: own rows; edge_index is ignored, the part's edges are used

Every convolution of the model is wrapped: boundary rows are sent, the convolution runs on the central nodes while
they travel, and on the marginal nodes when the halo rows are there. Convolutions that take a pair of source and
destination rows (SAGEConv, GATConv, GATv2Conv, GINConv, GraphConv, ...) are called that way; GCNConv, which does
not, is called on own and halo rows together with its weights computed from the degrees of the whole graph.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, MessagePassing

from wirewise.errors import InputError
from wirewise.graph import Part, edge_weights
from wirewise.runtime.full_graph.local import LocalGraph

__all__ = ["distribute"]


def distribute(model: nn.Module, graph: LocalGraph) -> nn.Module:
    """Wrap every convolution of `model` in place and return the model.

    Args:
        model: Called by the user as before, with the own rows of the part in place of all nodes.
        graph: What this rank holds.

    Raises:
        InputError: The model has no convolution, or one that cannot be split (several hops in one call, or
            a normalization over all nodes).
    """
    found = [name for name, module in model.named_modules() if isinstance(module, MessagePassing)]
    if not found:
        raise InputError(
            f"{type(model).__name__} has no torch_geometric.nn.MessagePassing module; nothing can be distributed"
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"{name} is a {type(module).__name__}, whose statistics run over all nodes of one rank; "
                "use LayerNorm, which gives the same result on one and on many ranks"
            )
    for layer, name in enumerate(found):
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], _HaloConv(model.get_submodule(name), graph, layer, name))
    return model


class _HaloConv(nn.Module):
    """One convolution of the user's, between exchanges."""

    def __init__(self, conv: nn.Module, graph: LocalGraph, layer: int, name: str) -> None:
        super().__init__()
        self.conv, self.layer = conv, layer
        object.__setattr__(self, "graph", graph)
        self.paired = _takes_pair(conv)
        part = graph.part
        weights = None
        if isinstance(conv, GCNConv):
            weights = _take_over_normalization(conv, part)
        elif not self.paired:
            raise InputError(
                f"{name} is a {type(conv).__name__}, which takes no pair of source and destination rows; expected "
                "GCNConv or a convolution whose forward accepts (x_source, x_target), such as SAGEConv or GATConv"
            )
        self._edges = _Edges(part, weights, self_loops=weights is not None, device=graph.tensors.device)

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """Rows of the own nodes, [own, D]; edges given by the caller are replaced by the part's."""
        graph = self.graph
        if self.layer == 0 and not x.requires_grad and x is graph.tensors.own_features():
            return self._whole(graph.tensors.features())
        own, ticket = graph.exchange.start(x, self.layer)
        if not self.paired:
            return self._whole(torch.cat([own, graph.exchange.finish(ticket)]))
        central = graph.part.num_central
        y_central = self.conv((own, own[:central]), self._edges.central) if central else None
        rows = torch.cat([own, graph.exchange.finish(ticket)])
        if central == len(own):
            assert y_central is not None
            # Nothing is marginal, yet the halo (empty) stays part of the autograd graph.
            return y_central + rows[:0].sum()
        y_marginal = self.conv((rows, own[central:]), self._edges.marginal)
        return y_marginal if y_central is None else torch.cat([y_central, y_marginal])

    def _whole(self, rows: Tensor) -> Tensor:
        """All own nodes in one call, from rows of own and halo nodes."""
        own, edges = self.graph.part.num_own, self._edges
        if self.paired:
            return self.conv((rows, rows[:own]), edges.all)
        return self.conv(rows, edges.all, edges.weight)[:own]


class _Edges:
    """Local edge lists [2, E]: of all, of central and of marginal nodes (numbered from 0)."""

    def __init__(self, part: Part, weights: Any, *, self_loops: bool, device: torch.device) -> None:
        target = np.repeat(np.arange(part.num_own), np.diff(part.indptr))
        pairs = np.stack([part.indices.astype(np.int64), target])
        split = int(part.indptr[part.num_central])
        self.central = torch.from_numpy(pairs[:, :split].copy()).to(device)
        marginal = pairs[:, split:].copy()
        marginal[1] -= part.num_central
        self.marginal = torch.from_numpy(marginal).to(device)
        self.weight = None
        if self_loops:
            weight, self_weight = weights
            loops = np.arange(part.num_own)
            pairs = np.concatenate([pairs, np.stack([loops, loops])], axis=1)
            self.weight = torch.from_numpy(np.concatenate([weight, self_weight])).to(device)
        self.all = torch.from_numpy(pairs).to(device)


def _takes_pair(conv: nn.Module) -> bool:
    """Whether the annotation of `x` in the convolution's forward names a pair of tensors."""
    parameter = next(iter(inspect.signature(conv.forward).parameters.values()))
    return "Pair" in str(parameter.annotation) or "Tuple" in str(parameter.annotation)


def _take_over_normalization(conv: GCNConv, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """GCNConv would normalize by the degrees of the local edges; give it the weights of the whole graph instead."""
    if not conv.normalize:
        return edge_weights(part, "sum")
    if not conv.add_self_loops or conv.improved:
        raise InputError(
            f"GCNConv(add_self_loops={conv.add_self_loops}, improved={conv.improved}) is not supported; "
            "expected the defaults (self loops of weight 1) or normalize=False"
        )
    conv.normalize = False
    return edge_weights(part, "gcn")
