"""Models of many shapes for the law that a distributed model computes what one process computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

with warnings.catch_warnings():
    # PyG scripts functions at import, which torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric import nn as g

FEATURES, CLASSES, HIDDEN = 12, 5, 16


@dataclass(frozen=True)
class Case:
    """One model of the law."""

    name: str
    make: Callable[[], nn.Module]
    edge_data: str = ""
    """Attribute of the data that the forward gets beside rows and edges."""
    refused: str = ""
    """Expected reason, part of the error's text; empty: it has to be computed."""


class Two(nn.Module):
    """Two convolutions and a head, with what people put between them."""

    def __init__(
        self,
        make: Callable[[int, int], nn.Module],
        norm: Callable[[int], nn.Module] | None = None,
        jump: str = "",
        residual: bool = False,
        between: Callable[[Tensor], Tensor] = F.relu,
    ) -> None:
        super().__init__()
        self.first, self.second = make(FEATURES, HIDDEN), make(HIDDEN, HIDDEN)
        self.norm = norm(HIDDEN) if norm else None
        self.jump = g.JumpingKnowledge(jump, HIDDEN, 2) if jump else None
        self.head = nn.Linear(2 * HIDDEN if jump == "cat" else HIDDEN, CLASSES)
        self.residual, self.between = residual, between

    def forward(self, x: Tensor, edge_index: Tensor, **edge_data: Tensor) -> Tensor:
        h = self.first(x, edge_index, **edge_data)
        if self.norm is not None:
            h = self.norm(h)
        h = self.between(h)
        last = F.relu(self.second(h, edge_index, **edge_data))
        if self.residual:
            last = last + h
        if self.jump is not None:
            last = self.jump([h, last])
        return self.head(last)


class Thrice(nn.Module):
    """One convolution that is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.conv, self.head = (
            nn.Linear(FEATURES, HIDDEN),
            g.SAGEConv(HIDDEN, HIDDEN),
            nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.inlet(x).relu()
        for _ in range(3):
            x = self.conv(x, edge_index).relu()
        return self.head(x)


class Tied(nn.Module):
    """Two layers of their own that hold one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.conv = nn.Linear(FEATURES, FEATURES), g.SAGEConv(FEATURES, FEATURES)
        self.outlet, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
        self.outlet.weight = self.inlet.weight

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.outlet(self.conv(self.inlet(x).relu(), edge_index).relu()))


class Branches(nn.Module):
    """Two convolutions side by side, and a second tensor returned."""

    def __init__(self, returns: type = tuple) -> None:
        super().__init__()
        self.left, self.right = g.SAGEConv(FEATURES, HIDDEN), g.GATConv(FEATURES, HIDDEN)
        self.head, self.returns = nn.Linear(2 * HIDDEN, CLASSES), returns

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        h = torch.cat([self.left(x, edge_index).relu(), self.right(x, edge_index).relu()], dim=1)
        return {"logits": self.head(h), "rows": h} if self.returns is dict else (self.head(h), h)


class EdgeNet(nn.Module):
    """Weights of edges learned from their features."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
        self.first, self.second = make(FEATURES, HIDDEN), make(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        weight = self.gate(edge_attr)[:, 0]
        return self.second(self.first(x, edge_index, weight).relu(), edge_index, weight)


class Own(g.MessagePassing):
    """A convolution of the user's with annotations of today."""

    def __init__(self, inputs: int, outputs: int, by_source_degree: bool = False) -> None:
        super().__init__(aggr="add")
        self.linear, self.by_source_degree = nn.Linear(inputs, outputs), by_source_degree

    def forward(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        if isinstance(x, Tensor):
            x = (x, x)
        source = self.linear(x[0])
        if self.by_source_degree:
            count = torch.zeros(len(source)).index_add(0, edge_index[0], torch.ones(edge_index.shape[1]))
            source = source / (count[:, None] + 1)
        return self.propagate(edge_index, x=(source, self.linear(x[1])))


class Plain(g.MessagePassing):
    """A convolution of the user's that takes one tensor."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(aggr="add")
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.linear(x))


class Nearest(Own):
    """A convolution that finds neighbours by itself."""

    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(x, torch.arange(4).view(2, 2))


class Between(nn.Module):
    """One convolution, then something of the user's that sees rows and edges."""

    def __init__(self, then: Callable[[Tensor, Tensor], Tensor], at_zero: bool = False) -> None:
        super().__init__()
        self.conv, self.head = g.SAGEConv(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.then, self.gain = then, nn.Parameter(torch.zeros(1) if at_zero else torch.ones(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv(x, edge_index).relu()
        return self.head(h + self.gain * self.then(h, edge_index))


class Stream(nn.Module):
    """A convolution that is called in a way of its own."""

    def __init__(self, conv: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.inlet, self.conv, self.head = nn.Linear(FEATURES, HIDDEN), conv, nn.Linear(HIDDEN, CLASSES)
        self.call = call

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.call(self.conv, self.inlet(x).relu(), edge_index))


def mlp(inputs: int, outputs: int, norm: bool = False) -> nn.Module:
    """Two layers, maybe with BatchNorm between."""
    middle = [nn.BatchNorm1d(outputs)] if norm else []
    return nn.Sequential(nn.Linear(inputs, outputs), *middle, nn.ReLU(), nn.Linear(outputs, outputs))


def pna(
    inputs: int, outputs: int, aggregators: tuple[str, ...] = ("mean", "min", "std"), **options: Any
) -> nn.Module:
    """Aggregations scaled by degrees."""
    degrees = torch.tensor([1, 3, 8, 20, 30, 20, 10])
    return g.PNAConv(
        inputs, outputs, list(aggregators), ["identity", "amplification", "linear"], degrees, **options
    )


def _two(conv: Any, edge_data: str = "", /, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Two(lambda i, o: conv(i, o, **options))


def _normed(norm: Callable[[int], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Two(g.SAGEConv, norm)


def _shared_aggregation() -> nn.Module:
    one = g.SoftmaxAggregation(learn=True)
    return Two(lambda i, o: g.SAGEConv(i, o, aggr=one))


def _sequential() -> nn.Module:
    steps = [
        (g.SAGEConv(FEATURES, HIDDEN), "x, e -> x"),
        nn.ReLU(),
        (g.SAGEConv(HIDDEN, CLASSES), "x, e -> x"),
    ]
    return g.Sequential("x, e", steps)


def _basic(kind: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(g.models, kind)(FEATURES, HIDDEN, 2, CLASSES, **options)


COMPUTED = [
    Case("SAGE", _two(g.SAGEConv)),
    Case("SAGE max", _two(g.SAGEConv, aggr="max")),
    Case(
        "Simple with loops",
        lambda: Stream(g.SimpleConv("mean", combine_root="self_loop"), lambda c, x, e: c(x, e)),
    ),
    Case("SAGE two aggregations", _two(g.SAGEConv, aggr=["mean", "max", "softmax"])),
    Case("SAGE one aggregation for both", _shared_aggregation),
    Case("SAGE project", _two(g.SAGEConv, project=True, normalize=True)),
    Case("GCN", _two(g.GCNConv)),
    Case("GCN no loops", _two(g.GCNConv, add_self_loops=False)),
    Case("GCN improved", _two(g.GCNConv, improved=True)),
    Case("GCN no normalization", _two(g.GCNConv, normalize=False)),
    Case("GCN cached", _two(g.GCNConv, cached=True)),
    Case("GCN edge_weight", _two(g.GCNConv), "edge_weight"),
    Case("GCN edge_weight no loops", _two(g.GCNConv, add_self_loops=False), "edge_weight"),
    Case("GCN learned weights", lambda: EdgeNet(g.GCNConv), "edge_attr"),
    Case("TAG", _two(g.TAGConv)),
    Case("TAG edge_weight", _two(g.TAGConv, K=2), "edge_weight"),
    Case("TAG learned weights", lambda: EdgeNet(lambda i, o: g.TAGConv(i, o, K=2)), "edge_attr"),
    Case("TAG no normalization", _two(g.TAGConv, K=2, normalize=False), "edge_weight"),
    Case("SG", _two(g.SGConv, K=2)),
    Case("SG no loops", _two(g.SGConv, K=3, add_self_loops=False), "edge_weight"),
    Case("SSG", _two(g.SSGConv, alpha=0.1, K=3)),
    Case("ARMA", _two(g.ARMAConv, num_stacks=2, num_layers=3)),
    Case("ARMA shared", _two(g.ARMAConv, num_layers=2, shared_weights=True), "edge_weight"),
    Case("APPNP", lambda: Stream(g.APPNP(3, 0.1), lambda c, x, e: c(x, e))),
    Case("LG", lambda: Stream(g.LGConv(), lambda c, x, e: c(c(x, e), e))),
    Case("EG", lambda: Two(lambda i, o: g.EGConv(i, o, num_heads=4))),
    Case("EG several", lambda: Two(lambda i, o: g.EGConv(i, o, ["symnorm", "max", "std"], num_heads=2))),
    Case("PNA", lambda: Two(lambda i, o: pna(i, o))),
    Case(
        "PNA edge_attr", lambda: Two(lambda i, o: pna(i, o, edge_dim=2, towers=2, post_layers=2)), "edge_attr"
    ),
    Case("ClusterGCN", _two(g.ClusterGCNConv)),
    Case("ClusterGCN diagonal", _two(g.ClusterGCNConv, diag_lambda=0.5)),
    Case("GCN2", lambda: Stream(g.GCN2Conv(HIDDEN, 0.1), lambda c, x, e: c(x, x, e))),
    Case(
        "GCN2 first rows",
        lambda: Stream(
            g.GCN2Conv(HIDDEN, 0.1, theta=0.5, layer=2, shared_weights=False),
            lambda c, x, e: c(c(x, x, e).relu(), x, e),
        ),
    ),
    Case("GraphConv", _two(g.GraphConv)),
    Case("GraphConv edge_weight", _two(g.GraphConv), "edge_weight"),
    Case("GraphConv learned weights", lambda: EdgeNet(g.GraphConv), "edge_attr"),
    Case("GAT", _two(g.GATConv)),
    Case("GAT heads", lambda: Two(lambda i, o: g.GATConv(i, o // 2, heads=2))),
    Case("GAT no loops", _two(g.GATConv, add_self_loops=False)),
    Case("GAT edge_attr", _two(g.GATConv, edge_dim=2, add_self_loops=False), "edge_attr"),
    Case("GAT edge_attr loops", _two(g.GATConv, edge_dim=2), "edge_attr"),
    Case("GATv2", _two(g.GATv2Conv)),
    Case("GATv2 one module for both sides", _two(g.GATv2Conv, share_weights=True)),
    Case("GATv2 edge_attr", _two(g.GATv2Conv, edge_dim=2), "edge_attr"),
    Case("GIN", lambda: Two(lambda i, o: g.GINConv(mlp(i, o), train_eps=True))),
    Case("GIN BatchNorm", lambda: Two(lambda i, o: g.GINConv(mlp(i, o, norm=True)))),
    Case("GINE", lambda: Two(lambda i, o: g.GINEConv(mlp(i, o), edge_dim=2)), "edge_attr"),
    Case("Transformer", _two(g.TransformerConv)),
    Case("Transformer edge_attr", _two(g.TransformerConv, edge_dim=2), "edge_attr"),
    Case("ResGated", _two(g.ResGatedGraphConv)),
    Case("EdgeConv", lambda: Two(lambda i, o: g.EdgeConv(mlp(2 * i, o)))),
    Case("EdgeConv BatchNorm", lambda: Two(lambda i, o: g.EdgeConv(mlp(2 * i, o, norm=True)))),
    Case("GEN", _two(g.GENConv)),
    Case("GEN edge_attr", _two(g.GENConv, edge_dim=2), "edge_attr"),
    Case("LEConv", _two(g.LEConv)),
    Case("MFConv", _two(g.MFConv)),
    Case("General", _two(g.GeneralConv)),
    Case("FiLM", _two(g.FiLMConv)),
    Case("FeaSt", _two(g.FeaStConv)),
    Case("CGConv", lambda: Stream(g.CGConv(HIDDEN), lambda c, x, e: c(x, e))),
    Case("NNConv", lambda: Two(lambda i, o: g.NNConv(i, o, nn.Linear(2, i * o))), "edge_attr"),
    Case("Own", _two(Own)),
    Case("BatchNorm1d", _normed(nn.BatchNorm1d)),
    Case("BatchNorm", _normed(g.BatchNorm)),
    Case("GraphNorm", _normed(g.GraphNorm)),
    Case("InstanceNorm", _normed(g.InstanceNorm)),
    Case("PairNorm", _normed(lambda h: g.PairNorm())),
    Case("PairNorm individually", _normed(lambda h: g.PairNorm(scale_individually=True))),
    Case("MeanSubtractionNorm", _normed(lambda h: g.MeanSubtractionNorm())),
    Case("DiffGroupNorm", _normed(lambda h: g.DiffGroupNorm(h, 2))),
    Case("GraphSizeNorm", _normed(lambda h: g.GraphSizeNorm())),
    Case("LayerNorm graph", _normed(g.LayerNorm)),
    Case("LayerNorm node", _normed(lambda h: g.LayerNorm(h, mode="node"))),
    Case("LayerNorm torch", _normed(nn.LayerNorm)),
    Case("jump cat", lambda: Two(g.SAGEConv, jump="cat", residual=True)),
    Case("jump lstm", lambda: Two(g.SAGEConv, jump="lstm")),
    Case("jump max", lambda: Two(g.SAGEConv, jump="max")),
    Case("thrice", Thrice),
    Case("tied", Tied),
    Case("tuple", Branches),
    Case("dict", lambda: Branches(dict)),
    Case("Sequential", _sequential),
    Case("models.GAT", _basic("GAT")),
    Case("models.GIN", _basic("GIN")),
    Case("models.GCN", _basic("GCN", norm="BatchNorm")),
    Case("models.EdgeCNN", _basic("EdgeCNN")),
    Case("models.GraphSAGE", _basic("GraphSAGE", jk="cat", norm="GraphNorm")),
]

REFUSED = [
    Case("Cheb", _two(g.ChebConv, K=2), refused="first is a ChebConv, which takes no pair"),
    Case("SG cached", _two(g.SGConv, cached=True), refused="first is a SGConv, which has cached=True"),
    Case(
        "first rows of other nodes",
        lambda: Stream(g.GCN2Conv(HIDDEN, 0.1), lambda c, x, e: c(x, x.flip(0), e)),
        refused="depend on other nodes' rows",
    ),
    Case(
        "PNA median",
        lambda: Two(lambda i, o: pna(i, o, ("median",))),
        refused="first is a PNAConv, which takes no",
    ),
    Case(
        "EG loops",
        lambda: Two(lambda i, o: g.EGConv(i, o, ["max"], num_heads=2)),
        refused="first is a EGConv, which takes no pair",
    ),
    Case("Plain", _two(Plain), refused="first is a Plain, which takes no pair"),
    Case("source degrees", _two(Own, by_source_degree=True), refused="holds first, a Own that"),
    Case("LSTM of neighbours", _two(g.SAGEConv, aggr="lstm"), refused="holds first, a SAGEConv that"),
    Case("no edges", _two(Nearest), refused="has no argument edge_index"),
    Case(
        "mean", lambda: Between(lambda h, e: h.mean(0, keepdim=True)), refused="depend on other nodes' rows"
    ),
    Case(
        "mean at zero",
        lambda: Between(lambda h, e: h.mean(0, keepdim=True), at_zero=True),
        refused="depend on other nodes' rows",
    ),
    Case(
        "pool",
        lambda: Between(lambda h, e: g.global_add_pool(h, None)),
        refused="depend on other nodes' rows",
    ),
    Case("flip", lambda: Between(lambda h, e: h.flip(0)), refused="depend on other nodes' rows"),
    Case(
        "position",
        lambda: Between(lambda h, e: h * torch.arange(len(h))[:, None]),
        refused="or on the number of a row",
    ),
    Case(
        "unknown norm",
        lambda: Two(g.SAGEConv, between=lambda h: h / h.std(0)),
        refused="depend on other nodes'",
    ),
    Case(
        "degree",
        lambda: Between(lambda h, e: h * torch.bincount(e[1], minlength=len(h))[:, None]),
        refused="edge_index of job.data",
    ),
    Case(
        "dropped edges",
        lambda: Stream(g.SAGEConv(HIDDEN, HIDDEN), lambda c, x, e: c(x, e[:, :0])),
        refused="edge_index of job.data",
    ),
    Case(
        "other edges",
        lambda: Stream(
            g.SAGEConv(HIDDEN, HIDDEN), lambda c, x, e: c(x, torch.zeros(2, 3, dtype=torch.int64))
        ),
        refused="called with other edges",
    ),
    Case(
        "attention of nodes",
        lambda: Stream(g.GPSConv(HIDDEN, g.SAGEConv(HIDDEN, HIDDEN), 2, norm=None), lambda c, x, e: c(x, e)),
        refused="depend on other nodes' rows",
    ),
]
