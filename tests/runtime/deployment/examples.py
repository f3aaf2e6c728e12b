"""Models and plans of several kinds, and the training of one process that they are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests.harness.threads import run_ranks_as_threads
from wirewise.plans.deployment import DeployedDevice, DeployedGroup, DeploymentPlan
from wirewise.runtime.deployment import Deployment
from wirewise.runtime.pipeline import LayerGraph

BATCH = 8


class Skip(nn.Module):
    """A chain with a value that goes past a module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        return self.third(torch.cat([x, torch.tanh(self.second(x))], 1))


def chain() -> LayerGraph:
    torch.manual_seed(3)
    wide = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8))
    return LayerGraph(
        {"in": nn.Linear(6, 8), "wide": wide, "act": nn.LeakyReLU(inplace=True), "out": nn.Linear(8, 4)}
    )


def skip() -> LayerGraph:
    torch.manual_seed(4)
    return LayerGraph(Skip(), whole=["first", "second", "third"])


def group(
    ops: Sequence[str], rows: dict[int, int], communication: str = "allreduce", **more: Any
) -> DeployedGroup:
    """A group with rows by rank; under mp the owners say all."""
    if communication == "mp":
        return DeployedGroup(
            ops=tuple(ops), devices=tuple(sorted(set(more["owners"]))), communication="mp", **more
        )
    return DeployedGroup(
        ops=tuple(ops),
        devices=tuple(rows),
        rows=tuple(rows.values()),
        communication=communication,  # type: ignore[arg-type]
        **more,
    )


def plan_of(world: int, groups: Sequence[DeployedGroup], batch: int = BATCH) -> DeploymentPlan:
    devices = tuple(DeployedDevice(name=f"device{n}", host=f"host{n}") for n in range(world))
    plan = DeploymentPlan(
        world_size=world, planner="by hand", batch=batch, devices=devices, groups=tuple(groups),
        predicted_step_s=0.0, baseline_step_s=0.0, predicted_bytes=(0,) * world,
    )  # fmt: skip
    plan.check_itself()
    return plan


def batches(count: int, batch: int = BATCH) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(5)
    return [
        (torch.randn(batch, 6, generator=random), torch.randn(batch, 4, generator=random))
        for _ in range(count)
    ]


def one_process(
    model: LayerGraph, data: Sequence[tuple[Tensor, Tensor]], loss: Any = nn.functional.mse_loss
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and state at the end of a training without ranks."""
    layers = copy.deepcopy(model)
    own = list(dict.fromkeys(p for module in layers.modules.values() for p in module.parameters()))
    optimizer, losses = torch.optim.SGD(own, lr=0.1, momentum=0.9), []
    for x, y in data:
        values = dict(zip(layers.inputs, (x, y), strict=False))
        for name, module in layers.modules.items():
            values[name] = module(*(values[source] for source in layers.sources[name]))
        optimizer.zero_grad()
        mean = values[layers.output] if loss is None else loss(values[layers.output], y)
        mean.backward()
        optimizer.step()
        losses.append(float(mean.detach()))
    return losses, state_of(layers)


def state_of(layers: LayerGraph) -> dict[str, Tensor]:
    return {
        f"{name}.{part}": tensor.detach().clone()
        for name, module in layers.modules.items()
        for part, tensor in module.state_dict().items()
    }


def deployed(
    model: LayerGraph,
    plan: DeploymentPlan,
    data: Sequence[tuple[Tensor, Tensor]],
    look: Callable[[Deployment], Any] = lambda _: None,
    loss: Any = nn.functional.mse_loss,
) -> list[tuple[list[float], dict[str, Tensor], Any]]:
    """Losses and whole state on each rank of a training under a plan, and what a look at each rank's end finds."""

    def rank(number: int, bare: Any, store: Any) -> Any:
        layers = copy.deepcopy(model)
        deployment = Deployment(layers, plan, loss=loss, process_group=bare, store=store, timeout_s=20.0)
        own = deployment.parameters()
        optimizer = torch.optim.SGD(own, lr=0.1, momentum=0.9) if own else None
        losses = []
        for x, y in data:
            losses.append(deployment.total(deployment.step(x, y)))
            if optimizer is not None:
                optimizer.step()
        seen = look(deployment)
        deployment.align()
        deployment.close()
        return losses, state_of(layers), seen

    return run_ranks_as_threads(plan.world_size, rank)
