"""Rows of other machines' nodes that each machine keeps during mini-batch training."""

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

__all__ = ["CachePlan", "MachineCache", "owner_digest", "packed"]


def owner_digest(owner: NDArray[Any]) -> str:
    """Hash of a partition: a plan fits only the one that it was made for."""
    return hashlib.blake2b(np.ascontiguousarray(owner, dtype="<i8").tobytes(), digest_size=16).hexdigest()


def packed(nodes: NDArray[Any]) -> bytes:
    """Node ids as a plan holds them."""
    return np.ascontiguousarray(nodes, dtype="<i8").tobytes()


class MachineCache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one machine keeps, and what it still fetches."""

    nodes: bytes
    """Global ids of the remote nodes that it keeps, ascending, 8 bytes each, little endian."""
    budget: int
    """Rows that it has space for."""
    needed: tuple[float, ...]
    """Rows of each machine that its batches need on average, [machines]; of its own: 0."""
    fetched: tuple[float, ...]
    """Rows among them that it does not keep, [machines]."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """The nodes as int64 [n]."""
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
    """Batches of each machine in an epoch."""
    semantics: str = "cumulative"
    imbalance: float = 1.0
    """Rows over the busiest link of a batch, mean of batches, over those of the busiest link of the mean batch.

    Batches differ, and an exchange ends with its slowest machine.
    """

    @property
    def remaining(self) -> float:
        """Share of the remote rows that is still fetched."""
        needed = sum(sum(machine.needed) for machine in self.machines)
        return sum(sum(machine.fetched) for machine in self.machines) / needed if needed else 0.0

    @property
    def fetched(self) -> NDArray[np.float64]:
        """Rows a batch that each machine fetches (row) of each other (column), [machines, machines]."""
        return np.array([machine.fetched for machine in self.machines])

    def check_itself(self) -> None:
        """Raise if a value is out of range or a machine keeps what it cannot; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in (*self._value_faults(), *self._machine_faults()):
            raise PlanError(fault)

    def check_partition(self, owner: NDArray[Any]) -> None:
        """Raise unless the plan was made for this partition.

        Args:
            owner: Machine of each node, [N].

        Raises:
            PlanError: Another partition.
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
        """A row for each machine, then one for all."""
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
        rows.append(["all", "-", "-", "-", "-", f"{self.remaining:.1%}"])
        return ["machine", "keeps", "of", "needs a batch", "fetches", "left"], rows


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
