"""Models of this benchmark: many small tensors, and blocks with real activations whose time is slept."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay_accuracy"))

from workloads import Work
from workloads import make as make_layers

from wirewise.lab import VirtualLayer
from wirewise.lab.accelerator import _Slept

MANY = "many tensors"
LAYERS, TENSORS, ELEMENTS = 15, 12, 1_000

ROWS, LENGTH, WIDTH, HIDDEN, HEADS = 16, 32, 64, 256, 4
FORWARD_S, BACKWARD_S = 0.02, 0.04
FIXED_SHARE = 0.3
"""Share of a block's slept time that does not shrink with the batch."""
BFLOAT16_TIME = 0.5
"""Slept time in bfloat16 over that in float32."""


class ManyTensors(VirtualLayer):
    """A virtual layer whose weights are many tensors, as those of a block of a real network are."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.forward_s, self.backward_s = 0.002, 0.004
        for i in range(TENSORS):
            self.register_parameter(f"weight{i}", nn.Parameter(torch.zeros(ELEMENTS)))

    def forward(self, x: Tensor) -> Tensor:
        return _Slept.apply(x, torch.cat(list(self.parameters())), self.forward_s, self.backward_s)


def make(work: Work) -> tuple[nn.Module, tuple[int, ...]]:
    """Model and the shape of its input."""
    if work.model == MANY:
        return nn.Sequential(*(ManyTensors() for _ in range(LAYERS))), (4, 4)
    return make_layers(work)


class Mlp(nn.Module):
    """A block that holds its parameters itself, as a fused implementation does: one module of a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.up = nn.Parameter(0.05 * torch.randn(HIDDEN, WIDTH))
        self.down = nn.Parameter(0.05 * torch.randn(WIDTH, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        scale = _scale(x)
        x = _Pause.apply(x, scale * FORWARD_S, 0.0)
        return _Pause.apply(self.inside(x), 0.0, scale * BACKWARD_S)

    def inside(self, x: Tensor) -> Tensor:
        hidden = functional.linear(functional.layer_norm(x, (WIDTH,), self.norm), self.up)
        return x + functional.linear(functional.gelu(hidden), self.down)


class Transformer(Mlp):
    """Attention before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm = nn.Parameter(torch.ones(WIDTH))
        self.qkv = nn.Parameter(0.05 * torch.randn(3 * WIDTH, WIDTH))
        self.out = nn.Parameter(0.05 * torch.randn(WIDTH, WIDTH))

    def inside(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        qkv = functional.linear(functional.layer_norm(x, (WIDTH,), self.first_norm), self.qkv)
        q, k, v = qkv.view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, WIDTH)
        return super().inside(x + functional.linear(mixed, self.out))


BLOCKS = {"mlp blocks": (Mlp, 6), "transformer blocks": (Transformer, 4)}


def blocks(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind, count = BLOCKS[name]
    return nn.Sequential(*(kind() for _ in range(count)))


def batch(step: int, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, LENGTH, WIDTH, generator=torch.Generator().manual_seed(step))


def _scale(x: Tensor) -> float:
    """Factor of the slept time for this batch and this precision."""
    precision = BFLOAT16_TIME if torch.is_autocast_enabled("cpu") else 1.0
    return precision * (FIXED_SHARE + (1.0 - FIXED_SHARE) * len(x) / ROWS)


class _Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        if forward_s:
            time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if ctx.backward_s:
            time.sleep(ctx.backward_s)
        return grad, None, None
