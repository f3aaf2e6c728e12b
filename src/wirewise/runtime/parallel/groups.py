"""Asynchronous collectives along mesh dimensions, with the traffic of ring algorithms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.plans.parallel import DimPlacement
from wirewise.runtime.parallel.parts import join_shards, slice_shard
from wirewise.runtime.transport import Transport

__all__ = ["InFlightTensor", "MeshGroups", "RankGroups", "ThreadGroups", "start_move"]


class InFlightTensor:
    """Tensor in flight.

    Args:
        wait: Function that waits for it; called once.
    """

    def __init__(self, wait: Callable[[], Tensor]) -> None:
        self._wait: Callable[[], Tensor] | None = wait
        self._found: Tensor | None = None

    def wait(self) -> Tensor:
        """Wait for the tensor; returns the same tensor each time.

        Raises:
            PeerError: A peer is gone.
        """
        if self._wait is not None:
            self._found, self._wait = self._wait(), None
        assert self._found is not None
        return self._found


class MeshGroups(Protocol):
    """This rank's mesh coordinates, and collectives with the ranks along one dimension."""

    mesh: tuple[int, ...]
    place: tuple[int, ...]

    def all_reduce(self, axis: int, tensor: Tensor, op: str = "sum") -> InFlightTensor:
        """Sum or maximum ("max") over the ranks; the input is unchanged."""
        ...

    def all_gather(self, axis: int, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """Start gathering the tensors of all ranks in order; calling the result waits."""
        ...

    def all_to_all(self, axis: int, parts: list[Tensor]) -> Callable[[], list[Tensor]]:
        """Start sending each rank its part; calling the result waits for the parts of all ranks."""
        ...


def start_move(
    groups: MeshGroups, axis: int, tensor: Tensor, before: DimPlacement, after: DimPlacement
) -> InFlightTensor:
    """Start changing a tensor's placement along one mesh dimension.

    Args:
        groups: Ranks of the mesh.
        axis: Dimension of the mesh.
        tensor: This rank's shard.
        before: Current placement of the tensor along the dimension.
        after: Placement after the conversion.
    """
    parts, number = groups.mesh[axis], groups.place[axis]
    if before == after or parts == 1:
        return InFlightTensor(lambda: tensor)
    if before.kind == "R":
        # Some operators read tensors as if their elements were next to each other.
        return InFlightTensor(lambda: slice_shard(tensor, after, parts, number).contiguous())
    if (before.kind, after.kind) == ("P", "R"):
        return groups.all_reduce(axis, tensor)
    if after.kind == "R" or (before.kind, before.dim) == ("S", after.dim):
        # Other blocks of the same dimension: what a rank needs is spread over all.
        gathered = groups.all_gather(axis, tensor)
        return InFlightTensor(
            lambda: slice_shard(join_shards(gathered(), before), after, parts, number).contiguous()
        )
    if after.kind == "P":
        return InFlightTensor(lambda: _alone(tensor, before, parts, number))
    swapped = groups.all_to_all(axis, [slice_shard(tensor, after, parts, rank) for rank in range(parts)])
    if before.kind == "P":
        # gloo's own reduce-scatter sends as much as an all-reduce.
        return InFlightTensor(lambda: torch.stack(swapped()).sum(0))
    return InFlightTensor(lambda: join_shards(swapped(), before))


def _alone(tensor: Tensor, before: DimPlacement, parts: int, number: int) -> Tensor:
    """A part as a partial sum: zeros where the others' are."""
    empty = torch.zeros_like(tensor)
    return join_shards([tensor if rank == number else empty for rank in range(parts)], before)


class RankGroups:
    """Mesh whose ranks are processes, or threads with separate groups.

    Args:
        transports: Messages with the ranks along each dimension of the mesh.
    """

    def __init__(self, transports: Sequence[Transport]) -> None:
        self._transports = tuple(transports)
        self.mesh = tuple(one.world_size for one in transports)
        self.place = tuple(one.rank for one in transports)

    def all_reduce(self, axis: int, tensor: Tensor, op: str = "sum") -> InFlightTensor:
        """Sum or maximum over the ranks; the input is unchanged."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM  # type: ignore[assignment]
        found = tensor.clone(memory_format=torch.contiguous_format)
        lend = self._transports[axis].lend
        return InFlightTensor(
            self._started(axis, lambda group: group.allreduce([lend(found)], options), lambda: found)
        )

    def all_gather(self, axis: int, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """Start gathering the tensors of all ranks in order; calling the result waits."""
        own = tensor.contiguous()
        found = [torch.empty_like(own) for _ in range(self.mesh[axis])]
        lend = self._transports[axis].lend
        return self._started(
            axis, lambda group: group.allgather([list(map(lend, found))], [lend(own)]), lambda: found
        )

    def all_to_all(self, axis: int, parts: list[Tensor]) -> Callable[[], list[Tensor]]:
        """Start sending each rank its part; calling the result waits for the parts of all ranks."""
        given = torch.stack(parts)
        found = torch.empty_like(given)
        lend = self._transports[axis].lend
        start = partial(self._swap, lend(found), lend(given))
        return self._started(axis, start, lambda: list(found.unbind(0)))

    @staticmethod
    def _swap(found: Tensor, given: Tensor, group: Any) -> dist.Work:
        work: dist.Work = group.alltoall_base(found, given, [], [], dist.AllToAllOptions())
        return work

    def _started(
        self, axis: int, start: Callable[[Any], dist.Work], found: Callable[[], Any]
    ) -> Callable[[], Any]:
        transport, works = self._transports[axis], list[dist.Work]()
        what = f"a collective along dimension {axis} of the mesh"
        transport.guard(lambda: works.append(start(transport.group)), what)

        def wait() -> Any:
            transport.wait_for(works[0], what)
            return found()

        return wait


class ThreadGroups:
    """Mesh whose ranks are threads of this process and pass each other tensors.

    Args:
        mesh: Ranks along each dimension.
        place: This rank's mesh coordinates.
        shared: Result of `ThreadGroups.create_rendezvous`, shared by all of them.
    """

    def __init__(self, mesh: tuple[int, ...], place: tuple[int, ...], shared: _Meeting) -> None:
        self.mesh, self.place, self._shared = mesh, place, shared

    @staticmethod
    def create_rendezvous(ranks: int, timeout_s: float = 60.0) -> _Meeting:
        """Create the rendezvous of all ranks of a mesh for collectives."""
        return _Meeting(ranks, timeout_s)

    def all_reduce(self, axis: int, tensor: Tensor, op: str = "sum") -> InFlightTensor:
        """Sum or maximum over the ranks; the input is unchanged."""
        parts = torch.stack(self._met(axis, tensor))
        found = parts.amax(0) if op == "max" else parts.sum(0)
        return InFlightTensor(lambda: found)

    def all_gather(self, axis: int, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """Gather the tensors of all ranks, in order."""
        found = self._met(axis, tensor)
        return lambda: found

    def all_to_all(self, axis: int, parts: list[Tensor]) -> Callable[[], list[Tensor]]:
        """Send each rank its part."""
        found = [given[self.place[axis]] for given in self._met(axis, parts)]
        return lambda: found

    def _met(self, axis: int, value: Any) -> list[Any]:
        given = self._shared.exchange(self.place, value)
        return [given[(*self.place[:axis], n, *self.place[axis + 1 :])] for n in range(self.mesh[axis])]


class _Meeting:
    """All ranks leave something, and take what they want when all have."""

    def __init__(self, ranks: int, timeout_s: float) -> None:
        self.barrier = threading.Barrier(ranks, timeout=timeout_s)
        self._left: dict[tuple[int, ...], Any] = {}

    def exchange(self, place: tuple[int, ...], value: Any) -> dict[tuple[int, ...], Any]:
        self._left[place] = value
        self.barrier.wait()
        found = dict(self._left)
        self.barrier.wait()
        return found
