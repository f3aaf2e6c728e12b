"""Norms and other reductions of the gradients of all stages, as each rank computes them for its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wirewise.runtime.parallel.step import StepRunner
from wirewise.runtime.stage_gradients import GradientScope, Reduction
from wirewise.runtime.transport import Transport

__all__ = ["scope_of_stage"]

_INSTEAD = (
    "one norm of all gradients that all ranks take (torch.nn.utils.clip_grad_norm_, or the model's clip_grad_norm_), "
    "wirewise.runtime.parallel.GradScaler, and optimizers that look at each parameter by itself; or a plan of one stage"
)


def scope_of_stage(model: nn.Module, runner: StepRunner) -> GradientScope | None:
    """Scope of a rank's stage parameters among all stages. None if there is one stage.

    Args:
        model: Model with the parameters of this rank's stage.
        runner: This rank's part of the step.
    """
    world, plan = runner.world, runner.plan
    if plan.stages == 1 or world is None:
        return None
    stage, _ = plan.place_of(world.rank)
    scope = GradientScope(
        stage,
        len(runner.own_gradients),
        _INSTEAD,
        lambda numbers, reduction: _reduced(model, runner, world, scope, numbers, reduction),
    )
    return scope


def _reduced(
    model: nn.Module,
    runner: StepRunner,
    world: Transport,
    scope: GradientScope,
    numbers: dict[str, Tensor],
    reduction: Reduction,
) -> Tensor:
    """A reduction of one number a parameter of all stages, of which this rank has those of its own."""
    own = {name for name, p in model.named_parameters() if p.grad is not None}
    if own != set(numbers):
        raise scope.refusal(f"a reduction over {len(numbers)} of {len(own)} gradients")
    plan, slots = runner.plan, {name: n for n, name in enumerate(runner.graph.gradients)}
    stages = {runner.program.end_stage(number) for number in runner.graph.gradients.values()}
    if len(stages) < plan.stages:
        raise scope.refusal(
            f"a reduction in which stages without trained parameters take no part ({stages} do)"
        )
    values = torch.zeros(len(slots), 2, dtype=torch.float64)
    if world.rank == plan.ranks[scope.stage][0]:
        for name, number in numbers.items():
            values[slots[name]] = torch.tensor([float(number), 1.0], dtype=torch.float64)
    world.all_reduce(values, "the norms of the gradients of all stages")
    like = next(iter(numbers.values()))
    return reduction(values[values[:, 1] > 0, 0].to(like.dtype))
