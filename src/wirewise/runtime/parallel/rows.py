"""Batch rows used by a rank, so that each rank may load its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wirewise.errors import InputError, PlanError
from wirewise.runtime.parallel.parts import part_of_mesh
from wirewise.runtime.parallel.step import StepRunner
from wirewise.trace.operator_graph import OperatorNode

__all__ = ["rows_of_rank", "with_rows"]


def rows_of_rank(runner: StepRunner) -> Tensor:
    """Rows of the whole batch used by this rank, ascending; empty if its stage reads no input.

    Raises:
        PlanError: The inputs differ in their number of rows, or microbatches need a value computed from all rows.
    """
    nodes = _inputs(runner)
    count = runner.plan.microbatches
    sizes = {node.shape[0] * count if node.shape else 0 for node in nodes}
    if len(sizes) > 1 or 0 in sizes:
        raise PlanError(
            f"inputs of this step have {sorted(sizes)} rows; expected tensors of the same number of rows: give every "
            "rank the whole batch"
        )
    if runner.needs_whole_batch:
        raise PlanError(
            f"{runner.needs_whole_batch} is computed of all rows of the batch before its microbatches; give every rank "
            "the whole batch, or plan with one microbatch"
        )
    groups, taken = runner.program.groups, set[int]()
    for number in runner.program.held:
        if runner.graph.nodes[number].op == "input":
            # Other dimensions are cut later: a rank loads whole rows.
            rows = tuple(one if one.kind == "S" and one.dim == 0 else type(one)("R")
                         for one in runner.program.placements(number))  # fmt: skip
            for part in torch.arange(*sizes).chunk(count):
                taken.update(part_of_mesh(part, rows, groups.mesh, groups.place).tolist())
    return torch.tensor(sorted(taken), dtype=torch.long)


def with_rows(runner: StepRunner, own: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """Tensors of the whole batch's size with only the rank's own rows filled; others are never read.

    Args:
        runner: This rank's part of the step.
        own: This rank's rows of each input, [rows, ...].
        rows: Indices of these rows in the whole batch.

    Raises:
        InputError: The number of rows is wrong.
    """
    found = []
    for place, (node, part) in enumerate(zip(_inputs(runner), own, strict=True)):
        shape = (len(rows), *node.shape[1:])
        if tuple(part.shape) != shape:
            raise InputError(
                f"input {place} is {list(part.shape)}; expected {list(shape)}: the rows that `own_rows` names"
            )
        whole = part.new_zeros((node.shape[0] * runner.plan.microbatches, *node.shape[1:]))
        whole[rows] = part
        found.append(whole)
    return found


def _inputs(runner: StepRunner) -> list[OperatorNode]:
    """Nodes of the tensors of a batch, in their order."""
    nodes = [node for node in runner.graph.nodes if node.op == "input"]
    return sorted(nodes, key=lambda node: int(node.source))
