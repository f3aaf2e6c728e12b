"""Six tiny models whose steps are captured, and plans with regions for them."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.nn import functional

from wirewise.plans import Bucket, FusionPlan
from wirewise.trace import FusionGraph

ROWS, CLASSES = 6, 3


class Transformer(nn.Module):
    """One layer on embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0, norm_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.embed(tokens)).mean(1))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class Graph(nn.Module):
    """Two layers on a graph that all ranks share; edges are buffers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        source, target = torch.randint(ROWS, (2, 15), generator=generator)
        own = torch.arange(ROWS)
        self.register_buffer("source", torch.cat([source, own]))
        self.register_buffer("target", torch.cat([target, own]))
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def gathered(self, x: Tensor, weight: Tensor) -> Tensor:
        message = x[self.source] * weight[:, None]
        return torch.zeros_like(x).index_add(0, self.target, message)


class Gcn(Graph):
    def __init__(self) -> None:
        super().__init__()
        degree = torch.bincount(self.target, minlength=ROWS).float()
        self.register_buffer("weight", (degree[self.source] * degree[self.target]).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.gathered(self.first(x), self.weight))
        return self.gathered(self.second(hidden), self.weight)


class Gat(Graph):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Parameter(torch.randn(2, 6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        left, right = (hidden @ self.attention.T).unbind(1)
        score = functional.leaky_relu(left[self.source] + right[self.target], 0.2).exp()
        total = torch.zeros(ROWS).index_add(0, self.target, score)
        return self.second(functional.elu(self.gathered(hidden, score / total[self.target])))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, CLASSES))


def cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, CLASSES))


BUILDS = {"mlp": mlp, "cnn": cnn, "lstm": Lstm, "transformer": Transformer, "gcn": Gcn, "gat": Gat}


def example(name: str, rank: int = 0, step: int = 0) -> tuple[Tensor, Tensor]:
    """A batch, another one on each rank and step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    y = torch.randint(CLASSES, (ROWS,), generator=generator)
    if name == "transformer":
        return torch.randint(11, (ROWS, 4), generator=generator), y
    shape = {"cnn": (ROWS, 1, 4, 4), "lstm": (ROWS, 5, 4)}.get(name, (ROWS, 4))
    return torch.randn(shape, generator=generator), y


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return functional.cross_entropy(model(x), y)


def alone() -> dist.ProcessGroup:
    """A group of this process only."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)


def in_regions(
    model: nn.Module, regions: tuple[tuple[str, ...], ...] = (), ranks: int = 1, buckets: int = 2
) -> FusionPlan:
    """A plan with these regions, and the gradients in so many buckets."""
    named = list(model.named_parameters())[::-1]
    size = -(-len(named) // buckets)
    groups = [named[i : i + size] for i in range(0, len(named), size)]
    return FusionPlan(
        world_size=ranks,
        planner="test",
        regions=regions,
        buckets=tuple(
            Bucket(parameters=tuple(n for n, _ in group), size_bytes=sum(p.nbytes for _, p in group))
            for group in groups
        ),
    )


def fused(graph: FusionGraph, longest: int = 10**6) -> tuple[tuple[str, ...], ...]:
    """All that follows each other up to an opaque operator, which is legal in a topological order."""
    groups: list[list[str]] = [[]]
    for one in graph.operators:
        if one.category == "opaque" or len(groups[-1]) == longest:
            groups.append([])
        if one.category != "opaque":
            groups[-1].append(one.name)
    return tuple(tuple(group) for group in groups if len(group) > 1)


def duplicated(graph: FusionGraph, seed: int) -> tuple[tuple[str, ...], ...]:
    """Regions of some length, each with copies of operators from outside that its own ones read."""
    draw = random.Random(seed)
    number = {one.name: i for i, one in enumerate(graph.operators)}
    regions: list[tuple[str, ...]] = []
    for region in fused(graph, draw.randint(2, 6)):
        inside = {number[name] for name in region}
        before = sorted({i for own in inside for i in graph.operators[own].inputs} - inside)
        copies = [i for i in before if graph.operators[i].category in ("pointwise", "view")]
        alone = [(graph.operators[i].name,) for i in copies if not _within(regions, graph.operators[i].name)]
        regions += [*alone, (*(graph.operators[i].name for i in copies), *region)]
    return tuple(regions)


def _within(regions: list[tuple[str, ...]], name: str) -> bool:
    return any(name in region for region in regions)


def calls(module: fx.GraphModule) -> list[str]:
    """Operators of a graph, by kind."""
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
