"""Remote node features that each machine caches during mini-batch training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from math import inf, isfinite
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import PlanError
from wirewise.plans.base import Plan

__all__ = ["CachePlan", "MachineCache", "owner_digest", "pack_node_ids"]


def owner_digest(owner: NDArray[Any]) -> str:
    """Hash of a partition; a plan fits only the partition it was made for."""
    return hashlib.blake2b(np.ascontiguousarray(owner, dtype="<i8").tobytes(), digest_size=16).hexdigest()


def pack_node_ids(nodes: NDArray[Any]) -> bytes:
    """Pack node ids for a plan."""
    return np.ascontiguousarray(nodes, dtype="<i8").tobytes()


class MachineCache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows cached by one machine, and rows that it still fetches."""

    nodes: bytes
    """Global ids of the cached remote nodes, ascending, 8 bytes each, little endian."""
    budget: int
    """Capacity, in rows."""
    needed: tuple[float, ...]
    """Mean number of rows of each machine that its batches need, [machines]; 0 for itself."""
    fetched: tuple[float, ...]
    """Mean number of these rows that are not cached, [machines]."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """Node ids as int64 [n]."""
        return np.frombuffer(self.nodes, dtype="<i8").astype(np.int64)


class CachePlan(Plan, frozen=True, kw_only=True, tag="cache"):
    """Cached rows of all machines; a machine is a rank."""

    family: ClassVar[str] = "cache"

    machines: tuple[MachineCache, ...]
    num_nodes: int
    owner: str
    """`owner_digest` of the partition."""
    fanouts: tuple[int, ...]
    batch_size: int
    """Seeds of a machine's batch."""
    batches: int
    """Batches per epoch on each machine."""
    semantics: str = "cumulative"
    imbalance: float = 1.0
    """Mean rows per batch over the batch's busiest link, relative to the busiest link of the mean batch.

    Batches differ, and an exchange ends with its slowest machine.
    """

    @property
    def remote_fraction(self) -> float:
        """Fraction of the remote rows still fetched."""
        needed = sum(sum(machine.needed) for machine in self.machines)
        return sum(sum(machine.fetched) for machine in self.machines) / needed if needed else 0.0

    @property
    def fetched(self) -> NDArray[np.float64]:
        """Rows per batch that each machine fetches (row) from each other (column), [machines, machines]."""
        return np.array([machine.fetched for machine in self.machines])

    def check_itself(self) -> None:
        """Raise if a value is out of range or a machine caches invalid nodes; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in (*self._value_faults(), *self._machine_faults()):
            raise PlanError(fault)

    def check_partition(self, owner: NDArray[Any]) -> None:
        """Raise unless the plan was made for this partition.

        Args:
            owner: Machine of each node, [N].

        Raises:
            PlanError: The plan was made for another partition.
        """
        if owner_digest(owner) != self.owner:
            raise PlanError(
                f"the cache plan by {self.planner!r} was made for another partition of {self.num_nodes} nodes over "
                f"{self.world_size} machines than this one of {len(owner)} nodes over {int(owner.max()) + 1}; make "
                "it again for this partition"
            )

    def _value_faults(self) -> Iterator[str]:
        if len(self.machines) != self.world_size:
            yield f"{len(self.machines)} machines - at `$.machines`; expected {self.world_size}, one for each rank"
        for name in ("num_nodes", "batch_size"):
            if (value := getattr(self, name)) < 1:
                yield f"{name} is {value} - at `$.{name}`; expected at least 1"
        if not 1 <= self.imbalance < inf:
            yield f"imbalance is {self.imbalance} - at `$.imbalance`; expected a finite factor of at least 1"
        if self.batches < 0 or not self.fanouts or min(self.fanouts) < -1:
            yield (
                f"{self.batches} batches with fanouts {list(self.fanouts)} - at `$.fanouts`; expected 0 or more, and "
                "fanouts of at least -1"
            )

    def _machine_faults(self) -> Iterator[str]:
        for number, machine in enumerate(self.machines):
            where = f"machine {number} - at `$.machines[{number}]`"
            if len(machine.nodes) % 8:
                yield f"{where}: ids take {len(machine.nodes)} bytes; expected 8 each, the file is damaged"
                continue
            ids = machine.ids
            if len(ids) and (ids[0] < 0 or ids[-1] >= self.num_nodes or (np.diff(ids) <= 0).any()):
                yield f"{where}: ids are not ascending from 0 to {self.num_nodes - 1}; make the plan again"
            if len(ids) > machine.budget:
                yield f"{where}: keeps {len(ids)} rows with space for {machine.budget}; make the plan again"
            rows = (*machine.needed, *machine.fetched)
            if len(rows) != 2 * self.world_size or not all(isfinite(row) and row >= 0 for row in rows):
                yield f"{where}: rows a batch are {list(rows)[:8]}; expected a finite figure for each machine, twice"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per machine, then one for all."""
        rows = [
            [
                str(number),
                str(len(machine.ids)),
                str(machine.budget),
                f"{sum(machine.needed):.0f}",
                f"{sum(machine.fetched):.0f}",
                _share(sum(machine.fetched), sum(machine.needed)),
            ]
            for number, machine in enumerate(self.machines)
        ]
        rows.append(["all", "-", "-", "-", "-", f"{self.remote_fraction:.1%}"])
        return ["machine", "keeps", "of", "needs a batch", "fetches", "left"], rows


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
