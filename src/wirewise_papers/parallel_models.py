"""Example models to parallelise, each with a batch.

Sizes are arguments; the defaults are those of tests. Widths, heads, experts, batches and nodes are multiples of 8, so
that 2, 4 and 8 ranks share any of them evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MODELS", "Example", "cnn", "gcn", "gpt", "mlp", "moe", "unet"]


class Example(NamedTuple):
    """Model and batch."""

    model: nn.Module
    """Model whose forward pass on the batch returns the loss, a scalar."""
    inputs: tuple[Tensor, ...]


def mlp(*, batch: int = 32, width: int = 32, widening: int = 4, layers: int = 2, seed: int = 0) -> Example:
    """Multilayer perceptron with widening layers, [batch, width] to the same shape; loss: mean squared error."""
    return _seeded(
        seed,
        lambda: _Mlp(width, widening, layers),
        lambda: (torch.randn(batch, width), torch.randn(batch, width)),
    )


def gpt(
    *,
    batch: int = 8,
    length: int = 16,
    width: int = 32,
    heads: int = 8,
    layers: int = 2,
    vocabulary: int = 64,
    dropout: float = 0.0,
    seed: int = 0,
) -> Example:
    """Language model with causal attention and fused query, key and value; loss: cross-entropy."""
    sizes = _Sizes(length, width, heads, layers, vocabulary, dropout)
    return _seeded(seed, lambda: _Gpt(sizes), lambda: _tokens(batch, length, vocabulary))


def moe(
    *,
    batch: int = 8,
    length: int = 16,
    width: int = 32,
    heads: int = 8,
    layers: int = 2,
    vocabulary: int = 64,
    experts: int = 8,
    capacity: int = 4,
    seed: int = 0,
) -> Example:
    """Language model with a mixture of experts in each block; loss: cross-entropy.

    Each token is routed to the expert with the highest gate value (switch routing). An expert takes at most `capacity`
    tokens of a text; further tokens bypass it, so shapes depend on no values.
    """
    sizes = _Sizes(length, width, heads, layers, vocabulary, 0.0)
    return _seeded(seed, lambda: _Gpt(sizes, experts, capacity), lambda: _tokens(batch, length, vocabulary))


def unet(*, batch: int = 8, side: int = 16, channels: int = 16, levels: int = 2, seed: int = 0) -> Example:
    """U-Net with skip connections, [batch, 3, side, side]; loss: mean squared error."""

    def images() -> Tensor:
        return torch.randn(batch, 3, side, side)

    return _seeded(seed, lambda: _UNet(channels, levels), lambda: (images(), images()))


def cnn(
    *,
    batch: int = 16,
    side: int = 16,
    channels: int = 16,
    hidden: int = 256,
    classes: int = 16,
    seed: int = 0,
) -> Example:
    """Convolutional network with two wide linear layers, like VGG; loss: cross-entropy."""
    return _seeded(
        seed,
        lambda: _Cnn(side, channels, hidden, classes),
        lambda: (torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))),
    )


def gcn(
    *,
    nodes: int = 64,
    edges: int = 256,
    width: int = 32,
    hidden: int = 64,
    layers: int = 2,
    classes: int = 16,
    seed: int = 0,
) -> Example:
    """Graph convolutional network on a random graph (Kipf and Welling); loss: cross-entropy over all nodes."""

    def batch() -> tuple[Tensor, ...]:
        source, target = torch.randint(nodes, (2, edges))
        degree = torch.bincount(torch.cat([source, target]), minlength=nodes).clamp(min=1).float()
        weight = (degree[source] * degree[target]).rsqrt()
        return torch.randn(nodes, width), source, target, weight, torch.randint(classes, (nodes,))

    return _seeded(seed, lambda: _Gcn([width, *[hidden] * (layers - 1), classes]), batch)


MODELS: dict[str, Callable[..., Example]] = {
    "mlp": mlp,
    "gpt": gpt,
    "moe": moe,
    "unet": unet,
    "cnn": cnn,
    "gcn": gcn,
}


def _seeded(seed: int, model: Callable[[], nn.Module], batch: Callable[[], tuple[Tensor, ...]]) -> Example:
    """Weights and a batch that are alike on all ranks; the random numbers of the caller stay what they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Example(model(), batch())


def _tokens(batch: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    text = torch.randint(vocabulary, (batch, length + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


class _Mlp(nn.Module):
    def __init__(self, width: int, widening: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Wide(width, widening) for _ in range(layers))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return functional.mse_loss(x, target)


class _Wide(nn.Module):
    """A layer that widens and one that narrows; keeps the shape [..., width]."""

    def __init__(self, width: int, widening: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, widening * width), nn.Linear(widening * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.down(functional.gelu(self.up(x)))
        return rows


class _Sizes(NamedTuple):
    length: int
    width: int
    heads: int
    layers: int
    vocabulary: int
    dropout: float


class _Gpt(nn.Module):
    def __init__(self, sizes: _Sizes, experts: int = 0, capacity: int = 0) -> None:
        super().__init__()
        width = sizes.width
        self.tokens, self.places = nn.Embedding(sizes.vocabulary, width), nn.Embedding(sizes.length, width)
        self.register_buffer("numbers", torch.arange(sizes.length))
        self.blocks = nn.ModuleList(_Block(sizes, experts, capacity) for _ in range(sizes.layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(self.numbers)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class _Block(nn.Module):
    """Attention, and two wide layers or a mixture of experts; keeps the shape [batch, length, width]."""

    def __init__(self, sizes: _Sizes, experts: int, capacity: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.attention = _Attention(sizes.width, sizes.heads)
        self.mlp = _Experts(sizes.width, experts, capacity) if experts else _Wide(sizes.width, 4)
        self.dropout = sizes.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attention(self.first(x)), self.dropout, self.training)
        return x + functional.dropout(self.mlp(self.second(x)), self.dropout, self.training)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._apart(part) for part in self.qkv(x).chunk(3, -1))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        rows: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return rows

    def _apart(self, rows: Tensor) -> Tensor:
        """[batch, length, width] to [batch, heads, length, width / heads]."""
        return rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _Experts(nn.Module):
    """Switch routing within each text; [texts, length, width] to the same."""

    def __init__(self, width: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * (4 * width) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        texts, length, _ = x.shape
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        # One row a token: 1 at its expert.
        numbers = torch.arange(self.up.shape[0], device=x.device)
        taken = (chosen.unsqueeze(-1) == numbers).to(x.dtype)
        place = (taken.cumsum(1) * taken).sum(-1) - 1
        places = torch.arange(self.capacity, device=x.device, dtype=x.dtype)
        seat = (place.unsqueeze(-1) == places).to(x.dtype)
        # [texts, experts, capacity, length]: the token that each place of an expert takes.
        route = (taken.unsqueeze(-1) * seat.unsqueeze(-2)).permute(0, 2, 3, 1)
        route = route.reshape(texts, -1, length)
        given = route.bmm(x).unflatten(1, (-1, self.capacity)).transpose(0, 1).flatten(1, 2)
        made = functional.gelu(given.bmm(self.up)).bmm(self.down)
        back = made.unflatten(1, (texts, -1)).transpose(0, 1).flatten(1, 2)
        return route.transpose(1, 2).bmm(back) * weight.unsqueeze(-1)


class _UNet(nn.Module):
    def __init__(self, channels: int, levels: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(levels + 1)]
        self.into = _Convolution(3, channels)
        self.downs = nn.ModuleList(_Convolution(a, b) for a, b in pairwise(widths))
        self.ups = nn.ModuleList(
            _Convolution(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.out = nn.Conv2d(channels, 3, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x, skips = self.into(x), []
        for down in self.downs:
            skips.append(x)
            x = down(functional.avg_pool2d(x, 2))
        for up in self.ups:
            # Each pixel twice in both directions.
            wide = x[..., :, None, :, None].expand(-1, -1, -1, 2, -1, 2).flatten(4, 5).flatten(2, 3)
            x = up(torch.cat([wide, skips.pop()], 1))
        return functional.mse_loss(self.out(x), target)


class _Convolution(nn.Module):
    def __init__(self, before: int, behind: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(before, behind, 3, padding=1), nn.GroupNorm(8, behind)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.convolution(x)))


class _Cnn(nn.Module):
    def __init__(self, side: int, channels: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(3, channels, 3, padding=1),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
        )
        self.wide = nn.Linear(2 * channels * (side // 4) ** 2, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for convolution in (self.first, self.second):
            x = functional.avg_pool2d(functional.relu(convolution(x)), 2)
        return functional.cross_entropy(self.out(functional.relu(self.wide(x.flatten(1)))), target)


class _Gcn(nn.Module):
    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, source: Tensor, target: Tensor, weight: Tensor, classes: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            rows: Any = layer(functional.relu(x) if number else x)
            x = torch.zeros_like(rows).index_add(0, target, rows[source] * weight.unsqueeze(-1)) + rows
        return functional.cross_entropy(x, classes)
