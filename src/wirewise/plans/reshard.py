"""Movement of tensors between meshes: slices, senders, trees, rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, ClassVar, Literal

import msgspec

from wirewise.errors import InputError, PlanError
from wirewise.plans.base import Plan, TopologyLike
from wirewise.plans.sharding import LaidOutTensor, Movement, TensorSlice, movements

__all__ = ["STRATEGIES", "BusiestHosts", "MulticastTree", "ReshardPlan", "Strategy", "UnitTask"]

Strategy = Literal["p2p", "local_all_gather", "global_all_gather", "ring", "trees"]
"""Ways to bring one slice to all of its receivers; see `planners.reshard.trees`."""

STRATEGIES: tuple[Strategy, ...] = ("p2p", "local_all_gather", "global_all_gather", "ring", "trees")


class MulticastTree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tree on which a part of a slice is forwarded chunk by chunk."""

    start: int
    """First byte of the part, in the slice as its sender packs it."""
    stop: int
    """Byte after the last one of the part."""
    sender: int
    """Rank that holds the part."""
    edges: tuple[tuple[int, int], ...]
    """Pairs of sender and receiver; each leaves the sender or a rank that an earlier edge reaches."""

    @property
    def size_bytes(self) -> int:
        """Size of the part, in bytes."""
        return self.stop - self.start


class UnitTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slices with the same holders and receivers, and their trees."""

    slices: tuple[TensorSlice, ...]
    size_bytes: int
    """Bytes of all slices, packed one after the other."""
    holders: tuple[tuple[int, ...], ...]
    """Ranks that hold each partial sum; one entry where nothing has to be summed."""
    receivers: tuple[int, ...]
    """Ranks that need the slices."""
    adders: tuple[int, ...] = ()
    """If partial sums have to be reduced, the rank that contributes each; the first one reduces them."""
    strategy: Strategy
    round: int
    """Round of the task; a sender starts a round after its sends of the round before."""
    trees: tuple[MulticastTree, ...] = ()
    """Trees by which slices reach several receivers; empty if every receiver already holds the slices."""

    @property
    def kept(self) -> tuple[int, ...]:
        """Receivers that need no message, because they hold the slices, or reduce them."""
        own = self.adders[:1] or self.holders[0]
        return tuple(rank for rank in self.receivers if rank in own)

    @property
    def bytes_sent(self) -> int:
        """Bytes sent by ranks, partial sums included."""
        along = sum(tree.size_bytes * len(tree.edges) for tree in self.trees)
        return along + self.size_bytes * max(len(self.adders) - 1, 0)

    def faults(self) -> Iterator[str]:
        """Faults of its trees; each starts with the name of a field."""
        if self.round < 0:
            yield f"round: got {self.round}; expected at least 0"
        given = len(self.holders) if len(self.holders) > 1 else 0
        covered = [sum(rank in own for rank in self.adders) for own in self.holders] if given else []
        if len(self.adders) != given or any(count != 1 for count in covered):
            yield f"adders: got {list(self.adders)}; expected a holder of each of {given} partial sums to sum"
        senders = self.adders[:1] or self.holders[0]
        got: dict[int, list[tuple[int, int]]] = {r: [] for r in self.receivers if r not in self.kept}
        for number, tree in enumerate(self.trees):
            if not 0 <= tree.start < tree.stop <= self.size_bytes:
                yield f"trees[{number}]: bytes {tree.start} to {tree.stop} of {self.size_bytes}; expected some"
            if tree.sender not in senders:
                yield f"trees[{number}].sender: rank {tree.sender} does not hold it; expected one of {senders}"
            reached = {tree.sender}
            for here, there in tree.edges:
                if here not in reached or there in reached or there not in got:
                    yield (
                        f"trees[{number}].edges: {here} -> {there} comes too early, twice, or reaches a rank that "
                        "needs nothing"
                    )
                    return
                reached.add(there)
                got[there].append((tree.start, tree.stop))
        for rank, parts in got.items():
            ends = [0, *(end for part in sorted(parts) for end in part)]
            if ends[1::2] != ends[:-1:2] or ends[-1] != self.size_bytes:
                yield f"trees: rank {rank} gets bytes {parts[:4]} of {self.size_bytes}; expected each of them once"


class BusiestHosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Proof of the lower bound: bytes that must cross the interfaces of some hosts."""

    hosts: tuple[int, ...]
    direction: Literal["out", "in"]
    """Direction of the flow. out: no other host holds the bytes; in: the host needs them and holds none of them."""
    size_bytes: int
    bandwidth_bytes_per_s: float
    """Total bandwidth of the hosts' interfaces in this direction."""


class ReshardPlan(Plan, frozen=True, kw_only=True, tag="reshard"):
    """Messages that move tensors from their layouts to others; each layout names its ranks."""

    family: ClassVar[str] = "reshard"

    tensors: tuple[LaidOutTensor, ...]
    hosts: tuple[int, ...]
    """Host number of each rank, [world size]."""
    tasks: tuple[UnitTask, ...]
    strategy: str
    """Strategy of the tasks, or "mixed"."""
    order: str
    """Method by which senders and rounds were chosen."""
    chunk_bytes: int
    """Bytes that a rank forwards at a time."""
    predicted_s: float
    """Simulated seconds of the whole plan."""
    bound_s: float
    """Lower bound of any plan, in seconds, by the bytes that must cross hosts' interfaces, without latencies."""
    busiest: BusiestHosts
    candidates: dict[str, float] = msgspec.field(default_factory=dict)
    """Simulated seconds of each strategy considered."""

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return max((task.round for task in self.tasks if task.trees), default=-1) + 1

    @property
    def bytes_sent(self) -> int:
        """Total bytes of messages between ranks."""
        return sum(task.bytes_sent for task in self.tasks)

    @property
    def bytes_between_hosts(self) -> int:
        """Total bytes of messages between hosts."""
        return sum(
            size
            for task in self.tasks
            for size, here, there in messages_of(task)
            if self.hosts[here] != self.hosts[there]
        )

    @property
    def headline(self) -> str:
        """Tensors to move, and their simulated time compared with the lower bound."""
        return (
            f"reshard plan by {self.planner!r} for {self.world_size} ranks: {len(self.tensors)} tensors in "
            f"{sum(bool(task.trees) for task in self.tasks)} messages of {self.rounds} rounds take "
            f"{self.predicted_s:.4g} s simulated, at least {self.bound_s:.4g} s"
        )

    def check(self, topology: TopologyLike) -> None:
        """Raise if the plan is inconsistent or does not fit the topology; see `Plan.check`."""
        Plan.check(self, topology)
        own = _hosts_of(topology)
        if own is not None and self.hosts != own:
            raise PlanError(
                f"hosts are {list(self.hosts)} - at `$.hosts`; the topology's ranks are on hosts {list(own)}, make the "
                "plan again"
            )

    def check_itself(self) -> None:
        """Raise if a layout is invalid, or a slice is not moved as the layouts require; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in self._faults():
            raise PlanError(fault)

    def _faults(self) -> Iterator[str]:
        if len(self.hosts) != self.world_size or any(host < 0 for host in self.hosts):
            yield f"hosts are {list(self.hosts)} - at `$.hosts`; expected one for each of {self.world_size} ranks"
        for number, tensor in enumerate(self.tensors):
            for fault in tensor.faults():
                yield f"tensor {tensor.name!r}: {fault} - at `$.tensors[{number}]`"
            for side in (tensor.source, tensor.target):
                if beyond := [rank for rank in side.ranks if not 0 <= rank < self.world_size]:
                    yield (
                        f"tensor {tensor.name!r} is on rank {beyond[0]} - at `$.tensors[{number}]`; expected ranks "
                        f"below the world size {self.world_size}"
                    )
        if self.chunk_bytes < 1:
            yield f"chunk_bytes is {self.chunk_bytes} - at `$.chunk_bytes`; expected at least 1"
        for name in ("predicted_s", "bound_s"):
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                yield f"{name} is {value} - at `$.{name}`; expected finite seconds of at least 0"
        yield from self._task_faults()

    def _task_faults(self) -> Iterator[str]:
        try:
            wanted = movements(self.tensors)
        except InputError as error:
            yield f"{error} - at `$.tensors`"
            return
        if len(wanted) != len(self.tasks):
            yield f"there are {len(self.tasks)} tasks - at `$.tasks`; the layouts ask for {len(wanted)}"
            return
        last = (0, -1)
        for number, (task, movement) in enumerate(zip(self.tasks, wanted, strict=True)):
            where = f"at `$.tasks[{number}]`"
            if (task.slices, task.holders, task.receivers) != (
                movement.slices,
                movement.holders,
                movement.receivers,
            ):
                yield f"slices, holders or receivers are not those that the layouts ask for - {where}"
            if task.size_bytes != packed_bytes(self.tensors, movement):
                yield f"size_bytes is {task.size_bytes} - {where}; expected {packed_bytes(self.tensors, movement)}"
            for fault in task.faults():
                yield f"{fault} - {where}"
            if movement.bucket > last[0]:
                last = (movement.bucket, max(one.round for one in self.tasks[:number]))
            if task.round <= last[1]:
                yield f"round is {task.round} - {where}; expected one after those of the bucket before"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per task: source, target, trees and round."""
        rows = []
        for task in sorted(self.tasks, key=lambda one: one.round):
            senders = sorted({tree.sender for tree in task.trees})
            first = task.slices[0]
            name = self.tensors[first.tensor].name
            box = ",".join(f"{start}:{stop}" for start, stop in first.box)
            more = f" and {len(task.slices) - 1} more" if len(task.slices) > 1 else ""
            rows.append(
                [
                    str(task.round) if task.trees else "-",
                    f"{name}[{box}]{more}",
                    f"{task.size_bytes / 1e6:.3f}",
                    _named(task.adders or tuple(senders)),
                    _named(tuple(rank for rank in task.receivers if rank not in task.kept)),
                    task.strategy if task.trees else "kept",
                ]
            )
        return ["round", "slice", "MB", "from rank", "to ranks", "by"], rows


def _hosts_of(topology: TopologyLike) -> tuple[int, ...] | None:
    """Host number of each rank; None if the topology does not say it."""
    devices: list[Any] = list(topology.devices)  # type: ignore[call-overload]
    if not devices:
        return tuple(range(len(topology.hosts)))
    hosts: list[Any] = list(topology.hosts)  # type: ignore[call-overload]
    numbers = {getattr(host, "name", host): number for number, host in enumerate(hosts)}
    found = [numbers.get(getattr(device, "host", None)) for device in devices]
    return None if None in found else tuple(one for one in found if one is not None)


def packed_bytes(tensors: Sequence[LaidOutTensor], movement: Movement) -> int:
    """Bytes of the slices of a movement."""
    return sum(one.elements * tensors[one.tensor].item_bytes for one in movement.slices)


def messages_of(task: UnitTask) -> Iterator[tuple[int, int, int]]:
    """Bytes, sender and receiver of every message of a task."""
    for giver in task.adders[1:]:
        yield task.size_bytes, giver, task.adders[0]
    for tree in task.trees:
        for here, there in tree.edges:
            yield tree.size_bytes, here, there


def _named(ranks: tuple[int, ...]) -> str:
    return " ".join(map(str, ranks)) or "-"
