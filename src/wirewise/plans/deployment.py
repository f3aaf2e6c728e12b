"""Replicas of a model's ops on unequal devices: ranks and batch rows of each op, and gradient exchange."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import isfinite
from typing import ClassVar, Literal, NamedTuple

import msgspec

from wirewise.errors import PlanError
from wirewise.plans.base import Plan

__all__ = ["Communication", "DeployedDevice", "DeployedGroup", "DeploymentPlan", "RowMove"]

Communication = Literal["allreduce", "ps", "duplicate", "mp"]
"""Treatment of the gradients of a group of ops.

allreduce: replicas sum them around a ring. ps: each op's owner sums what the replicas have and sends them the sum.
duplicate: replicas exchange the sufficient factors of linear layers (inputs and gradients of outputs, by all_gather as
soon as the op's backward pass is done) and make the product over all rows themselves, behind their last backward pass;
what is not `duplicated` is summed around a ring. mp: each op runs on its owner alone, and nothing is exchanged.
"""


class DeployedDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device of a rank."""

    name: str
    host: str
    """Name of its host."""
    type: str = ""
    """Name of a profile; devices of one type and host form a device group."""
    speed: float = 1.0
    """Compute speed relative to the profiled device."""
    memory_bytes: float = 0.0
    """Memory for parameters, optimizer state and activations, in bytes; 0 for no limit."""


class RowMove(NamedTuple):
    """Batch rows held by one rank and needed by another."""

    source: int
    target: int
    start: int
    """First row."""
    stop: int
    """Row after the last one."""


class DeployedGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ops with the same placement."""

    ops: tuple[str, ...]
    """Names in the order of the forward pass."""
    devices: tuple[int, ...]
    """Ranks that run them, ascending."""
    communication: Communication
    rows: tuple[int, ...] = ()
    """Rows of the batch on each of the devices, at least 1, in order: the first device has rows 0 to `rows[0]`, and so
    on; empty under mp, where each op takes the whole batch."""
    owners: tuple[int, ...] = ()
    """Rank of each op: the one that runs it under mp, or reduces its gradients under ps; otherwise empty."""
    duplicated: tuple[str, ...] = ()
    """Ops whose linear layers exchange sufficient factors, under duplicate."""
    priority: int = 0
    """Launch order of gradient exchanges that compete for the same ranks, lowest first."""

    def rows_of(self, op: str, batch: int) -> dict[int, tuple[int, int]]:
        """First row and end of rows of an op on each rank that runs it, in order of rows.

        Args:
            op: Name of an op of the group.
            batch: Number of rows of the batch.
        """
        if self.communication == "mp":
            return {self.owners[self.ops.index(op)]: (0, batch)}
        ends = itertools.accumulate(self.rows, initial=0)
        return dict(zip(self.devices, itertools.pairwise(ends), strict=True))


class DeploymentPlan(Plan, frozen=True, kw_only=True, tag="deployment"):
    """Placement, rows and communication of all ops; ranks run the ops in the order of this plan.

    Every rank that runs an op receives its rows from the ranks of the previous ops (`moves`), and gradients of rows
    are sent back the same way. The loss is the mean over the whole batch, however its rows are split: each rank
    weights its rows with 1 / `batch`, so gradients are summed, not averaged.
    """

    family: ClassVar[str] = "deployment"

    batch: int
    """Rows per step, over all ranks."""
    devices: tuple[DeployedDevice, ...]
    """Device of each rank, [world size]."""
    groups: tuple[DeployedGroup, ...]
    predicted_step_s: float
    """Simulated seconds of a step, including the optimizer."""
    baseline_step_s: float
    """Simulated seconds with all ops on all devices, even rows and all-reduces."""
    predicted_bytes: tuple[int, ...]
    """Peak memory of each rank, [world size]."""
    notes: tuple[str, ...] = ()
    """Notes of the planner."""

    @property
    def headline(self) -> str:
        """Groups, devices, and the simulated step compared with data parallelism."""
        return (
            f"deployment plan by {self.planner!r} for {self.world_size} ranks: a step of {self.batch} rows takes "
            f"{self.predicted_step_s:.4g} s simulated, data-parallel {self.baseline_step_s:.4g} s"
        )

    @property
    def group_of(self) -> dict[str, DeployedGroup]:
        """Group of each op, by name."""
        return {op: group for group in self.groups for op in group.ops}

    def rows_of(self, op: str) -> dict[int, tuple[int, int]]:
        """First row and end of rows of an op on each rank that runs it, in order of rows."""
        return self.group_of[op].rows_of(op, self.batch)

    def moves(self, producer: str, consumer: str) -> list[RowMove]:
        """Rows of one op's output needed by another, in order of rows, including those already on the rank."""
        return [
            RowMove(source, target, max(first, begin), min(last, end))
            for target, (begin, end) in self.rows_of(consumer).items()
            for source, (first, last) in self.rows_of(producer).items()
            if max(first, begin) < min(last, end)
        ]

    @property
    def placements(self) -> list[dict[str, object]]:
        """Ops, devices, rows and communication of each group, in words."""
        return [
            {
                "ops": list(group.ops),
                "devices": [self.devices[rank].name for rank in group.devices],
                "rows": list(group.rows),
                "communication": group.communication,
            }
            for group in self.groups
        ]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per group: its ops, gradient exchange, and rows on each device."""
        rows = []
        for group in self.groups:
            own = dict(zip(group.devices, group.rows or (self.batch,) * len(group.devices), strict=True))
            ends = group.ops[0] if len(group.ops) == 1 else f"{group.ops[0]}..{group.ops[-1]}"
            places = [str(own.get(rank, "-")) for rank in range(self.world_size)]
            rows.append([ends, str(len(group.ops)), group.communication, *places])
        return ["group", "ops", "gradients", *(device.name for device in self.devices)], rows

    def check_itself(self) -> None:
        """Raise if rows do not add up, or ranks or ops are wrong; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in (*self._value_faults(), *self._group_faults()):
            raise PlanError(fault)

    def _value_faults(self) -> Iterator[str]:
        if self.batch < 1:
            yield f"batch is {self.batch} - at `$.batch`; expected at least 1"
        for name in ("devices", "predicted_bytes"):
            if (count := len(getattr(self, name))) != self.world_size:
                yield f"there are {count} - at `$.{name}`; expected one for each of {self.world_size} ranks"
        for number, device in enumerate(self.devices):
            where = f"device {device.name!r} - at `$.devices[{number}]`"
            if not (isfinite(device.speed) and device.speed > 0):
                yield f"{where}: speed is {device.speed}; expected a finite factor above 0"
            if not (isfinite(device.memory_bytes) and device.memory_bytes >= 0):
                yield f"{where}: memory_bytes is {device.memory_bytes}; expected a finite figure of at least 0"
        for name in ("predicted_step_s", "baseline_step_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                yield f"{name} is {value} - at `$.{name}`; expected a finite figure of at least 0"
        if not self.groups:
            yield "there is no group - at `$.groups`; expected at least one"

    def _group_faults(self) -> Iterator[str]:
        seen: set[str] = set()
        for number, group in enumerate(self.groups):
            for fault in (*self._place_faults(group), *_op_faults(group, seen)):
                yield f"group {number} - at `$.groups[{number}]`: {fault}"
            seen.update(group.ops)

    def _place_faults(self, group: DeployedGroup) -> Iterator[str]:
        devices = group.devices
        if (
            not devices
            or list(devices) != sorted(set(devices))
            or not 0 <= devices[0] <= devices[-1] < self.world_size
        ):
            yield f"devices are {list(devices)}; expected ascending ranks, 0 to {self.world_size - 1}"
        if group.communication == "mp":
            if group.rows or set(group.owners) != set(devices):
                yield (
                    f"rows are {list(group.rows)} and owners {list(group.owners)} under mp; expected no rows, and "
                    f"each of the devices {list(devices)} as an owner"
                )
        elif (
            len(group.rows) != len(devices) or min(group.rows, default=0) < 1 or sum(group.rows) != self.batch
        ):
            yield (
                f"rows are {list(group.rows)}; expected at least 1 for each of {len(devices)} devices, {self.batch} "
                "in all"
            )


def _op_faults(group: DeployedGroup, seen: set[str]) -> Iterator[str]:
    if not group.ops or len(set(group.ops)) < len(group.ops) or not all(group.ops) or seen & set(group.ops):
        yield f"ops are {list(group.ops)}; expected at least one, and each name in one group once"
    owned = group.communication in ("mp", "ps")
    if len(group.owners) != (len(group.ops) if owned else 0) or not set(group.owners) <= set(group.devices):
        yield (
            f"owners are {list(group.owners)} under {group.communication}; expected "
            + (f"one of the devices for each of {len(group.ops)} ops" if owned else "none")
        )
    if group.communication == "duplicate" and len(group.devices) < 2:
        yield f"devices are {list(group.devices)} under duplicate; expected at least two"
    duplicated = set(group.duplicated)
    if (
        len(duplicated) < len(group.duplicated)
        or not duplicated <= set(group.ops)
        or (bool(duplicated) != (group.communication == "duplicate"))
    ):
        yield (
            f"duplicated are {list(group.duplicated)} under {group.communication}; expected ops of the group under "
            "duplicate, and none otherwise"
        )
