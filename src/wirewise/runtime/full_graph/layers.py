"""Graph convolutions with linear aggregation, whose work on own rows fully overlaps with the exchange.

The generic way (`wirewise.integrations.pyg`) serves any convolution; these layers additionally send the narrower side
of the weight (W first if the output is narrower), decode halo rows inside the aggregation, and sum own neighbours of
marginal nodes while their halo rows are in flight.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from wirewise.errors import InputError
from wirewise.graph import ops
from wirewise.runtime.full_graph.local import LocalGraph

__all__ = ["CONVOLUTIONS", "FullGraphNet", "GraphConvolution"]

CONVOLUTIONS = {"gcn": "gcn", "sage": "mean"}
"""Kind of aggregation of each built-in convolution. GCN: Kipf & Welling 2017, eq. 2. SAGE: Hamilton et al. 2017."""


class GraphConvolution(nn.Module):
    """Graph convolution: GCN, sum alpha_uv W h_u + b, or SAGE-mean, W_n mean(h_u) + W_s h_v + b.

    Args:
        inputs: Width of the input.
        outputs: Width of the output.
        convolution: "gcn" or "sage".
        layer: Index in the model; layer 0 reads the input features.
        last: Whether it is the last layer; otherwise `gain` and `shift` belong to the LayerNorm that follows.
    """

    def __init__(
        self, inputs: int, outputs: int, *, convolution: str, layer: int, last: bool = False
    ) -> None:
        super().__init__()
        if convolution not in CONVOLUTIONS:
            raise InputError(
                f"unknown convolution {convolution!r}; expected one of {', '.join(CONVOLUTIONS)}"
            )
        self.kind, self.layer = CONVOLUTIONS[convolution], layer
        self.project_first = layer > 0 and outputs < inputs
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.weight_self = nn.Parameter(torch.empty(outputs, inputs)) if convolution == "sage" else None
        self.bias = nn.Parameter(torch.zeros(outputs))
        # The norm's parameters lie beside the weights: gradients are reduced in reverse parameter order.
        self.gain = None if last else nn.Parameter(torch.ones(outputs))
        self.shift = None if last else nn.Parameter(torch.zeros(outputs))
        for weight in (self.weight, self.weight_self):
            if weight is not None:
                nn.init.xavier_uniform_(weight)


class FullGraphNet(nn.Module):
    """Stack of graph convolutions with LayerNorm, ReLU and dropout in between.

    Args:
        features: Width of the input features.
        hidden: Width of the hidden rows.
        classes: Width of the output.
        layers: Number of convolutions, at least 1.
        convolution: "gcn" or "sage".
        dropout: Probability of dropping a hidden value.
        norm: Whether to apply LayerNorm to hidden rows.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        classes: int,
        *,
        layers: int = 3,
        convolution: str = "gcn",
        dropout: float = 0.5,
        norm: bool = True,
    ) -> None:
        super().__init__()
        if layers < 1 or hidden < 1:
            raise InputError(f"got {layers} layers of width {hidden}; expected at least 1 of each")
        widths = [features, *[hidden] * (layers - 1), classes]
        self.dropout, self.norm = dropout, norm
        self.convolutions = nn.ModuleList(
            GraphConvolution(widths[i], widths[i + 1], convolution=convolution, layer=i, last=i == layers - 1)
            for i in range(layers)
        )

    @staticmethod
    def kept_widths(
        hidden: int, classes: int, layers: int, convolution: str = "sage"
    ) -> list[tuple[int, int, int]]:
        """Values held per own, marginal and halo row at peak memory, for each layer.

        That is early in the backward pass, or for GCN late in the forward pass. A hidden layer keeps the input of
        its norm with mean and deviation, and its output where a weight multiplies it. From the second layer on it
        keeps the sums over neighbours, those of marginal rows once more with the halo added, and computes gradients
        of halo rows, in one layer at a time. Two more matrices are in work in the last hidden layer, and four of
        the class width in the last layer. See `wirewise.graph.part_memory_bytes`.
        """
        last, project = layers - 1, classes < hidden
        widths = []
        for layer in range(last):
            sums = hidden if layer else 0
            output = hidden if convolution == "sage" or (project and layer == last - 1) else 0
            working = 2 * hidden if layer == last - 1 else 0
            gradients = hidden if layer and layer == last - 1 else 0
            widths.append((sums + hidden + 2 + output + working, sums, gradients))
        sums = hidden if last and not project else 0
        received = min(hidden, classes) if layers == 2 else 0
        return [*widths, (sums + 4 * classes, sums, received)]

    def forward(self, graph: LocalGraph) -> Float[Tensor, "own classes"]:
        """Logits of the own nodes, central first."""
        h = self._first(graph)
        for conv in list(self.convolutions)[1:]:
            h = self._later(graph, conv, h)
        return h

    def _first(self, graph: LocalGraph) -> Tensor:
        conv = self.convolutions[0]
        z = graph.inputs_linear(graph.tensors.aggregated_features(conv.kind), conv.weight, conv.bias)
        if conv.weight_self is not None:
            z = z + graph.inputs_linear(graph.tensors.own_features(), conv.weight_self)
        return self._activate(graph, conv, z, 0, graph.part.num_own)

    def _later(self, graph: LocalGraph, conv: GraphConvolution, h: Tensor) -> Tensor:
        neighbourhood, exchange = graph.tensors.neighbourhood(conv.kind), graph.exchange
        central, own = graph.part.num_central, graph.part.num_own
        if conv.project_first:
            rows, ticket = exchange.start(F.linear(h, conv.weight), conv.layer, neighbourhood=neighbourhood)
            skip = h
        else:
            rows, ticket = exchange.start(h, conv.layer, neighbourhood=neighbourhood)
            skip = rows
        z_central, z_marginal = neighbourhood.local(rows).split([central, own - central])
        skip_central, skip_marginal = (
            skip.split([central, own - central]) if conv.weight_self is not None else (None, None)
        )
        y_central = self._dense(graph, conv, z_central, skip_central, 0, central)
        z_marginal = neighbourhood.finish(exchange, ticket, z_marginal)
        y_marginal = self._dense(graph, conv, z_marginal, skip_marginal, central, own)
        return torch.cat([y_central, y_marginal])

    def _dense(
        self, graph: LocalGraph, conv: GraphConvolution, z: Tensor, skip: Tensor | None, low: int, high: int
    ) -> Tensor:
        """Everything after the aggregation, for own rows low to high."""
        z = z + conv.bias if conv.project_first else F.linear(z, conv.weight, conv.bias)
        if conv.weight_self is not None and skip is not None:
            z = torch.addmm(z, skip, conv.weight_self.t())
        return self._activate(graph, conv, z, low, high)

    def _activate(self, graph: LocalGraph, conv: GraphConvolution, z: Tensor, low: int, high: int) -> Tensor:
        """LayerNorm, ReLU and dropout; nothing after the last convolution."""
        if conv.layer == len(self.convolutions) - 1:
            return z
        return ops.norm_act_drop(
            z,
            conv.gain,
            conv.shift,
            p=self.dropout,
            key=graph.dropout_key(conv.layer),
            rows=graph.tensors.ids[low:high],
            norm=self.norm,
            training=graph.training,
        )
