"""GraphSAGE on sampled layers: mean over neighbours by the compiled kernels, in one pass over the rows.

W. Hamilton, R. Ying, J. Leskovec: Inductive Representation Learning on Large Graphs, NeurIPS 2017, with the mean of the
neighbours. The parameters are those of PyG's `SAGEConv` under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.graph.ops.backend import uses_numba
from wirewise.graph.ops.sparse_kernels import gather_rows, scatter_rows
from wirewise.graph.sampling import Layer

__all__ = ["Sage", "SageConvolution", "mean_of_neighbours"]

_NO_SCALE, _NO_BASE = np.empty(0, np.float32), np.empty((0, 0), np.float32)


def mean_of_neighbours(
    x: Float[Tensor, "sources d"], layer: Layer, *, implementation: str = "auto"
) -> Float[Tensor, "targets d"]:
    """Mean of each target's source rows, or zero if there are none; differentiable in x.

    Args:
        x: Rows, float32, one per source of the layer.
        layer: Layer of a sampled batch.
        implementation: "numba", "torch", or "auto": numba on the CPU, torch operations elsewhere.

    Raises:
        InputError: The rows do not fit the layer.
    """
    if len(x) != layer.num_sources or x.dtype != torch.float32:
        raise InputError(
            f"got rows {x.dtype} {tuple(x.shape)}; expected float32 of the layer's {layer.num_sources} sources"
        )
    mean: Tensor = _Mean.apply(x, layer) if uses_numba(implementation, x) else _mean_by_torch(x, layer)
    return mean


def _mean_by_torch(x: Tensor, layer: Layer) -> Tensor:
    source, target = torch.from_numpy(layer.edge_index()).to(x.device)
    share = torch.from_numpy(_shares(layer)[-1]).to(x.device)
    out = x.new_zeros(layer.num_targets, x.shape[1])
    return out.index_add(0, target, x[source] * share[:, None])


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer
        source = x.detach().contiguous().numpy()
        out = np.empty((layer.num_targets, source.shape[1]), np.float32)
        gather_rows(*_shares(layer), 0, source, _NO_SCALE, _NO_BASE, 1, False, out)
        return torch.from_numpy(out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        layer = ctx.layer
        out = np.zeros((layer.num_sources, grad.shape[1]), np.float32)
        scatter_rows(*_shares(layer), grad.detach().contiguous().numpy(), out)
        return torch.from_numpy(out), None


def _shares(layer: Layer) -> tuple[Any, ...]:
    """Begin and end of each target's edges, their sources, and one over the number of edges of the target."""
    degrees = np.diff(layer.indptr)
    share = np.repeat((1 / np.maximum(degrees, 1)).astype(np.float32), degrees)
    return layer.indptr[:-1], layer.indptr[1:], layer.sources, share


class SageConvolution(nn.Module):
    """SAGE convolution: a linear map of the neighbours' mean, plus one of the node itself.

    Args:
        features: Width of the input.
        width: Width of the output.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(features, width), nn.Linear(features, width, bias=False)

    def forward(self, x: Float[Tensor, "sources d"], layer: Layer) -> Float[Tensor, "targets w"]:
        """Output rows of the layer's targets."""
        mean = self.lin_l(mean_of_neighbours(x, layer))
        return torch.addmm(mean, x[: layer.num_targets], self.lin_r.weight.t())


class Sage(nn.Module):
    """GraphSAGE with one convolution per hop.

    Args:
        widths: Widths of the features, the hidden rows and the classes; [hops + 1].
        dropout: Probability of dropping a hidden value.
    """

    def __init__(self, widths: Sequence[int], dropout: float = 0.5) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(SageConvolution(a, b) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "n f"], layers: Sequence[Layer]) -> Float[Tensor, "seeds classes"]:
        """Class scores of a batch's seeds, from its rows and layers."""
        last = len(self.convolutions) - 1
        for place, (convolution, layer) in enumerate(zip(self.convolutions, layers, strict=True)):
            x = convolution(x, layer)
            if place < last:
                x = nn.functional.dropout(x.relu_(), self.dropout, self.training)
        return x
