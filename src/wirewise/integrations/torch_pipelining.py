"""Stages of `torch.distributed.pipelining` under wirewise's timetables.

schedule = StageSchedule(stage, n_microbatches=8, loss_fn=loss_fn)  # in place of torch's Schedule1F1B
schedule.step(x), schedule.step(), schedule.step(target=y, losses=losses)  # first, middle and last rank
optimizer.step()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Placement
from torch.optim import Optimizer

from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline import LayerGraph, Pipeline

__all__ = ["StageSchedule", "stage_layers"]

Boundary = tuple[DeviceMesh, Sequence[Placement]]


def stage_layers(stages: Sequence[PipelineStage], boundary: Boundary | None = None) -> LayerGraph:
    """Convert the stages of this rank to layers of a `Pipeline`, called "stage0" and so on; others are not held here.

    Args:
        stages: Stages of this rank, each of which takes one tensor and returns one.
        boundary: Mesh and placements of the DTensors between stages, as in tensor parallelism: ranks with the same
            shard send it to each other. None for plain tensors.

    Raises:
        InputError: Stages are of another kind, or there are none.
    """
    if not stages or not all(isinstance(one, PipelineStage) for one in stages):
        raise InputError(
            f"got {list(stages)}; expected stages of torch.distributed.pipelining (PipelineStage)"
        )
    count = stages[0].num_stages
    modules: list[nn.Module] = [nn.Identity() for _ in range(count)]
    for one in stages:
        modules[one.stage_index] = _Local(one.submod, boundary if one.stage_index else None)
    return LayerGraph({f"stage{number}": module for number, module in enumerate(modules)})


class StageSchedule:
    """Schedule that runs the stages of this rank under a timetable, like torch's; the optimizer is the user's own.

    Args:
        stages: The stage of this rank, or its stages if interleaved. Rank r of their group has stage r, or stages r,
            r + ranks and so on.
        n_microbatches: Microbatches of a step.
        loss_fn: Mean loss of a microbatch, from the last stage's output and the targets.
        style: Timetable with one version of the weights, such as "eager" or "interleaved". For "2bw", which steps the
            optimizer itself, pass `stage_layers` to a `Pipeline`.
        boundary: DTensors between stages, as in `stage_layers`.
        timeout_s: Seconds to wait for a message before its sender counts as hung.
    """

    def __init__(
        self,
        stages: PipelineStage | Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        *,
        style: str = "eager",
        boundary: Boundary | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        own = list(stages) if isinstance(stages, Sequence) else [stages]
        self._layers, self._loss_fn, self._timeout_s = stage_layers(own, boundary), loss_fn, timeout_s
        self._group, names = own[0].group, self._layers.names
        self._plan = partial(StagePlan.from_cuts, names, range(1, len(names)), style=style, chunks=len(own))
        self._microbatches = n_microbatches
        rank, plan = dist.get_rank(self._group), self._plan(microbatches=n_microbatches)
        wanted = [number for number, stage in enumerate(plan.stages) if stage.position == rank]
        found = [stage.stage_index for stage in own]
        if sorted(found) != wanted or plan.weight_versions > 1:
            raise InputError(
                f"rank {rank} of its group has stages {found} and style {style!r}; expected stages {wanted}, and one "
                "version of the weights"
            )
        self._first, self._last = 0 in wanted, len(names) - 1 in wanted
        self._pipeline: Pipeline | None = None
        self._kept: list[_Gradients] = []
        self._seen: list[tuple[Tensor, Tensor]] = []

    def step(self, *args: Tensor, target: Tensor | None = None, losses: list[Tensor] | None = None) -> Any:
        """Run forward and backward passes over a batch; gradients accumulate in the parameters' `grad`.

        Args:
            args: The batch, on the rank with the first stage.
            target: Targets, on the rank with the last stage, which alone returns the outputs of all microbatches.
            losses: List that receives the loss of each microbatch on that rank; cleared first.

        Raises:
            InputError: A batch is missing, or does not divide into the microbatches.
            PeerError: A peer is gone.
        """
        if len(args) != self._first or (target is None) == self._last:
            raise InputError(
                "the first rank alone gives step() one tensor, and the last alone gives it targets"
            )
        pipeline = self._pipeline = self._pipeline or self._made(len(args[0]) if args else 0)
        nothing = torch.empty(pipeline.plan.microbatches * pipeline.plan.microbatch_size, 0)
        self._seen.clear()
        list(pipeline.train([(args[0] if args else nothing, nothing if target is None else target)]))
        for kept in self._kept:
            kept.restore()
        if losses is not None and self._last:
            losses[:] = [loss for _, loss in self._seen]
        return torch.cat([output for output, _ in self._seen]) if self._last else None

    def close(self) -> None:
        """End all threads."""
        if self._pipeline is not None:
            self._pipeline.close()

    def _made(self, rows: int) -> Pipeline:
        size = torch.tensor([rows])
        # The first stage alone knows.
        dist.broadcast(size, group=self._group, group_src=0)
        if int(size) % self._microbatches or not int(size):
            raise InputError(f"the batch has {int(size)} rows; expected a multiple of {self._microbatches}")
        return Pipeline(
            self._layers,
            self._plan(microbatches=self._microbatches, microbatch_size=int(size) // self._microbatches),
            loss=self._loss,
            optimizer=self._keep,
            process_group=self._group,
            timeout_s=self._timeout_s,
        )

    def _keep(self, parameters: list[nn.Parameter]) -> Optimizer:
        self._kept = [_Gradients(parameters, {})]
        return self._kept[0]

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        loss = self._loss_fn(output, target)
        self._seen.append((output.detach(), loss.detach()))
        return loss


class _Gradients(Optimizer):
    """Keeps gradients where an optimizer would step with them."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._found = [(p, p.grad) for group in self.param_groups for p in group["params"]]

    def restore(self) -> None:
        for parameter, gradient in self._found:
            parameter.grad = gradient


class _Local(nn.Module):
    """A stage that takes and gives the parts of DTensors which this rank has."""

    def __init__(self, module: nn.Module, takes: Boundary | None) -> None:
        super().__init__()
        self.module, self._takes = module, takes

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(
            x if self._takes is None else DTensor.from_local(x, *self._takes, run_check=False)
        )
        return found.to_local() if isinstance(found, DTensor) else found
