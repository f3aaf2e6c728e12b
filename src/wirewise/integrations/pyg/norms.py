"""Norms over all nodes of the graph: their moments are summed over ranks, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import norm

from wirewise.errors import InputError
from wirewise.integrations.pyg.sums import sum_over_ranks
from wirewise.integrations.pyg.view import GraphView

__all__ = ["depends_on_all_nodes", "spread"]


def depends_on_all_nodes(module: nn.Module) -> bool:
    """Whether the module's result for a node depends on all nodes, as in graph-wide norms."""
    if isinstance(module, norm.LayerNorm):
        return bool(module.mode == "graph")
    return isinstance(module, _GRAPH_WIDE) or bool(getattr(module, "allow_single_element", False))


def spread(module: nn.Module, name: str, view: GraphView, *, of_edges: bool) -> None:
    """Make a norm in this copy of the model take its moments over all ranks.

    Args:
        module: Module for which `depends_on_all_nodes` is true.
        name: Name of the module in the model.
        view: Local part of this rank.
        of_edges: Whether it belongs to a convolution, which may apply it to one row per edge.

    Raises:
        InputError: Its moments cannot be taken over ranks.
    """
    rule = _RULES.get(type(module))
    if rule is None or getattr(module, "allow_single_element", False):
        raise InputError(
            f"{name} is a {type(module).__name__}, whose statistics run over all nodes of one rank; use "
            "torch.nn.BatchNorm1d, torch.nn.LayerNorm, or GraphNorm, InstanceNorm, PairNorm, MeanSubtractionNorm or "
            "LayerNorm of torch_geometric.nn, which give the same result on one and on many ranks"
        )
    moments = _Moments(name, module, view, of_edges)

    def forward(x: Tensor, *rest: Any, **named: Any) -> Tensor:
        if any(value is not None for value in (*rest, *named.values())):
            raise InputError(
                f"{name} ({type(module).__name__}) is called with more than rows (a batch vector?); expected rows "
                "only, since all nodes belong to one graph"
            )
        # Left out of the proof, whose few rows have other moments.
        if view.recording is not None:
            return x
        return rule(module, x, moments)

    module.forward = forward  # type: ignore[method-assign]


class _Moments:
    """Means over the rows of all ranks."""

    def __init__(self, name: str, module: nn.Module, view: GraphView, of_edges: bool) -> None:
        self.name, self.kind, self.view, self.of_edges = name, type(module).__name__, view, of_edges

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of `rows`, [n, ...], over the rows of all ranks."""
        total, count = self.sum(rows)
        return total / count

    def sum(self, rows: Tensor) -> tuple[Tensor, int]:
        """Sum of `rows` over all ranks and their number; a collective call."""
        part, transport = self.view.part, self.view.transport
        count = torch.tensor([rows.shape[0], rows.shape[0] != part.num_own], dtype=torch.int64)
        transport.all_reduce(count, f"rows of {self.name}")
        number, strangers = count.tolist()
        whole = not strangers or (self.of_edges and number in self.view.edge_counts)
        if not whole:
            raise InputError(
                f"{self.name} ({self.kind}) got {number} rows over all ranks; expected a row for each of the "
                f"{part.num_nodes} nodes, since its statistics run over all of them. Apply it outside the convolution"
            )
        return sum_over_ranks(rows.sum(dim=0), transport, f"moments of {self.name}"), max(number, 1)


def _two_dimensional(module: nn.Module, x: Tensor) -> Tensor:
    if x.dim() != 2:
        raise InputError(
            f"a {type(module).__name__} got a tensor of shape {list(x.shape)}; expected [rows, width]"
        )
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _batch_norm(module: Any, given: Tensor, moments: _Moments) -> Tensor:
    x = _two_dimensional(module, given)
    fixed = module.running_mean is not None and not module.training
    if fixed:
        centred, variance = x - module.running_mean, module.running_var
    else:
        total, count = moments.sum(x)
        mean = total / count
        centred = x - mean
        variance = moments.mean(centred.square())
        if module.training and module.running_mean is not None:
            _remember(module, mean, variance, count)
    out = centred * (variance + module.eps).rsqrt()
    if module.weight is not None:
        out = out * module.weight + module.bias
    return out.to(given.dtype)


@torch.no_grad()
def _remember(module: Any, mean: Tensor, variance: Tensor, count: int) -> None:
    share = module.momentum
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if share is None:
            share = 1.0 / float(module.num_batches_tracked)
    module.running_mean.lerp_(mean, share)
    module.running_var.lerp_(variance * (count / max(count - 1, 1)), share)


def _graph_norm(module: Any, x: Tensor, moments: _Moments) -> Tensor:
    out = x - moments.mean(x) * module.mean_scale
    return module.weight * out / (moments.mean(out.square()) + module.eps).sqrt() + module.bias


def _pair_norm(module: Any, x: Tensor, moments: _Moments) -> Tensor:
    x = x - moments.mean(x)
    if module.scale_individually:
        return module.scale * x / (module.eps + x.norm(2, -1, keepdim=True))
    return module.scale * x / (module.eps + moments.mean(x.square().sum(-1))).sqrt()


def _mean_subtraction(module: Any, x: Tensor, moments: _Moments) -> Tensor:
    return x - moments.mean(x)


def _layer_norm(module: Any, x: Tensor, moments: _Moments) -> Tensor:
    x = x - moments.mean(x.flatten(1).mean(1))
    out = x / (moments.mean(x.flatten(1).square().mean(1)).sqrt() + module.eps)
    return out if module.weight is None else out * module.weight + module.bias


def _size_norm(module: Any, x: Tensor, moments: _Moments) -> Tensor:
    return x * moments.view.part.num_nodes**-0.5


_GRAPH_WIDE = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    norm.GraphNorm,
    norm.GraphSizeNorm,
    norm.HeteroBatchNorm,
    norm.HeteroLayerNorm,
    norm.MeanSubtractionNorm,
    norm.PairNorm,
)
"""Modules whose own result for a node depends on all nodes; PyG's BatchNorm and DiffGroupNorm hold one of torch."""

_RULES: dict[type, Callable[[Any, Tensor, _Moments], Tensor]] = {
    nn.BatchNorm1d: _batch_norm,
    nn.SyncBatchNorm: _batch_norm,
    norm.InstanceNorm: _batch_norm,
    norm.GraphNorm: _graph_norm,
    norm.GraphSizeNorm: _size_norm,
    norm.PairNorm: _pair_norm,
    norm.MeanSubtractionNorm: _mean_subtraction,
    norm.LayerNorm: _layer_norm,
}
