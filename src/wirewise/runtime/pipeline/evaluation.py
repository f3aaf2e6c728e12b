"""Batches through the stages without gradients: the model's output, and the loss of whole batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline.layers import INPUT
from wirewise.runtime.pipeline.stage import OUTPUT, StageCompute
from wirewise.runtime.pipeline.values import ValueExchange

__all__ = ["EvaluationResult", "evaluate_batch", "evaluation_mode"]


class EvaluationResult(NamedTuple):
    """A batch that was evaluated."""

    loss: float | None
    """Loss of the whole batch, on ranks with the last stage and of batches with targets; None elsewhere."""
    output: Tensor | None
    """Output of the model, such as logits, [rows, ...], on ranks with the last stage; None elsewhere. Where ranks share
    that stage and split its output, this rank's part."""


@contextmanager
def evaluation_mode(stages: Mapping[int, StageCompute]) -> Iterator[None]:
    """Modules of stages in evaluation mode, without gradients; afterwards each in the mode that it had."""
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
    inputs: Tensor,
    targets: Tensor | None,
    *,
    stages: Mapping[int, StageCompute],
    values: ValueExchange,
    plan: StagePlan,
    update: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> EvaluationResult:
    """Take a batch through this rank's stages, microbatch by microbatch.

    The last microbatch is filled up with copies of its last row, which are taken out of the output again.

    Args:
        inputs: Inputs, [rows, ...]; ranks without the first stage take the number of rows of them.
        targets: Targets, [rows, ...]; None: no loss is wanted.
        stages: This rank's stages by number.
        values: What stages hand to each other.
        plan: Size of the microbatches.
        update: Number of the next update, which messages are named by.
        loss: Loss of the model's output and the targets.

    Raises:
        PeerError: A peer is gone.
    """
    rows, size = len(inputs), plan.microbatch_size
    outputs: list[Tensor] = []
    for number in range(-(-rows // size)):
        key = (update, number)
        for stage in stages.values():
            values.post(StagePass(update, "F", stage.number, number))
            given = values.activations(stage, key)
            if INPUT in stage.takes:
                given[INPUT] = _filled(inputs[number * size : (number + 1) * size], size).to(stage.device)
            made = stage.evaluate(key, given)
            values.hand_on(stage, key, made)
            stage.drop(key)
            if OUTPUT in made:
                outputs.append(made[OUTPUT])
    if not outputs:
        return EvaluationResult(None, None)
    output = torch.cat(outputs)[:rows]
    found = None if targets is None else float(loss(output, targets.to(output.device)))
    return EvaluationResult(found, output)


def _filled(rows: Tensor, size: int) -> Tensor:
    missing = size - len(rows)
    return rows if not missing else torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
