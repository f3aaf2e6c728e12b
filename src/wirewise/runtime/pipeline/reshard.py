"""Bit-exact movement of tensors between meshes under a plan, with the reverse movement for gradients."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.errors import InputError, PlanError
from wirewise.planners.reshard import alike_links, cross_mesh
from wirewise.plans.reshard import MulticastTree, ReshardPlan, UnitTask
from wirewise.runtime.pipeline.multicast import (
    WINDOW,
    Leg,
    first_tag,
    run_trees,
    run_trees_in_steps,
    sum_partials,
)
from wirewise.runtime.pipeline.shards import Parts, pack_slices, unpack
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["Resharder", "Resharding", "hosts_of_ranks"]

_NOT_SUMMED = ("bool", "float8_e4m3fn", "float8_e5m2")
"""Types whose partial sums are not summed."""
_HOSTS: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()
_NO_DATA = torch.empty(0, dtype=torch.uint8)


class _Role(NamedTuple):
    """Role of a rank in a task."""

    number: int
    task: UnitTask
    tag: int
    """First tag of the task, counted from that of the move."""
    legs: tuple[Leg, ...]
    """Parts in its trees, without their data."""
    packs: bool
    """Whether it sends, adds or keeps what it holds."""
    adds: bool
    """Whether it gives a partial sum."""
    gets: bool
    """Whether it needs the slices."""


class Resharder:
    """Executor of one plan on the ranks of a process group, for any number of moves.

    Every rank of the group creates it and participates in every move, in the same order, even if it holds nothing.

    Args:
        plan: Tensors, slices, trees and rounds; its ranks are those of the group.
        group: Process group (gloo or NCCL) or its transport. Defaults to the default group.
        reverse: Function that makes the reverse plan, for gradients. Defaults to a plain reverse plan.
        window: Number of chunks of an edge in flight.
        in_steps: Whether chunks move in steps common to all ranks. Defaults to True on devices.
        compared: Whether the ranks of the plan are known to have the same plan; others then need not create it.
        label: Name of the move in error messages.
        timeout_s: Seconds after which an unresponsive peer counts as hung.

    Raises:
        InputError: The window is below one chunk.
        PlanError: The plan is inconsistent, for another number of ranks, reduces what cannot be reduced, or differs
            between ranks; raised on every rank.
        PeerError: A peer is gone.
    """

    def __init__(
        self,
        plan: ReshardPlan,
        group: dist.ProcessGroup | Transport | None = None,
        *,
        reverse: Callable[[ReshardPlan], ReshardPlan] | None = None,
        window: int = WINDOW,
        in_steps: bool | None = None,
        compared: bool = False,
        label: str = "resharding",
        timeout_s: float = 120.0,
    ) -> None:
        if window < 1:
            raise InputError(f"window is {window}; expected at least one chunk under way")
        self.plan, self.transport = plan, transport_of(group, timeout_s=timeout_s)
        self._make_reverse, self._window, self._what = reverse, window, label
        self._reverse: Resharder | None = None
        self._in_steps = self.transport.on_device if in_steps is None else in_steps
        if not compared:
            self._same_everywhere()
        rank = self.transport.rank
        self._source, self._target = Parts(plan.tensors, "source", rank), Parts(plan.tensors, "target", rank)
        self._numbers: dict[int, list[int]] = {}
        """Tensors of each bucket."""
        for number, one in enumerate(plan.tensors):
            self._numbers.setdefault(one.bucket, []).append(number)
        self._numbers = dict(sorted(self._numbers.items()))
        self._roles: dict[int, list[_Role]] = {bucket: [] for bucket in self._numbers}
        tag = 0
        for number, task in enumerate(plan.tasks):
            if (role := _role(number, task, rank, tag, label)) is not None:
                self._roles[plan.tensors[task.slices[0].tensor].bucket].append(role)
            tag += len(task.trees) + len(task.adders)
        self.tags = tag
        """Tags of a move."""

    def _same_everywhere(self) -> None:
        """Raise on every rank unless all have the same plan, which fits the group."""
        plan, transport = self.plan, self.transport
        fault = ""
        try:
            plan.check_itself()
            if plan.world_size != transport.world_size:
                fault = (
                    f"plan {plan.planner!r} was made for world size {plan.world_size}, the group has "
                    f"{transport.world_size} ranks; make the plan again for {transport.world_size} ranks"
                )
            elif wrong := [t for t in plan.tensors if t.source.partial and t.dtype in _NOT_SUMMED]:
                fault = f"tensor {wrong[0].name!r} is a sum of {wrong[0].dtype} partial sums, which are not summed"
        except PlanError as error:
            fault = str(error)
        digest = int.from_bytes(hashlib.sha256(plan.to_json().encode()).digest()[:8], "little", signed=True)
        own = torch.tensor([digest, int(bool(fault))])
        seen = torch.stack(transport.all_gather(own, "the comparison of reshard plans")).tolist()
        if fault:
            raise PlanError(fault)
        if others := [rank for rank, (_, broken) in enumerate(seen) if broken]:
            raise PlanError(f"rank {others[0]} refuses its reshard plan; its message says why")
        if different := [rank for rank, (other, _) in enumerate(seen) if other != digest]:
            raise PlanError(
                f"the reshard plan of rank {transport.rank} is not that of rank {different[0]}; give all ranks the "
                "same plan, made from the same links with the same seed"
            )

    def __call__(
        self, tensors: Sequence[Tensor | None], *, differentiable: bool = False, tag: int | None = None
    ) -> list[Tensor]:
        """Move the tensors.

        Args:
            tensors: This rank's part of each tensor of the plan, None where it holds none.
            differentiable: Whether gradients come back, the reverse way; said alike on all ranks. Then each rank
                calls `backward` on what it got, also one that only sends, whose results are empty.
            tag: First of `tags` tags that no other message on the group has meanwhile; None: one is taken, the same on
                all ranks as long as they make their moves in one order.

        Returns:
            This rank's part of each tensor after the move; empty, [0], where it has none.

        Raises:
            InputError: A part is missing or of another shape or type.
            PeerError: A peer closed its connection or was silent for the timeout; nothing is half-written in
                what was given.
        """
        held = self._held(tensors)
        if not differentiable:
            return self._moved(held, tag)
        parts = [held[n] if n in held else self._nothing(n) for n in range(len(self.plan.tensors))]
        # A rank that only receives has nothing that could ask for gradients.
        asked = torch.empty(0, requires_grad=True)
        return list(_Move.apply(self, asked, *parts))

    def start(self, tensors: Sequence[Tensor | None]) -> Resharding:
        """Start a move in the background; the parts must not change meanwhile.

        Args:
            tensors: This rank's part of each tensor of the plan. None if it holds none.
        """
        held = self._held(tensors)
        tag = first_tag(self.transport.group, self.tags)
        return Resharding(lambda: self._moved(held, tag))

    def consume(self, tensors: list[Tensor | None]) -> Iterator[dict[int, Tensor]]:
        """Move bucket by bucket, dropping the parts of a bucket from the list once moved.

        Args:
            tensors: This rank's part of each tensor of the plan, or None; all entries are None at the end.

        Yields:
            This rank's parts of the tensors of one bucket, by number.
        """
        self._held(tensors)
        tag = first_tag(self.transport.group, self.tags)
        for bucket, numbers in self._numbers.items():
            after = {n: self._new(n) for n in numbers if n in self._target.shapes}
            own = {n: part for n in numbers if n in self._source.shapes and (part := tensors[n]) is not None}
            self._carry(bucket, own, after, tag)
            own.clear()
            for number in numbers:
                tensors[number] = None
            yield after

    def close(self) -> None:
        """End the transport's threads."""
        self.transport.close()

    @property
    def reverse(self) -> Resharder:
        """Reverse move, created by all ranks at its first use."""
        # No cached_property: it holds a lock of the class while ranks that are threads wait for each other.
        if self._reverse is None:
            make = self._make_reverse or _plain_reverse
            options: dict[str, Any] = {"window": self._window, "in_steps": self._in_steps}
            self._reverse = Resharder(make(self.plan), self.transport, reverse=lambda _: self.plan, **options)
        return self._reverse

    def _held(self, tensors: Sequence[Tensor | None]) -> dict[int, Tensor]:
        if len(tensors) != len(self.plan.tensors):
            raise InputError(
                f"got {len(tensors)} tensors; expected {len(self.plan.tensors)}, one for each of the plan's, None "
                "where this rank holds no part"
            )
        held = {n: one for n, one in enumerate(tensors) if one is not None and n in self._source.shapes}
        self._source.check(held)
        return held

    def _moved(self, held: Mapping[int, Tensor], tag: int | None = None) -> list[Tensor]:
        first = first_tag(self.transport.group, self.tags) if tag is None else tag
        device = next((one.device for one in held.values()), None)
        found: list[Tensor] = [self._nothing(n) for n in range(len(self.plan.tensors))]
        for number in self._target.shapes:
            found[number] = self._new(number)
        for bucket, own in self._numbers.items():
            before = {n: held[n].detach() for n in own if n in held}
            self._carry(bucket, before, {n: found[n] for n in own if n in self._target.shapes}, first)
        return [one if device is None else one.to(device) for one in found]

    def _side(self) -> str:
        return "cuda" if self.transport.on_device else "cpu"

    def _nothing(self, number: int) -> Tensor:
        return torch.empty(0, dtype=getattr(torch, self.plan.tensors[number].dtype), device=self._side())

    def _new(self, number: int) -> Tensor:
        kind = getattr(torch, self.plan.tensors[number].dtype)
        return torch.empty(self._target.shapes[number], dtype=kind, device=self._side())

    def _carry(self, bucket: int, held: dict[int, Tensor], after: dict[int, Tensor], tag: int) -> None:
        """This rank's part in all tasks of a bucket."""
        held = {n: one.to(self._side()) for n, one in held.items()}
        legs, ends = list[Leg](), list[tuple[UnitTask, Tensor]]()
        sums: list[Callable[[], None]] = []
        for role in self._roles[bucket]:
            task, data = role.task, None
            if role.packs:
                data = pack_slices(task, self._source, held)
            if role.adds:
                assert data is not None
                total = self._add(role, data, tag, legs, sums)
                # What comes back to a rank that gave a partial sum needs memory of its own.
                data = total if self.transport.rank == task.adders[0] else None
            if data is None and role.gets:
                data = self._space(task, after)
            if data is None:
                continue
            legs += (
                leg._replace(tag=tag + leg.tag, data=data[leg.tree.start : leg.tree.stop])
                for leg in role.legs
            )
            if role.gets:
                ends.append((task, data))
        if legs:
            legs.sort(key=lambda leg: (leg.round, leg.tag))
            self._run(legs, bucket, sums)
        for task, data in ends:
            unpack(task, data, self._target, after)

    def _space(self, task: UnitTask, after: Mapping[int, Tensor]) -> Tensor:
        """Memory for what comes: the rank's own part where the slice lies in one piece there."""
        if len(task.slices) == 1:
            return pack_slices(task, self._target, after)
        return torch.empty(task.size_bytes, dtype=torch.uint8, device=self._side())

    def _add(
        self, role: _Role, data: Tensor, tag: int, legs: list[Leg], sums: list[Callable[[], None]]
    ) -> Tensor:
        """Legs of the partial sums; what the root sends on is filled when all have come."""
        rank, task, root, given = self.transport.rank, role.task, role.task.adders[0], dict[int, Tensor]()
        for number, giver in enumerate(task.adders[1:]):
            if rank not in (root, giver):
                continue
            edge = MulticastTree(start=0, stop=task.size_bytes, sender=giver, edges=((giver, root),))
            given[giver] = data if rank == giver else torch.empty_like(data)
            parent, children = (giver, ()) if rank == root else (None, (root,))
            what = f"{self._what}, round {task.round}, task {role.number}, partial sums"
            place = tag + role.tag + number
            legs.append(Leg(edge, task.round, place, given[giver], parent, children, what, adds=True))
        if rank != root:
            return data
        total = torch.empty_like(data)
        kind = getattr(torch, self.plan.tensors[task.slices[0].tensor].dtype)

        def add() -> None:
            total.copy_(
                sum_partials([data if giver == root else given[giver] for giver in task.adders], kind)
            )

        sums.append(add)
        return total

    def _run(self, legs: list[Leg], bucket: int, sums: list[Callable[[], None]]) -> None:
        move = self._stepwise(bucket) if self._in_steps else self._threaded
        # Partial sums of all rounds come first: a sum may be wanted in the first round.
        if adding := [leg for leg in legs if leg.adds]:
            move(adding)
        for add in sums:
            add()
        move([leg for leg in legs if not leg.adds])

    def _threaded(self, legs: list[Leg]) -> None:
        run_trees(self.transport, legs, self.plan.chunk_bytes, window=self._window)

    def _stepwise(self, bucket: int) -> Callable[[list[Leg]], None]:
        begins, step = dict[int, int](), 0
        tasks = [t for t in self.plan.tasks if self.plan.tensors[t.slices[0].tensor].bucket == bucket]
        for round_ in sorted({task.round for task in tasks}):
            begins[round_] = step
            trees = [tree for task in tasks if task.round == round_ for tree in task.trees]
            step += (
                max((-(-t.size_bytes // self.plan.chunk_bytes) + len(t.edges) for t in trees), default=0) + 1
            )
        return lambda legs: run_trees_in_steps(
            self.transport, legs, self.plan.chunk_bytes, lambda round_: begins[round_]
        )


class Resharding:
    """Move in flight.

    Args:
        work: Function that moves the tensors, called in a thread.
    """

    def __init__(self, work: Callable[[], list[Tensor]]) -> None:
        self._found: list[Tensor] | None = None
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name="wirewise-reshard", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error

    def ended(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` and return whether the move has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wait(self) -> list[Tensor]:
        """Parts after the move.

        Raises:
            PeerError: Raised as by `Resharder.__call__`.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found


def hosts_of_ranks(transport: Transport) -> tuple[int, ...]:
    """Host index of each rank, by host name; cached per group."""
    if transport.group not in _HOSTS:
        name = socket.gethostname().encode()[:64].ljust(64, b"\0")
        own = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        names = [bytes(one.tolist()) for one in transport.all_gather(own, "the names of the hosts")]
        numbers = {one: number for number, one in enumerate(dict.fromkeys(names))}
        _HOSTS[transport.group] = tuple(numbers[one] for one in names)
    return _HOSTS[transport.group]


class _Move(torch.autograd.Function):
    """A move forth, and its reverse for the gradients."""

    @staticmethod
    def forward(ctx: Any, resharder: Resharder, asked: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.resharder = resharder
        return tuple(resharder._moved(resharder._held(parts)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back: Resharder = ctx.resharder.reverse
        given = [one.contiguous() if n in back._source.shapes else None for n, one in enumerate(gradients)]
        return (None, None, *back(given))


def _plain_reverse(plan: ReshardPlan) -> ReshardPlan:
    """The plan of the way back between hosts that are all alike."""
    tensors = tuple(one.reverse for one in plan.tensors)
    found = cross_mesh(tensors, alike_links(plan.hosts), chunk_bytes=plan.chunk_bytes, seed=plan.seed)
    assert isinstance(found, ReshardPlan)
    return found


def _role(number: int, task: UnitTask, rank: int, tag: int, move: str) -> _Role | None:
    """Role of a rank in a task; None if it has none."""
    legs, what = [], f"{move}, round {task.round}, task {number}"
    for place, tree in enumerate(task.trees):
        parent = next((here for here, there in tree.edges if there == rank), None)
        if parent is None and tree.sender != rank:
            continue
        children = tuple(there for here, there in tree.edges if here == rank)
        own = tag + len(task.adders) + place
        legs.append(Leg(tree, task.round, own, _NO_DATA, parent, children, what))
    adds, keeps = rank in task.adders, rank in task.kept
    packs = adds or (keeps and not task.adders) or any(leg.parent is None for leg in legs)
    gets = rank in task.receivers
    return _Role(number, task, tag, tuple(legs), packs, adds, gets) if packs or gets else None
