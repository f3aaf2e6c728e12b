"""One rank of a run of deployment plans: `-m wirewise.recipes.tag_worker FOLDER`.

It reads FOLDER/job.json, trains the same model from the same weights under every plan, in turns, and rank 0 writes what
all ranks measured. Numbers are computed; then a pass sleeps until it has taken as long as on the device that the rank
stands for, unless the job's computing is real.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wirewise.lab.counters import interface_bytes
from wirewise.plans.deployment import DeploymentPlan
from wirewise.recipes.tag_job import BASELINES, DeploymentJob
from wirewise.recipes.tag_models import example_of, layers_of, trace_of
from wirewise.results import DeploymentTimes
from wirewise.runtime.deployment import Deployment
from wirewise.runtime.pipeline import LayerGraph
from wirewise.runtime.transport import Transport
from wirewise.trace.stages import StageTrace
from wirewise.trials.rank import Rank, main
from wirewise.trials.windows import turns

__all__ = ["Pace", "TorchReplica", "losses_of_one", "work"]

_MESSAGES = 25
"""Messages that are timed."""
_COMPARED = 10
"""Steps whose losses are compared with those of one process."""


class Pace:
    """Seconds that passes take on the device of a rank."""

    def __init__(self, trace: StageTrace, plan: DeploymentPlan, rank: int) -> None:
        self._trace, self._speed = trace, plan.devices[rank].speed
        self._duplicated = {name for group in plan.groups for name in group.duplicated}
        self._products = {group.ops[0]: group.duplicated for group in plan.groups}
        self.slept = True
        """Whether passes take as long as there; otherwise as they do here."""

    def seconds(self, name: str, kind: str, rows: int) -> float:
        """Seconds of a pass of a module over so many rows; arguments as of `runtime.deployment.Around`."""
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

    def __init__(self, layers: LayerGraph, pace: Pace, rows: int) -> None:
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
    """The model under DistributedDataParallel with this rank's share of the rows; steps as of `Deployment`.

    Args:
        model: The model, called with a batch.
        plan: Plan that has everything on all ranks.
        rank: Number of this rank.
        layers: Modules of the model, with `pace`, where passes take as long as on a device.
        pace: Seconds of passes; None: those of the model as it is.
    """

    def __init__(
        self, model: nn.Module, plan: DeploymentPlan, rank: int, layers: LayerGraph, pace: Pace | None
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
        """Forward and backward pass; this rank's addend of the mean loss."""
        self._model.zero_grad(set_to_none=True)
        loss: Tensor = self._model(*(one[slice(*self._own)] for one in batch))
        (loss * self._weight).backward()  # type: ignore[no-untyped-call]
        return loss.detach() * self._share

    def close(self) -> None:
        """Nothing is open."""


def _sgd(parameters: list[nn.Parameter]) -> Callable[[], Any]:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9).step if parameters else lambda: None


def losses_of_one(job: DeploymentJob) -> list[float]:
    """Losses of the first steps of one process with the whole batch."""
    model, batch = example_of(job)
    update, losses = _sgd(list(model.parameters())), []
    for _ in range(_COMPARED):
        model.zero_grad()
        loss = model(*batch)
        loss.backward()
        update()
        losses.append(float(loss.detach()))
    return losses


class _Variant:
    """The model under one plan, and what was measured of it."""

    def __init__(self, rank: Rank[DeploymentJob], name: str, trace: StageTrace) -> None:
        job, self._transport = rank.job, rank.transport
        plan = job.plans[name]
        model, self._batch = example_of(job)
        layers = layers_of(job, model)
        self._pace = pace = Pace(trace, plan, rank.transport.rank) if job.measured is None else None
        self.trained: Any = (
            TorchReplica(model, plan, rank.transport.rank, layers, pace)
            if name in BASELINES
            else Deployment(layers, plan, around=pace, timeout_s=job.timeout_s)
        )
        self._update = _sgd(self.trained.parameters())
        self.steps_s: list[float] = []
        self.addends: list[float] = []
        self.bytes_sent = self.counted = 0

    def train(self, steps: int, *, measured: bool) -> None:
        """Some steps, each begun by all ranks at once; the first ones open connections, and nobody sleeps in them."""
        transport, seconds = self._transport, []
        if self._pace is not None:
            self._pace.slept = measured
        transport.barrier("the begin of a turn")
        before = interface_bytes()
        for _ in range(steps):
            transport.barrier("the begin of a step")
            start_s = time.perf_counter()
            loss = self.trained.step(*self._batch)
            self._update()
            seconds.append(time.perf_counter() - start_s)
            self.addends.append(float(loss))
        transport.barrier("the end of a turn")
        after = interface_bytes()
        if measured:
            self.steps_s += transport.slowest(seconds).tolist()
            self.counted += steps
            if before is not None and after is not None:
                self.bytes_sent += (after - before).tx_bytes

    def outcome(self, losses: list[float], message_s: float) -> DeploymentTimes:
        """What all ranks measured; the seconds of a message are those of `_message_s`."""
        found = self._transport.total(self.addends[:_COMPARED])
        worst = max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(found, losses, strict=False))
        sent = float(self._transport.total(float(self.bytes_sent)))
        return DeploymentTimes(
            steps_s=self.steps_s,
            bytes_sent=round(sent / max(self.counted, 1)),
            loss_error=float(worst),
            message_s=message_s,
        )


def _message_s(transport: Transport) -> float:
    """Mean seconds of a message that carries nothing: all-reduces of a number, each a chain of messages."""
    found = []
    for _ in range(_MESSAGES):
        transport.barrier("the begin of a message")
        start_s = time.perf_counter()
        transport.slowest(0.0, "a message that is timed")
        found.append(time.perf_counter() - start_s)
    return statistics.fmean(found) / max(2 * (transport.world_size - 1), 1)


def work(rank: Rank[DeploymentJob]) -> None:
    """Train under every plan and write what it took."""
    job = rank.job
    trace, losses = trace_of(job), losses_of_one(job)
    variants: Mapping[str, _Variant] = {name: _Variant(rank, name, trace) for name in job.plans}
    # Before the first turn every plan takes the steps whose losses are compared.
    for one in variants.values():
        one.train(_COMPARED, measured=False)
    for _, name in turns(list(variants), job.turns):
        variants[name].train(job.steps, measured=True)
        took = sorted(variants[name].steps_s)
        rank.log(f"{name}: {took[len(took) // 2]:.3f} s a step")
    message_s = _message_s(rank.transport)
    rank.outcome({name: one.outcome(losses, message_s) for name, one in variants.items()})
    for one in variants.values():
        one.trained.close()


if __name__ == "__main__":
    main(DeploymentJob, work, sys.argv[1])
