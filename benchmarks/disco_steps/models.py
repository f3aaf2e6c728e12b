"""Six models whose back-propagation takes about as long as their gradients do at 100 Mbit/s between two ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wirewise.trials.operators.models import TransformerBlock

CLASSES = 10
NODES, EDGES, WIDTH = 800, 6000, 256


def mlp() -> nn.Module:
    layers = [m for _ in range(5) for m in (nn.Linear(320, 320), nn.GELU(), nn.LayerNorm(320))]
    return nn.Sequential(*layers, nn.Linear(320, CLASSES))


def cnn() -> nn.Module:
    widths = [3, 32, 64, 64, 128, 128]
    layers = [
        m
        for i, (a, b) in enumerate(pairwise(widths))
        for m in (
            nn.Conv2d(a, b, 3, padding=1, stride=1 + (i == 2), bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(),
        )
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


class Lstm(nn.Module):
    """Two recurrent layers and a wide output, as of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(144, 144, num_layers=2, batch_first=True)
        self.out = nn.Linear(144, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TransformerBlock(128, 4, functional.gelu, 4) for _ in range(3)))
        self.out = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(x).mean(1))


class Gcn(nn.Module):
    """Kipf and Welling's layers on a random graph, normalised."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        ends = torch.randint(NODES, (2, EDGES), generator=generator)
        ends = torch.cat([ends, torch.arange(NODES).expand(2, -1)], 1)
        degree = torch.bincount(ends[1], minlength=NODES).float()
        self.register_buffer("source", ends[0].contiguous())
        self.register_buffer("target", ends[1].contiguous())
        self.register_buffer("weight", (degree[ends[0]] * degree[ends[1]]).rsqrt())
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(x)
            messages = hidden[self.source] * self.weight[:, None]
            x = torch.relu(torch.zeros_like(hidden).index_add(0, self.target, messages))
        return self.out(x)


class Gat(Gcn):
    """One head a layer."""

    def __init__(self) -> None:
        super().__init__(4)
        self.attention = nn.ParameterList(nn.Parameter(0.1 * torch.randn(2, WIDTH)) for _ in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer, attention in zip(self.layers, self.attention, strict=True):
            hidden = layer(x)
            left, right = (hidden @ attention.T).unbind(1)
            score = functional.leaky_relu(left[self.source] + right[self.target], 0.2).exp()
            total = torch.zeros(NODES).index_add(0, self.target, score)
            messages = hidden[self.source] * (score / total[self.target])[:, None]
            x = functional.elu(torch.zeros_like(hidden).index_add(0, self.target, messages))
        return self.out(x)


BUILDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (2048, 320)),
    "cnn": (cnn, (16, 3, 24, 24)),
    "lstm": (Lstm, (80, 32, 144)),
    "transformer": (Transformer, (32, 48, 128)),
    "gcn": (Gcn, (NODES, WIDTH)),
    "gat": (Gat, (NODES, WIDTH)),
}


def make(name: str, rank: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The model, with the same weights on all ranks, and this rank's batch."""
    build, shape = BUILDS[name]
    torch.manual_seed(0)
    model = build()
    generator = torch.Generator().manual_seed(rank + 1)
    x = torch.randn(shape, generator=generator)
    return model, (x, torch.randint(CLASSES, shape[:1], generator=generator))


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return functional.cross_entropy(model(x), y)
