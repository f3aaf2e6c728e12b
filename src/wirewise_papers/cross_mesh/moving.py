"""Execution of a reshard plan on one rank, verified against slicing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from wirewise.plans import LaidOutTensor
from wirewise.runtime.pipeline.reshard import Resharder
from wirewise.runtime.pipeline.shards import part_of, same_bits
from wirewise.trials.rank import Rank
from wirewise_papers.cross_mesh.job import ReshardJob
from wirewise_papers.cross_mesh.records import MoveFacts

__all__ = ["PlanMover", "movers"]


class PlanMover:
    """Resharding under one plan (`wirewise_papers.interleaved.Subject`).

    Args:
        rank: This process's rank.
        name: Name of its plan among those of the job.
        cli_options: Source shards of this rank.
        wanted: Target shards of this rank. None for a tensor without one.
    """

    def __init__(
        self,
        rank: Rank[ReshardJob],
        name: str,
        cli_options: Sequence[Tensor | None],
        wanted: Sequence[Tensor | None],
    ) -> None:
        self._transport, self._given, self._wanted = rank.transport, cli_options, wanted
        self._resharder = Resharder(rank.job.plans[name], rank.transport)
        self._moved: list[Tensor] | None = None
        self._equal = True

    def train(self, steps: int) -> Iterator[float]:
        """Reshard the tensors n times; the results of the last time are verified outside the timed part."""
        self._compare()
        return self._moves(steps)

    def _moves(self, steps: int) -> Iterator[float]:
        for _ in range(steps):
            self._moved = self._resharder(self._given)
            yield 0.0

    def _compare(self) -> None:
        if self._moved is not None:
            pairs = zip(self._moved, self._wanted, strict=True)
            self._equal &= all(want is None or same_bits(got, want) for got, want in pairs)
            self._moved = None

    def outcome(self) -> MoveFacts:
        """Whether all results on all ranks were correct."""
        self._compare()
        return MoveFacts(equal=bool(self._transport.slowest(float(not self._equal)) == 0))

    def close(self) -> None:
        """Do nothing, as no resources are held."""


def movers(rank: Rank[ReshardJob]) -> dict[str, PlanMover]:
    """Resharding of the same shards under each plan."""
    tensors, own = rank.job.first.tensors, rank.transport.rank
    wholes = [numbers(one) for one in tensors]
    given = [part_of(whole, one.source, own) for whole, one in zip(wholes, tensors, strict=True)]
    wanted = [part_of(whole, one.target, own) for whole, one in zip(wholes, tensors, strict=True)]
    return {name: PlanMover(rank, name, given, wanted) for name in rank.job.plans}


def numbers(tensor: LaidOutTensor) -> Tensor:
    """Tensor whose elements encode their position."""
    count = torch.Size(tensor.shape).numel()
    whole = torch.arange(count) * 7 % 251
    return whole.to(getattr(torch, tensor.dtype)).reshape(tensor.shape)
