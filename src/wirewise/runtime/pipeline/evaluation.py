"""Evaluation through the stages without gradients: output and loss of whole batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline.feed import pad_rows
from wirewise.runtime.pipeline.stage import OUTPUT, StageCompute
from wirewise.runtime.pipeline.values import ValueExchange

__all__ = ["EvaluationResult", "evaluate_batch", "evaluation_mode"]


class EvaluationResult(NamedTuple):
    """Result of evaluating a batch."""

    loss: float | None
    """Loss of the whole batch, on ranks with the last stage and of batches with targets; None elsewhere."""
    output: Tensor | None
    """Output of the model, such as logits, [rows, ...], on ranks with the last stage; None elsewhere. Where ranks share
    that stage and split its output, this rank's part."""


@contextmanager
def evaluation_mode(stages: Mapping[int, StageCompute]) -> Iterator[None]:
    """Set modules of stages to evaluation mode, without gradients; their modes are restored afterwards."""
    modules = [one for stage in stages.values() for top in stage.modules.values() for one in top.modules()]
    modes = [one.training for one in modules]
    for module in modules:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def evaluate_batch(
    inputs: Mapping[str, Tensor],
    targets: Tensor | None,
    *,
    stages: Mapping[int, StageCompute],
    values: ValueExchange,
    plan: StagePlan,
    update: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> EvaluationResult:
    """Run a batch through this rank's stages, microbatch by microbatch.

    The last microbatch is padded with copies of its last row, which are removed from the output.

    Args:
        inputs: Inputs by name, [rows, ...]; ranks whose stages read none need only their number of rows.
        targets: Targets, [rows, ...]; None if no loss is requested.
        stages: This rank's stages by index.
        values: Values sent between stages.
        plan: Plan, which defines the microbatch size.
        update: Number of the next update, used in message keys.
        loss: Loss of the model's output and the targets.

    Raises:
        PeerError: A peer is gone.
    """
    rows, size = len(next(iter(inputs.values()))), plan.microbatch_size
    outputs: list[Tensor] = []
    for number in range(-(-rows // size)):
        key = (update, number)
        for stage in stages.values():
            values.post(StagePass(update, "F", stage.number, number))
            given = values.activations(stage, key)
            part = slice(number * size, (number + 1) * size)
            given |= {
                name: pad_rows(one[part], size, one[-1:]).to(stage.device)
                for name, one in inputs.items()
                if name in stage.takes
            }
            made = stage.evaluate(key, given)
            values.send_outputs(stage, key, made)
            stage.drop(key)
            if OUTPUT in made:
                outputs.append(made[OUTPUT])
    if not outputs:
        return EvaluationResult(None, None)
    output = torch.cat(outputs)[:rows]
    found = None if targets is None else float(loss(output, targets.to(output.device)))
    return EvaluationResult(found, output)
