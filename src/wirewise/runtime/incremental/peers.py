"""Ranks that train together: each has the nodes of its part, for training and for rehearsal."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.reducer import Reducer
from wirewise.runtime.transport import Transport

__all__ = ["Peers"]


class Peers:
    """Owners of nodes, and sums over ranks; without arguments a single rank that owns all.

    Args:
        owner: Rank of each node, [N].
        transport: Transport between the ranks.
    """

    def __init__(self, owner: NDArray[np.int64] | None = None, transport: Transport | None = None) -> None:
        self._owner, self._transport = owner, transport
        self.rank = transport.rank if transport else 0
        self.world_size = transport.world_size if transport else 1

    def own_nodes(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Filter nodes owned by this rank, in order."""
        return nodes if self._owner is None else nodes[self._owner[nodes] == self.rank]

    def share(self, nodes: NDArray[np.int64], budget: int) -> int:
        """This rank's part of a budget, by its fraction of the nodes, with the largest remainders rounded up."""
        if self._owner is None:
            return budget
        count = np.bincount(self._owner[nodes], minlength=self.world_size)
        exact = min(budget, len(nodes)) * count / len(nodes)
        part = np.floor(exact).astype(int)
        left = min(budget, len(nodes)) - part.sum()
        part[np.argsort(part - exact, kind="stable")[:left]] += 1
        return int(part[self.rank])

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over ranks, elementwise."""
        if self._transport is None:
            return values
        return self._transport.total(values, "sums of kernels")

    def gather(self, rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], slice]:
        """Gather the rows of all ranks, [n, d], in rank order, with the slice of this rank."""
        if self._transport is None:
            return rows, slice(0, len(rows))
        sent = torch.tensor([len(rows)])
        counts = [int(c) for c in self._transport.all_gather(sent, "numbers of rehearsed nodes")]
        padded = torch.zeros(max(*counts, 1), rows.shape[1], dtype=torch.float64)
        padded[: len(rows)] = torch.from_numpy(rows)
        parts = self._transport.all_gather(padded, "embeddings of rehearsed nodes")
        found = np.concatenate([part[:n].numpy() for part, n in zip(parts, counts, strict=True)])
        start = sum(counts[: self.rank])
        return found, slice(start, start + len(rows))

    def reducer(self, model: nn.Module) -> Reducer | None:
        """Reducer of a model's gradients in one bucket. None for a single rank."""
        if self._transport is None:
            return None
        sizes = {name: p.nbytes for name, p in model.named_parameters()}
        plan = FusionPlan.by_size(sizes, self.world_size)
        return Reducer(model, plan, self._transport, until="finish", scale="sum")
