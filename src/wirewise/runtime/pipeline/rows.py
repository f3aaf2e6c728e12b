"""Movement of graph node rows between partitions: each rank declares its rows before and after.

Rows with the same holders and the same receivers are contiguous in a numbering that all ranks derive, so a plan has
one slice per such set, however scattered the parts are. Halo rows are rows with several holders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.reshard import alike_links, cross_mesh
from wirewise.plans.reshard import ReshardPlan
from wirewise.plans.sharding import Intervals, LaidOutTensor, Sharding
from wirewise.runtime.pipeline.reshard import Resharder, hosts_of_ranks
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["RowMover"]

Ids = NDArray[np.int64]

_COLUMNS = -1
"""Count of the ids of a rank that has all rows and a part of the columns."""


class _Side(NamedTuple):
    """One side of a move."""

    has: NDArray[np.bool_]
    """Whether each rank has each row, [ranks, rows]."""
    columns: bool
    """Whether ranks have all rows and split the columns."""
    own: Ids
    """Ids of this rank's rows in their order in memory."""


class RowMover:
    """Executor of row moves between two partitions of a graph's nodes, for any number of tensors.

    Every rank of the group creates it and participates in every move, in the same order.

    Args:
        num_rows: Total number of rows, N.
        before: Ids of the rows that this rank holds, in memory order, such as `own_ids` of a part, or these and its
            `halo_ids`. None on all ranks if each has all rows and a shard of the columns, as by `torch.chunk`.
        after: Ids of the rows that this rank needs, in order; None as for `before`.
        group: Process group (gloo or NCCL) or its transport. Defaults to the default group.
        links: Links between the group's ranks, the same on all. Defaults to uniform links between hosts, by host
            name.
        timeout_s: Seconds after which an unresponsive peer counts as hung.

    Raises:
        InputError: Ids are invalid or repeated, a needed row is held by no rank, or only some ranks have columns.
        PeerError: A peer is gone.
    """

    def __init__(
        self,
        num_rows: int,
        before: ArrayLike | None,
        after: ArrayLike | None,
        group: dist.ProcessGroup | Transport | None = None,
        *,
        links: Links | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self.num_rows, self.transport = num_rows, transport_of(group, timeout_s=timeout_s)
        self._links = alike_links(hosts_of_ranks(self.transport)) if links is None else links
        self._before, self._after = self._side(before, "before"), self._side(after, "after")
        held = self._before.has.any(axis=0)
        if (lost := np.flatnonzero(self._after.has.any(axis=0) & ~held)).size:
            ranks = np.flatnonzero(self._after.has[:, lost[0]])
            raise InputError(
                f"rank {ranks[0]} wants row {lost[0]}, which no rank has; expected `before` of all ranks to have all "
                "rows that `after` names"
            )
        both = np.concatenate([self._before.has, self._after.has])
        kinds, kind = np.unique(np.packbits(both, axis=0).T, axis=0, return_inverse=True)
        kind = kind.reshape(-1)
        self._place = np.empty(num_rows, np.int64)
        self._place[np.argsort(kind, kind="stable")] = np.arange(num_rows)
        ends = np.concatenate([[0], np.cumsum(np.bincount(kind, minlength=len(kinds)))])
        members = np.unpackbits(kinds, axis=1, count=len(both)).astype(bool) if num_rows else both[:, :0].T
        self._rows = [[_intervals(ends, own) for own in part.T] for part in np.split(members, 2, axis=1)]
        self._movers: dict[tuple[tuple[str, torch.Size, torch.dtype], ...], Resharder] = {}

    def __call__(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Move tensors together, bit for bit.

        Args:
            rows: This rank's rows of each tensor, [rows, ...] in the order of `before`, or [N, part of the columns,
                ...]; the same names and types on all ranks in the same order.

        Returns:
            This rank's rows of each tensor, in the order of `after`, or its part of the columns.

        Raises:
            InputError: A tensor with another number of rows, or of columns than the other ranks'.
            PlanError: Ranks give tensors of other names, shapes or types.
            PeerError: A peer is gone.
        """
        names = list(rows)
        whole = [self._whole(name, rows[name]) for name in names]
        key = tuple((n, shape, rows[n].dtype) for n, shape in zip(names, whole, strict=True))
        if key not in self._movers:
            tensors = [
                self._laid_out(name, shape, rows[name].dtype)
                for name, shape in zip(names, whole, strict=True)
            ]
            plan = cross_mesh(tensors, self._links)
            assert isinstance(plan, ReshardPlan)
            self._movers[key] = Resharder(plan, self.transport)
        given = np.argsort(self._place[self._before.own])
        wanted = np.empty(len(self._after.own), np.int64)
        wanted[np.argsort(self._place[self._after.own])] = np.arange(len(wanted))
        found = self._movers[key]([_in_order(rows[name], given) for name in names])
        return {name: _in_order(part, wanted) for name, part in zip(names, found, strict=True)}

    def close(self) -> None:
        """End the transport's threads."""
        self.transport.close()

    def _side(self, ids: ArrayLike | None, label: str) -> _Side:
        """Rows of all ranks; raises on every rank where those of one are not right."""
        world, n = self.transport.world_size, self.num_rows
        own = np.arange(n) if ids is None else np.asarray(ids, np.int64)
        sound = own.ndim == 1 and (not own.size or (own.min() >= 0 and own.max() < n))
        sound = sound and len(np.unique(own)) == own.size
        # What is not sound is told as a number that no rank has.
        count = n + 1 if not sound else _COLUMNS if ids is None else own.size
        counts = self._gathered(torch.tensor([count]), f"the number of rows {label} the move").reshape(-1)
        if (wrong := np.flatnonzero(counts > n)).size:
            raise InputError(
                f"the ids {label} the move of rank {wrong[0]} are not all different rows of 0 to {n - 1}; expected "
                "each row once, 1-D"
            )
        if (counts == _COLUMNS).any():
            if not (counts == _COLUMNS).all():
                raise InputError(
                    f"ranks {np.flatnonzero(counts == _COLUMNS).tolist()} have columns {label} the move and the others "
                    "rows; expected columns on all ranks, or ids on all"
                )
            return _Side(np.ones((world, n), bool), True, own)
        padded = torch.zeros(int(counts.max(initial=0)), dtype=torch.int64)
        padded[: own.size] = torch.from_numpy(own)
        listed = (
            self._gathered(padded, f"the rows {label} the move")
            if padded.numel()
            else np.zeros((world, 0), int)
        )
        has = np.zeros((world, n), bool)
        for rank, (size, named) in enumerate(zip(counts, listed, strict=True)):
            has[rank, named[:size]] = True
        return _Side(has, False, own)

    def _gathered(self, own: Tensor, label: str) -> NDArray[np.int64]:
        return np.stack([one.cpu().numpy() for one in self.transport.all_gather(own, label)])

    def _whole(self, name: str, part: Tensor) -> torch.Size:
        """Shape of a whole tensor."""
        if part.dim() < 1 or len(part) != len(self._before.own):
            raise InputError(
                f"tensor {name!r} is {list(part.shape)}; expected {len(self._before.own)} rows, as many as there are "
                "ids"
            )
        if not (self._before.columns or self._after.columns):
            return torch.Size([self.num_rows, *part.shape[1:]])
        if part.dim() < 2:
            raise InputError(
                f"tensor {name!r} has no columns, by which ranks split it; expected [rows, columns, ...]"
            )
        columns = part.shape[1]
        if self._before.columns:
            columns = int(self._gathered(torch.tensor([columns]), f"the columns of {name!r}").sum())
        return torch.Size([self.num_rows, columns, *part.shape[2:]])

    def _laid_out(self, name: str, shape: torch.Size, dtype: torch.dtype) -> LaidOutTensor:
        source, target = (
            self._layout(side, rows, len(shape))
            for side, rows in zip((self._before, self._after), self._rows, strict=True)
        )
        kind = str(dtype).removeprefix("torch.")
        return LaidOutTensor(name=name, shape=tuple(shape), dtype=kind, source=source, target=target)

    def _layout(self, side: _Side, rows: list[Intervals], dims: int) -> Sharding:
        world = self.transport.world_size
        return Sharding(
            mesh=(world,),
            ranks=tuple(range(world)),
            dims=((), (0,), *((),) * (dims - 2)) if side.columns else ((),) * dims,
            rows=() if side.columns else tuple(rows),
        )


def _intervals(ends: Ids, kinds: NDArray[np.bool_]) -> Intervals:
    """Rows of the kinds that a rank has, as intervals that do not touch."""
    change = np.flatnonzero(np.diff(np.concatenate([[False], kinds, [False]]).astype(np.int8)))
    return tuple((int(ends[a]), int(ends[b])) for a, b in change.reshape(-1, 2))


def _in_order(rows: Tensor, order: Ids) -> Tensor:
    """Rows in another order; themselves where it is that already."""
    if (order == np.arange(len(order))).all():
        return rows
    return rows.index_select(0, torch.from_numpy(order).to(rows.device))
