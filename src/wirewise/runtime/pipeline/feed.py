"""Batches of a pipeline by update, and their microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline.layers import INPUT

__all__ = ["Batch", "BatchFeed", "Inputs", "named_inputs", "pad_rows"]

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""Inputs of a model: one tensor, or several in the order of its inputs or by their names, [rows, ...] each."""
Batch = tuple[Inputs, Tensor]
"""Inputs and targets, [microbatches x microbatch size, ...] each."""


def named_inputs(inputs: Inputs, names: Sequence[str]) -> dict[str, Tensor]:
    """Map inputs to the names used as module sources.

    Args:
        inputs: Inputs of a batch; in a mapping, the first one is named `INPUT` or anything else.
        names: Names of the model's inputs.

    Raises:
        InputError: The inputs are not those of the model, or differ in their number of rows.
    """
    if isinstance(inputs, Tensor):
        found = {names[0]: inputs}
    elif isinstance(inputs, Mapping):
        known = {name: f"{INPUT}:{name}" for name in inputs}
        found = {known[name] if known[name] in names else names[0]: one for name, one in inputs.items()}
    else:
        found = dict(zip(names, inputs, strict=False))
    count = 1 if isinstance(inputs, Tensor) else len(inputs)
    if len(found) != len(names) or count != len(names):
        got = list(inputs) if isinstance(inputs, Mapping) else count
        raise InputError(
            f"a batch has the inputs {got}; expected {len(names)}: {', '.join(names)}, in this order or by these names "
            f"without {INPUT + ':'!r}"
        )
    if len({len(one) for one in found.values()}) > 1:
        raise InputError(
            f"inputs of a batch have {[len(one) for one in found.values()]} rows; expected the same number in each: a "
            "tensor for all rows, such as a mask of positions, is a buffer of the model, or expanded to the rows"
        )
    return found


class BatchFeed:
    """Batches by update, fetched on demand.

    Args:
        batches: Batches from the first update on.
        first: Number of the first update.
        plan: Plan, which defines the batch size.
        names: Names of the model's inputs.
        smaller: Reason why no batch may have fewer rows; empty if it may.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        first: int,
        plan: StagePlan,
        names: Sequence[str] = (INPUT,),
        smaller: str = "a batch is computed again",
    ) -> None:
        self._batches, self._next, self._plan = batches, first, plan
        self._names, self._smaller = tuple(names), smaller
        self._held: dict[int, tuple[dict[str, Tensor], Tensor]] = {}
        self._ended = False

    def has(self, update: int) -> bool:
        """Whether an update has a batch."""
        while update >= self._next and not self._ended:
            try:
                given, targets = next(self._batches)
            except StopIteration:
                self._ended = True
                break
            inputs = named_inputs(given, self._names)
            self._check(inputs, targets)
            self._held[self._next] = (inputs, targets)
            self._next += 1
        return update < self._next

    def _check(self, inputs: Mapping[str, Tensor], targets: Tensor) -> None:
        rows = self._plan.microbatches * self._plan.microbatch_size
        got = {len(one) for one in (*inputs.values(), targets)}
        if got == {rows} or (len(got) == 1 and 0 < max(got) < rows and not self._smaller):
            return
        shapes = ", ".join(str(list(one.shape)) for one in inputs.values())
        raise InputError(
            f"the batch of update {self._next} has inputs {shapes} and targets {list(targets.shape)}; expected {rows} "
            f"rows, {self._plan.microbatches} microbatches of {self._plan.microbatch_size} as the plan says"
            + (f", and not fewer: {self._smaller}" if len(got) == 1 and max(got) < rows else "")
        )

    def inputs(self, update: int, microbatch: int) -> dict[str, Tensor]:
        """Inputs of a microbatch by name; missing rows are copies of the batch's last row."""
        size = self._plan.microbatch_size
        return {
            name: pad_rows(one[self._rows(microbatch)], size, one[-1:])
            for name, one in self._held[update][0].items()
        }

    def targets(self, update: int, microbatch: int) -> Tensor:
        """Targets of the actual rows of a microbatch."""
        return self._held[update][1][self._rows(microbatch)]

    def part(self, update: int, microbatch: int) -> tuple[Tensor, Tensor]:
        """Only input and targets of a microbatch."""
        return self.inputs(update, microbatch)[self._names[0]], self.targets(update, microbatch)

    def weight(self, update: int, microbatch: int) -> float:
        """Weight of a microbatch's mean loss in that of the batch, times the number of microbatches."""
        targets = self._held[update][1]
        return len(targets[self._rows(microbatch)]) * self._plan.microbatches / len(targets)

    def _rows(self, microbatch: int) -> slice:
        size = self._plan.microbatch_size
        return slice(microbatch * size, (microbatch + 1) * size)

    def forget(self, update: int) -> None:
        """Drop a batch."""
        del self._held[update]


def pad_rows(rows: Tensor, size: int, row: Tensor) -> Tensor:
    """Pad rows to a size with copies of one row."""
    missing = size - len(rows)
    return rows if not missing else torch.cat([rows, row.expand(missing, *row.shape[1:])])
