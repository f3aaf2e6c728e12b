"""Construction of the engine's arrays op by op, where a graph is small; `links.prepare` converts whole arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.engine import Ops, Run, run
from wirewise.sim.sharing import InterfaceUse

__all__ = ["OpGraph"]

Ints = NDArray[np.int64]


class OpGraph:
    """Ops, their order, and the interfaces that transfers use. Resources run one op at a time."""

    def __init__(self) -> None:
        self._duration: list[float] = []
        self._work: list[float] = []
        self._priority: list[int] = []
        self._resource: list[int] = []
        self._interface: list[int] = []
        self._weight: list[float] = []
        self._owner: list[int] = []
        self._before: list[int] = []
        self._after: list[int] = []
        self._resources: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._duration)

    def add(
        self,
        seconds: float,
        *,
        work: float = 0.0,
        interfaces: Sequence[int] = (),
        weights: Sequence[float] = (),
        resource: Hashable = None,
        priority: int = 0,
    ) -> int:
        """Add an op, and return its number.

        Args:
            seconds: Duration; of a transfer, the time before its bytes flow.
            work: Bytes of the largest flow of a transfer. Defaults to 0, for an op that is no transfer.
            interfaces: Numbers of the interfaces that it uses.
            weights: Bytes on each of these per byte of the largest flow.
            resource: Name of the resource that runs it. Defaults to none, so that it starts as soon as it can.
            priority: Priority on the resource; the smallest goes first.
        """
        number = len(self)
        self._duration.append(seconds)
        self._work.append(work)
        self._priority.append(priority)
        self._resource.append(
            -1 if resource is None else self._resources.setdefault(resource, len(self._resources))
        )
        self._interface += interfaces
        self._weight += weights
        self._owner += [number] * len(interfaces)
        return number

    def follows(self, after: int, before: int | None) -> None:
        """Let an op start only when another one has ended; None is no op."""
        if before is not None:
            self._before.append(before)
            self._after.append(after)

    def run(self, capacity: NDArray[np.float64]) -> Run:
        """Simulate the graph.

        Args:
            capacity: Bytes per second of each interface, above 0 and finite.

        Returns:
            Times of all ops; NaN for ops on a cycle.
        """
        n, before, owner = len(self), np.array(self._before, np.int64), np.array(self._owner, np.int64)
        ops = Ops(
            duration=np.array(self._duration, np.float64),
            gap=np.zeros(n),
            release=np.zeros(n),
            work=np.array(self._work, np.float64),
            resource=np.array(self._resource, np.int64),
            priority=np.array(self._priority, np.int64),
            indptr=_row_starts(before, n),
            successors=np.array(self._after, np.int64)[np.argsort(before, kind="stable")],
            slots=np.ones(len(self._resources), np.int64),
        )
        uses = InterfaceUse(
            _row_starts(owner, n),
            np.array(self._interface, np.int64),
            np.array(self._weight, np.float64),
            owner,
            capacity,
        )
        return run(ops, uses)


def _row_starts(row: Ints, rows: int) -> Ints:
    """First element of each row, [rows + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)
