"""Batches of a pipeline by number of the update, and the microbatches in them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from wirewise.errors import InputError
from wirewise.plans import StagePlan

__all__ = ["Batch", "BatchFeed"]

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, [microbatches x microbatch size, ...] each."""


class BatchFeed:
    """Batches by number, taken when they are asked for.

    Args:
        batches: Batches from the first update on.
        first: Number of the first update.
        plan: Says how large a batch is.
    """

    def __init__(self, batches: Iterator[Batch], first: int, plan: StagePlan) -> None:
        self._batches, self._next, self._plan = batches, first, plan
        self._held: dict[int, Batch] = {}
        self._ended = False

    def has(self, update: int) -> bool:
        """Whether there is a batch of an update."""
        while update >= self._next and not self._ended:
            try:
                inputs, targets = next(self._batches)
            except StopIteration:
                self._ended = True
                break
            rows = self._plan.microbatches * self._plan.microbatch_size
            if len(inputs) != rows or len(targets) != rows:
                raise InputError(
                    f"the batch of update {self._next} has inputs {list(inputs.shape)} and targets "
                    f"{list(targets.shape)}; expected {rows} rows, {self._plan.microbatches} microbatches of "
                    f"{self._plan.microbatch_size} as the plan says"
                )
            self._held[self._next] = (inputs, targets)
            self._next += 1
        return update < self._next

    def part(self, update: int, microbatch: int) -> Batch:
        """Inputs and targets of a microbatch."""
        size = self._plan.microbatch_size
        inputs, targets = self._held[update]
        rows = slice(microbatch * size, (microbatch + 1) * size)
        return inputs[rows], targets[rows]

    def forget(self, update: int) -> None:
        """Let go of a batch."""
        del self._held[update]
