"""Tensor-parallel modules with collectives of their own, for stages whose ranks are threads."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.runtime.pipeline.examples import WIDTH
from wirewise.plans import StagePlan
from wirewise.plans.sharding import chunked
from wirewise.runtime.pipeline import LayerGraph

HIDDEN = 8


class _Copied(torch.autograd.Function):
    """The identity; gradients are summed over the stage."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _summed(gradient, ctx.group), None


class _Summed(torch.autograd.Function):
    """The sum over the stage; gradients are whole on each rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _OnFirst(torch.autograd.Function):
    """The partial sum of a value that is whole on each rank: the first rank has it. Gradients are whole on all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: bool) -> Tensor:
        return x.clone() if first else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def _summed(x: Tensor, group: Any) -> Tensor:
    x = x.clone()
    group.allreduce([x]).wait()
    return x


class Block(nn.Module):
    """Two layers, the first split by its columns and the second by its rows, with a residual connection.

    Args:
        group: Ranks of the stage; None: one rank has all.
        adds: Whether the output is summed over the stage; otherwise ranks give partial sums.
    """

    def __init__(self, group: Any, *, adds: bool = True) -> None:
        super().__init__()
        up, down = nn.Linear(WIDTH, HIDDEN).double(), nn.Linear(HIDDEN, WIDTH, bias=False).double()
        parts, place = (group.size(), group.rank()) if group is not None else (1, 0)
        own = slice(*chunked(HIDDEN, parts, place))
        self.up, self.bias = (
            nn.Parameter(up.weight[own].detach().clone()),
            nn.Parameter(up.bias[own].detach().clone()),
        )
        self.down, self.norm = (
            nn.Parameter(down.weight[:, own].detach().clone()),
            nn.LayerNorm(WIDTH).double(),
        )
        self.group, self.adds, self.place = group, adds, place

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.group is not None:
            h = _Copied.apply(h, self.group)
        h = torch.tanh(h @ self.up.T + self.bias) @ self.down.T
        if self.group is not None and self.adds:
            h = _Summed.apply(h, self.group)
        if self.group is not None and not self.adds:
            return h + _OnFirst.apply(x, self.place == 0)
        return h + x


class Columns(nn.Module):
    """A layer without sharing that takes or gives a part of the columns."""

    def __init__(self, group: Any, *, gives: bool) -> None:
        super().__init__()
        whole = nn.Linear(WIDTH, WIDTH, bias=False).double().weight.detach()
        self.group, self.gives = group, gives
        own = slice(*chunked(WIDTH, group.size(), group.rank())) if group is not None else slice(None)
        self.weight = nn.Parameter((whole[own] if gives else whole[:, own]).clone())

    def forward(self, x: Tensor) -> Tensor:
        if self.group is None:
            return x @ self.weight.T
        if self.gives:
            return _Copied.apply(x, self.group) @ self.weight.T
        return _Summed.apply(x @ self.weight.T, self.group)


def groups_of(plan: StagePlan, rank: int, store: Any) -> Any:
    """The group of the ranks that share this rank's stage, as threads make it."""
    from tests.harness.threads import _group

    position, replica, place = plan.place_of(rank)
    ranks = plan.ranks[position][replica]
    if len(ranks) == 1:
        return None
    return _group(dist.PrefixStore(f"stage {position}.{replica}", store), place, len(ranks), 30.0)


def blocks(group: Any = None, count: int = 4) -> LayerGraph:
    torch.manual_seed(11)
    return LayerGraph([Block(group) for _ in range(count)])


def part_of(name: str, whole: Tensor, parts: int, place: int, shape: torch.Size) -> Tensor:
    """What a rank should have of a parameter of these modules: all, rows or columns."""
    if shape == whole.shape:
        return whole
    dim = next(d for d, size in enumerate(shape) if size != whole.shape[d])
    first, last = chunked(whole.shape[dim], parts, place)
    return whole.narrow(dim, first, last - first)
