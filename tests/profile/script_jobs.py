"""Training jobs of many kinds, as scripts write them; each returns its models once they are trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS, WARMUP = 8, 3


def samples(step: int, rank: int, width: int = 8) -> Tensor:
    return torch.randn(16, width, generator=torch.Generator().manual_seed(2 * step + rank))


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def gan(rank: int) -> list[nn.Module]:
    """Two models that are frozen in turn, as each learns while the other does not."""
    models = [DistributedDataParallel(mlp(8, 16)), DistributedDataParallel(mlp(16, 1))]
    optimizers = [torch.optim.Adam(model.parameters(), 1e-2) for model in models]
    generator, discriminator = models
    for step in range(STEPS):
        fake = generator(samples(step, rank))
        discriminator.requires_grad_(True)
        optimizers[1].zero_grad()
        (discriminator(fake.detach()).exp() - discriminator(samples(step, rank, 16))).mean().backward()
        optimizers[1].step()
        discriminator.requires_grad_(False)
        optimizers[0].zero_grad()
        discriminator(fake).square().mean().backward()
        optimizers[0].step()
    return models


def train(model: nn.Module, rank: int, *, clip: bool = False) -> list[nn.Module]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(samples(step, rank)).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return [model]


def tensor_parallel(_rank: int) -> list[nn.Module]:
    """One forward pass has one all-reduce; all ranks have the same samples."""
    model, mesh = mlp(8, 4), init_device_mesh("cpu", (2,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, 0, clip=True)


def sharded(rank: int) -> list[nn.Module]:
    return train(fully_shard(mlp(8, 4)), rank, clip=True)


def stepping_inside(rank: int) -> list[nn.Module]:
    """Each parameter has an optimizer of its own, which steps as soon as its gradient is there."""
    model = DistributedDataParallel(mlp(8, 4))
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], 1e-2)

        def step(_: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        parameter.register_post_accumulate_grad_hook(step)
    for step in range(STEPS):
        model(samples(step, rank)).square().mean().backward()
    return [model]


def unfrozen_later(rank: int) -> list[nn.Module]:
    model = mlp(8, 4)
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step in range(STEPS):
        model[0].requires_grad_(step >= WARMUP + 2)
        optimizer.zero_grad()
        model(samples(step, rank)).square().mean().backward()
        optimizer.step()
    return [model]


def sparse(rank: int) -> list[nn.Module]:
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        # A rank has other words, and another number of them, than its peer.
        model(torch.arange(2 + rank) + step).square().mean().backward()
        optimizer.step()
    return [model]


JOBS = [gan, tensor_parallel, sharded, stepping_inside, unfrozen_later, sparse]


def state(models: list[nn.Module]) -> list[Tensor]:
    parameters = [parameter.detach() for model in models for parameter in model.parameters()]
    return [one.full_tensor() if isinstance(one, DTensor) else one.clone() for one in parameters]
