"""Training steps to pick regions from: of a given model, of seven small models of random widths, or random chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.profile.regions import PRIME
from wirewise.runtime.data_parallel.capture import Loss, capture, graph_of
from wirewise.trace.operators import FusionGraph

__all__ = ["SOURCES", "TransformerBlock", "captured_graph", "captured_step"]

_WIDTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 512)
_CLASSES = 10
_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    functional.gelu,
    functional.silu,
    functional.elu,
    functional.leaky_relu,
    functional.softplus,
    functional.hardtanh,
)


class _Activation(nn.Module):
    def __init__(self, random: Random) -> None:
        super().__init__()
        self._function = random.choice(_ACTIVATIONS)

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


def _mlp(random: Random) -> tuple[nn.Module, Any]:
    widths = random.choices(_WIDTHS, k=3)
    norms: tuple[Callable[[int], nn.Module], ...] = (nn.LayerNorm, nn.BatchNorm1d, nn.Identity)
    norm = random.choice(norms)
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), norm(b), _Activation(random))]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], _CLASSES))
    return model, (torch.randn(PRIME, widths[0]), _labels())


def _labels(count: int = PRIME) -> Tensor:
    return torch.randint(_CLASSES, (count,))


def _cnn(random: Random) -> tuple[nn.Module, Any]:
    a, b = random.choice([8, 16, 32]), random.choice([8, 16, 32, 64])
    norms: tuple[Callable[[int], nn.Module], ...] = (nn.BatchNorm2d, nn.BatchNorm2d, partial(nn.GroupNorm, 4))
    norm = random.choice(norms)
    model = nn.Sequential(
        nn.Conv2d(3, a, 3, padding=1, bias=random.random() < 0.5),
        norm(a),
        _Activation(random),
        random.choice([nn.AvgPool2d(2), nn.Identity()]),
        nn.Conv2d(a, b, 3, padding=1, stride=random.choice([1, 2])),
        norm(b),
        _Activation(random),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(b, _CLASSES),
    )
    side = random.choice([8, 12, 16, 24])
    return model, (torch.randn(PRIME, 3, side, side), _labels())


class TransformerBlock(nn.Module):
    """Transformer block with explicit attention, [rows, length, width] to the same shape."""

    def __init__(self, width: int, heads: int, activation: Callable[[Tensor], Tensor], widening: int) -> None:
        super().__init__()
        self.heads, self.activation = heads, activation
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, widening * width), nn.Linear(widening * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.mixed((weight @ v).transpose(1, 2).reshape(rows, length, width))
        return x + self.down(self.activation(self.up(self.second(x))))


class _Transformer(nn.Module):
    def __init__(self, random: Random, width: int) -> None:
        super().__init__()
        self.block = TransformerBlock(width, random.choice([2, 4]), _Activation(random), 2)
        self.out = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.block(x).mean(1))


def _transformer(random: Random) -> tuple[nn.Module, Any]:
    width = random.choice([32, 64, 96, 128])
    return _Transformer(random, width), (torch.randn(PRIME, random.choice([8, 16, 24, 48]), width), _labels())


class _Gnn(nn.Module):
    """Kipf and Welling's layers, or layers with attention, on a random graph."""

    def __init__(self, random: Random, width: int) -> None:
        super().__init__()
        self.attends, self.activation = random.random() < 0.5, _Activation(random)
        self.layer, self.out = nn.Linear(width, width), nn.Linear(width, _CLASSES)
        self.attention = nn.Parameter(torch.randn(2, width))

    def forward(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        x, source, target, weight = batch
        hidden = self.layer(x)
        left, right = (hidden @ self.attention.T).unbind(1)
        if self.attends:
            score = functional.leaky_relu(left[source] + right[target], 0.2).exp()
            total = torch.zeros_like(left).index_add(0, target, score)
            weight = weight * score / total[target]
        messages = hidden[source] * weight[:, None]
        x = torch.zeros_like(hidden).index_add(0, target, messages)
        return self.out(self.activation(x + left[:, None]))


def _gnn(random: Random) -> tuple[nn.Module, Any]:
    width = random.choice(_WIDTHS)
    edges = random.choice([3, 5, 8]) * PRIME
    batch = (
        torch.randn(PRIME, width),
        torch.randint(PRIME, (edges,)),
        torch.randint(PRIME, (edges,)),
        torch.rand(edges),
    )
    return _Gnn(random, width), (batch, _labels())


class _Gru(nn.Module):
    """A gated cell, three steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.out = nn.Linear(2 * width, 3 * width), nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            r, z, n = self.cell(torch.cat([x[:, step], h], -1)).chunk(3, -1)
            h = (1 - z.sigmoid()) * torch.tanh(n * r.sigmoid()) + z.sigmoid() * h
        return self.out(h)


def _gru(random: Random) -> tuple[nn.Module, Any]:
    width = random.choice(_WIDTHS[:8])
    return _Gru(width), (torch.randn(PRIME, 3, width), _labels())


class _Mixer(nn.Module):
    def __init__(self, random: Random, width: int, length: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.along, self.across = nn.Linear(length, length), nn.Linear(width, width)
        self.activation, self.out = _Activation(random), nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.activation(self.along(self.first(x).transpose(1, 2))).transpose(1, 2)
        x = x + self.activation(self.across(self.second(x)))
        return self.out(x.amax(1))


def _mixer(random: Random) -> tuple[nn.Module, Any]:
    width, length = random.choice(_WIDTHS[1:8]), random.choice([8, 16, 32])
    return _Mixer(random, width, length), (torch.randn(PRIME, length, width), _labels())


class _Recommender(nn.Module):
    """Embeddings, a cross layer, and weights by squeeze and excitation."""

    def __init__(self, random: Random, width: int) -> None:
        super().__init__()
        self.table, self.activation = nn.Embedding(500, width), _Activation(random)
        self.cross, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, _CLASSES)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        found, dense = self.table(batch[0]), batch[1]
        pooled = found.sum(1) / found.norm(dim=1).clamp(min=0.1)
        crossed = dense * self.cross(pooled) + pooled
        return self.out(self.activation(crossed * torch.sigmoid(self.gate(crossed))))


def _recommender(random: Random) -> tuple[nn.Module, Any]:
    width = random.choice(_WIDTHS[:9])
    batch = (torch.randint(500, (PRIME, random.choice([4, 8]))), torch.randn(PRIME, width))
    return _Recommender(random, width), (batch, _labels())


SOURCES: dict[str, Callable[[Random], tuple[nn.Module, Any]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
    "gnn": _gnn,
    "gru": _gru,
    "mixer": _mixer,
    "recommender": _recommender,
}


def _loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return functional.cross_entropy(model(x), y)


def captured_graph(name: str, random: Random) -> tuple[fx.GraphModule, FusionGraph, dict[str, int]]:
    """Capture a step of a model or a random chain; returns it with its operators and integer bounds of each node.

    Args:
        name: One of `SOURCES`, or "chain".
        random: Random number generator of widths and structure.
    """
    torch.manual_seed(random.randrange(2**31))
    if name != "chain":
        model, batch = SOURCES[name](random)
        return captured_step(model, _loss, batch)
    module, inputs = _chain(random)
    (end,) = module.graph.find_nodes(op="output")
    graph = graph_of(module, {node: node.name for node in end.all_input_nodes}, "chain")
    return module, graph, _bounds(module, inputs)


def captured_step(
    model: nn.Module, loss: Loss, batch: Any
) -> tuple[fx.GraphModule, FusionGraph, dict[str, int]]:
    """Capture a step of any model; returns the same as `captured_graph`.

    Args:
        model: Model, none of whose widths is a multiple of `PRIME`.
        loss: Loss of the model and a batch.
        batch: Any nest of tensors, of `PRIME` samples or nodes; a length that is a multiple of it grows with the
            batch.

    Raises:
        InputError: The step cannot be captured, or it is ambiguous which sizes grow with the batch.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    if not any(_grows(leaf.shape) for leaf in leaves):
        shapes = ", ".join(str(list(leaf.shape)) for leaf in leaves)
        raise InputError(f"got a batch of {shapes}; expected {PRIME} samples: cut or repeat an example batch")
    widths = [name for name, p in (*model.named_parameters(), *model.named_buffers()) if _grows(p.shape)]
    if widths:
        raise InputError(
            f"a width of {widths[0]} is a multiple of {PRIME}, by which the batch is told from widths; "
            "take a width beside it for the samples"
        )
    found = capture(model, loss, batch)
    return found.module, found.operators, _bounds(found.module, found.inputs(model, batch))


def _grows(shape: Sequence[int]) -> bool:
    return any(length and length % PRIME == 0 for length in shape)


class _Bounds(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and not value.dtype.is_floating_point and value.numel():
            most = int(value.max()) + 1
            # What points into the batch grows with it.
            self.found[n.name] = -(-most // PRIME) * PRIME if 32 < most <= PRIME else most
        return value


def _bounds(module: fx.GraphModule, inputs: list[Tensor]) -> dict[str, int]:
    bounds = _Bounds(module)
    with torch.no_grad():
        bounds.run(*inputs)
    return bounds.found


_UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    *_ACTIVATIONS,
    torch.exp,
    torch.sqrt,
    torch.rsqrt,
    torch.abs,
    torch.neg,
    torch.square,
    torch.log1p,
    torch.reciprocal,
    torch.erf,
    torch.cos,
    lambda x: x * 0.5,
    lambda x: x + 1.5,
    lambda x: x.clamp(0.0, 0.5),
    lambda x: x**3,
)
_BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.add,
    torch.mul,
    torch.mul,
    torch.sub,
    torch.div,
    torch.maximum,
    lambda x, y: torch.where(x > y, x, y * 0.1),
)
_WHOLE: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
    lambda x: x.softmax(-1),
    lambda x: x / x.sum(0, keepdim=True),
    lambda x: x - x.amax(-1, keepdim=True),
    lambda x: functional.layer_norm(x, x.shape[-1:]),
    lambda x: x * x.var(0, keepdim=True),
    lambda x: torch.cat([x, x.flip(-1)], -1)[..., ::2],
    lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
)


def _chain(random: Random) -> tuple[fx.GraphModule, list[Tensor]]:
    """Operators on one shape, with rows, columns and scalars of it as further inputs, and some reductions behind."""
    shape = [PRIME, random.choice(_WIDTHS)]
    if random.random() < 0.4:
        shape.insert(1, random.choice([3, 8, 16, 32]))
    shapes = [shape, shape, shape, shape[-1:], [*shape[:-1], 1], [1] * len(shape)]
    inputs = [torch.rand(random.choice(shapes) if i else shape) for i in range(random.randint(2, 5))]
    steps = [_step(random) for _ in range(random.randint(5, 20))]
    ends = [random.choice(["none", "rows", "columns", "all", "half"]) for _ in range(random.randint(1, 2))]

    def run(*inputs: Tensor) -> list[Tensor]:
        values = list(inputs)
        for function, places in steps:
            read = [values[int(len(values) * p**0.5)] for p in places]
            read[0] = read[0].expand(shape) if len(places) == 1 else read[0]
            values.append(function(*read))
        return [_ended(values[-1 - 3 * i if i * 3 < len(values) else -1], end) for i, end in enumerate(ends)]

    return make_fx(run, tracing_mode="fake")(*inputs), inputs


def _step(random: Random) -> tuple[Callable[..., Tensor], list[float]]:
    drawn = random.random()
    if drawn < 0.4:
        return random.choice(_UNARY), [random.random()]
    if drawn < 0.85:
        return random.choice(_BINARY), [random.random(), random.random()]
    return random.choice(_WHOLE), [random.random()]


def _ended(value: Tensor, end: str) -> Tensor:
    if end == "rows":
        return value.sum(-1)
    if end == "columns":
        return value.mean(0)
    if end == "all":
        return value.sum()
    return value.to(torch.bfloat16) if end == "half" else value + 1.0
