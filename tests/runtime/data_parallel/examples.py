"""Models, random plans for them, and training loops that tests share."""

from __future__ import annotations

import random
import threading

import torch
from torch import Tensor, nn

from wirewise.collective import Program
from wirewise.plans import Bucket, FusionPlan
from wirewise.runtime.collective.memory import Blocks, layout

_SEEDING = threading.Lock()


class Branching(nn.Module):
    """A net whose gradients do not get ready in the reverse order of its parameters, with a shared layer."""

    def __init__(self, width: int = 12, classes: int = 4) -> None:
        super().__init__()
        self.out = nn.Linear(width, classes)
        self.shared = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))
        self.again = self.shared
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] -> [rows, classes]"""
        x = torch.tanh(self.shared(x))
        return self.out(self.norm(torch.tanh(self.again(self.inner(x) + x))) * self.scale)


def sequential(width: int = 12, depth: int = 4, classes: int = 4) -> nn.Sequential:
    """A plain stack."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def convolutional() -> nn.Sequential:
    """Model with BatchNorm, whose statistics are buffers."""
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4)]
    return nn.Sequential(nn.Unflatten(1, (1, 6, 6)), *layers)


def plan_of(
    model: nn.Module, groups: list[list[str]], world_size: int, chunks: int = 1, **rest
) -> FusionPlan:
    """A plan with these groups of parameters."""
    size = {name: p.nbytes for name, p in model.named_parameters(remove_duplicate=False)}
    buckets = tuple(
        Bucket(parameters=tuple(g), size_bytes=sum(size[n] for n in g), chunks=chunks) for g in groups
    )
    return FusionPlan(world_size=world_size, planner="test", buckets=buckets, **rest)


def names_of(model: nn.Module) -> list[str]:
    """Names of the parameters, the last first, about as gradients get ready."""
    return [name for name, _ in model.named_parameters()][::-1]


def whole(model: nn.Module, world_size: int, **rest) -> FusionPlan:
    """All in one bucket."""
    return plan_of(model, [names_of(model)], world_size, **rest)


def random_plan(model: nn.Module, world_size: int, seed: int, **rest) -> FusionPlan:
    """Parameters in any order, in any number of buckets, in any number of chunks."""
    draw = random.Random(seed)
    names = names_of(model)
    if draw.random() < 0.5:
        draw.shuffle(names)
    cuts = sorted(draw.sample(range(1, len(names)), draw.randint(0, len(names) - 1)))
    groups = [names[a:b] for a, b in zip([0, *cuts], [*cuts, len(names)], strict=True)]
    return plan_of(model, groups, world_size, chunks=draw.choice([1, 1, 2, 3]), **rest)


def batch(rank: int, step: int, rows: int = 6, width: int = 12) -> tuple[Tensor, Tensor]:
    """Other rows on each rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, width, generator=generator), torch.randint(4, (rows,), generator=generator)


def made(build, seed: int = 0) -> nn.Module:
    """A model with the weights of the seed."""
    # Ranks that are threads share the generator.
    with _SEEDING, torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def mean_gradients(model: nn.Module, ranks: int, step: int = 0, width: int = 12) -> dict[str, Tensor]:
    """What all ranks must hold: gradients of the mean loss over all ranks, computed on one."""
    model.zero_grad()
    for rank in range(ranks):
        x, y = batch(rank, step, width=width)
        (nn.functional.cross_entropy(model(x), y) / ranks).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def sent(program: Program, numel: int) -> dict[tuple[int, int, int], int]:
    """Elements by source, target and step of an all-reduce of one segment."""
    bounds = layout(program, Blocks(torch.float32, {0: numel}, {})).bounds
    return {
        (m.source, m.target, m.step): sum(bounds[t.chunk][1] - bounds[t.chunk][0] for t in m.transfers)
        for m in program.messages()
    }
