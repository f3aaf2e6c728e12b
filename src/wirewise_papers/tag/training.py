"""Training under a plan on one rank, from the same initial weights as under every other plan.

A pass computes its result, and then sleeps until it has taken as long as on the emulated device, unless the job's
computing is real.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wirewise.plans.deployment import DeploymentPlan
from wirewise.runtime.deployment import Deployment
from wirewise.runtime.pipeline import LayerGraph
from wirewise.runtime.transport import Transport
from wirewise.trace.stages import StageTrace
from wirewise.trials.rank import Rank
from wirewise_papers.tag.job import BASELINES, COMPARED, DeploymentJob
from wirewise_papers.tag.models import example_of, layers_of, trace_of
from wirewise_papers.tag.records import TrainingFacts

__all__ = ["EmulatedTimes", "TorchReplica", "Training", "losses_of_one", "trainings"]

_MESSAGES = 25
"""Messages that are timed."""


class EmulatedTimes:
    """Emulated times of passes on the device of a rank."""

    def __init__(self, trace: StageTrace, plan: DeploymentPlan, rank: int) -> None:
        self._trace, self._speed = trace, plan.devices[rank].speed
        self._duplicated = {name for group in plan.groups for name in group.duplicated}
        self._products = {group.ops[0]: group.duplicated for group in plan.groups}
        self.slept = True
        """Whether passes take the emulated time; otherwise the real one."""

    def seconds(self, name: str, kind: str, rows: int) -> float:
        """Time of a pass of a module over rows, in seconds; arguments as in `runtime.deployment.Around`."""
        if not self.slept:
            return 0.0
        if kind == "product":
            found = sum(self._times(one, rows).weight_gradient_s for one in self._products[name])
        else:
            times = self._times(name, rows)
            weight = times.weight_gradient_s if name in self._duplicated else 0.0
            found = times.forward_s if kind == "forward" else times.backward_s - weight
        return found / self._speed

    def _times(self, name: str, rows: int) -> Any:
        return self._trace.times(self._trace.numbers[name], rows)

    @contextmanager
    def __call__(self, name: str, kind: str, rows: int) -> Iterator[None]:
        """Context of a pass that ends when the device would be done."""
        end_s = time.perf_counter() + self.seconds(name, kind, rows)
        yield
        time.sleep(max(end_s - time.perf_counter(), 0.0))


class _Behind(torch.autograd.Function):
    """The identity behind a module: before gradients go into the module, they wait for its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class _Paced(nn.Module):
    """A model whose modules take as long as on a device, for torch to replicate.

    Args:
        layers: The model's modules.
        pace: Seconds of their passes.
        rows: Rows of this rank.
    """

    def __init__(self, layers: LayerGraph, pace: EmulatedTimes, rows: int) -> None:
        super().__init__()
        self._layers, self._pace, self._rows = layers, pace, rows
        self.held = nn.ModuleList(layers.modules.values())

    def forward(self, *batch: Tensor) -> Tensor:
        values = dict(zip(self._layers.inputs, batch, strict=True))
        behind: Any = _Behind
        for name, module in self._layers.modules.items():
            start_s = time.perf_counter()
            with self._pace(name, "forward", self._rows):
                found = module(*(values[source] for source in self._layers.sources[name]))
                took_s = time.perf_counter() - start_s
            # What the arithmetic of the backward pass will take itself, about twice that of the forward pass.
            left_s = self._pace.seconds(name, "backward", self._rows) - 2 * took_s
            values[name] = behind.apply(found, max(left_s, 0.0)) if found.requires_grad else found
        return values[self._layers.output]


class TorchReplica:
    """DistributedDataParallel baseline with this rank's fraction of the rows; steps as in `Deployment`.

    Args:
        model: The model, called with a batch.
        plan: Plan that replicates everything on all ranks.
        rank: Index of this rank.
        layers: Modules of the model, needed with `pace`.
        pace: Emulated seconds of passes. Defaults to none: the model runs unpaced.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: DeploymentPlan,
        rank: int,
        layers: LayerGraph,
        pace: EmulatedTimes | None,
    ) -> None:
        (start, stop) = self._own = plan.groups[0].rows_of(plan.groups[0].ops[0], plan.batch)[rank]
        # torch takes the mean over ranks; weighted like this it is that over rows.
        self._share = (stop - start) / plan.batch
        self._weight = self._share * plan.world_size
        trained = model if pace is None else _Paced(layers, pace, stop - start)
        self._model = DistributedDataParallel(trained)

    def parameters(self) -> list[nn.Parameter]:
        """All parameters of the model."""
        return list(self._model.parameters())

    def step(self, *batch: Tensor) -> Tensor:
        """Run the forward and backward pass; returns this rank's partial sum of the mean loss."""
        self._model.zero_grad(set_to_none=True)
        loss: Tensor = self._model(*(one[slice(*self._own)] for one in batch))
        (loss * self._weight).backward()  # type: ignore[no-untyped-call]
        return loss.detach() * self._share

    def close(self) -> None:
        """Do nothing, as no resources are held."""


def _sgd(parameters: list[nn.Parameter]) -> Callable[[], Any]:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9).step if parameters else lambda: None


def losses_of_one(job: DeploymentJob) -> list[float]:
    """Losses of the first steps of one process with the whole batch."""
    model, batch = example_of(job)
    update, losses = _sgd(list(model.parameters())), []
    for _ in range(COMPARED):
        model.zero_grad()
        loss = model(*batch)
        loss.backward()
        update()
        losses.append(float(loss.detach()))
    return losses


class Training:
    """Training under one plan on one rank (`wirewise_papers.interleaved.Subject`).

    Args:
        rank: This process's rank.
        name: Name of its plan among those of the job.
        trace: Modules of the model with their times.
        losses: Losses of the first steps of one process.
    """

    def __init__(self, rank: Rank[DeploymentJob], name: str, trace: StageTrace, losses: list[float]) -> None:
        job, self._transport, self._losses = rank.job, rank.transport, losses
        plan = job.plans[name]
        model, self._batch = example_of(job)
        layers = layers_of(job, model)
        self._pace = pace = EmulatedTimes(trace, plan, rank.transport.rank) if job.measured is None else None
        self._trained: Any = (
            TorchReplica(model, plan, rank.transport.rank, layers, pace)
            if name in BASELINES
            else Deployment(layers, plan, around=pace, timeout_s=job.timeout_s)
        )
        self._update = _sgd(self._trained.parameters())
        self._partial_losses: list[float] = []

    def train(self, steps: int) -> Iterator[float]:
        """Train n steps; the first ones run unpaced, to open connections and compare losses."""
        if self._pace is not None:
            self._pace.slept = len(self._partial_losses) >= COMPARED
        for _ in range(steps):
            loss = self._trained.step(*self._batch)
            self._update()
            self._partial_losses.append(float(loss))
            yield self._partial_losses[-1]

    def outcome(self) -> TrainingFacts:
        """Compare the losses with those of one process, and time messages."""
        losses = self._transport.total(self._partial_losses[:COMPARED])
        worst = max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(losses, self._losses, strict=False))
        return TrainingFacts(loss_error=float(worst), message_s=_message_s(self._transport))

    def close(self) -> None:
        """End the training."""
        self._trained.close()


def _message_s(transport: Transport) -> float:
    """Mean seconds of a message that carries nothing: all-reduces of a number, each a chain of messages."""
    found = []
    for _ in range(_MESSAGES):
        transport.barrier("the begin of a message")
        start_s = time.perf_counter()
        transport.slowest(0.0, "a message that is timed")
        found.append(time.perf_counter() - start_s)
    return statistics.fmean(found) / max(2 * (transport.world_size - 1), 1)


def trainings(rank: Rank[DeploymentJob]) -> dict[str, Training]:
    """A training under each plan of the job."""
    trace, losses = trace_of(rank.job), losses_of_one(rank.job)
    return {name: Training(rank, name, trace, losses) for name in rank.job.plans}
