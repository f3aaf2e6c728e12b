"""TAG as a baseline of a parallel run: its deployment on the same ranks and links."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from wirewise.lab import PacedOperators
from wirewise.planners.placement.tag import DeploymentProblem, plan_tag
from wirewise.plans.deployment import DeployedDevice, DeploymentPlan
from wirewise.runtime.deployment import Deployment
from wirewise.runtime.pipeline import LayerGraph
from wirewise.sim.operator_times import DeviceFigures
from wirewise.trace.stages import StageTrace
from wirewise_papers.parallel_models import MODELS
from wirewise_papers.rhino.job import SIZES, RhinoOptions
from wirewise_papers.tag.job import WHOLE
from wirewise_papers.tag.models import timed_trace
from wirewise_papers.tag.planning import lab_links

__all__ = ["DeployedMethod", "deployment_of"]


def deployment_of(options: RhinoOptions) -> DeploymentPlan:
    """Plan of TAG for the model of a run on its hosts; module times are those of the emulated accelerator.

    Raises:
        PlanError: No plan fits into memory.
    """
    trace = _trace(options.model, options.seed, options.device)
    devices = tuple(
        DeployedDevice(name=f"host{n}", host=f"host{n}", memory_bytes=1e6 * options.memory_mb)
        for n in range(options.hosts)
    )
    batch = trace.sizes[-1]
    return plan_tag(DeploymentProblem(trace, lab_links(options.rates), devices, batch), seed=options.seed)


@cache
def _trace(model: str, seed: int, device: DeviceFigures) -> StageTrace:
    example = MODELS[model](**SIZES[model], seed=seed)
    with PacedOperators(device):
        return timed_trace(_layers(model, example.model), example.inputs, model, repeats=1)


def _layers(model: str, module: nn.Module) -> LayerGraph:
    return LayerGraph(module, whole=WHOLE[model], several=True)


class DeployedMethod:
    """Training under a deployment plan, as a `ways.TrainingMethod`; every rank passes the whole batch.

    Args:
        options: Model and learning rate of the run.
        model: Model, identical on all ranks.
        inputs: The whole batch.
        plan: Plan of `deployment_of`.
        timeout_s: Time limit for each message, in seconds.
    """

    def __init__(
        self,
        options: RhinoOptions,
        model: nn.Module,
        inputs: Sequence[Tensor],
        plan: DeploymentPlan,
        timeout_s: float,
    ) -> None:
        self._trained, self._inputs = (
            Deployment(_layers(options.model, model), plan, timeout_s=timeout_s),
            inputs,
        )
        own = self._trained.parameters()
        # A rank that runs nothing has nothing to update.
        self._optimizer = torch.optim.SGD(own, lr=options.learning_rate, momentum=0.9) if own else None
        self._loss = torch.zeros(())

    def step(self) -> None:
        """Run forward pass, backward pass and optimizer step."""
        self._loss = self._trained.step(*self._inputs)
        if self._optimizer is not None:
            self._optimizer.step()

    def loss(self) -> float:
        """Loss of the last step, over the whole batch."""
        return self._trained.total(self._loss)
