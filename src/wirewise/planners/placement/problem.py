"""Tasks to place, and hosts with capacity for them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.arrays import Ints
from wirewise.planners.faces import expect_links
from wirewise.sim.flows import FlowSimulator
from wirewise.topology import Topology
from wirewise.trace.tasks import TaskSet

__all__ = ["Matrix", "PlacementProblem", "numbers_of", "problem_of"]

Matrix = NDArray[np.float64]

_FITS = 1e-9
"""Rounding that sums of demands may leave."""


@dataclass(frozen=True)
class PlacementProblem:
    """Tasks and hosts; placements are host numbers, [T], fixed for stores and for tasks with a given host.

    Raises:
        InputError: A task names a host that does not exist, or there are more names than links.
        PlanError: No placement can fit; the message names the resource that is short.
    """

    tasks: TaskSet
    hosts: tuple[str, ...]
    """Names, [H]; stores without a host are assigned round-robin."""
    links: Links
    room: dict[str, dict[str, float]] = field(default_factory=dict)
    """Capacity of hosts by name and resource, unless listed by the tasks."""
    resources: tuple[str, ...] = field(init=False)
    demand: Matrix = field(init=False, repr=False)
    """Demand of each task, [T, R]."""
    capacity: Matrix = field(init=False, repr=False)
    """Capacity of each host, [H, R]."""
    fixed: Ints = field(init=False, repr=False)
    """Host of each task that cannot move, or -1, [T]."""
    simulator: FlowSimulator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.hosts) != self.links.hosts or not self.hosts:
            raise InputError(
                f"got {len(self.hosts)} host names and links of {self.links.hosts}; expected as many"
            )
        tasks = self.tasks.tasks
        resources = tuple(
            sorted({name for task in tasks for name, amount in task.demand.items() if amount > 0})
        )
        demand = np.array([[task.demand.get(name, 0.0) for name in resources] for task in tasks])
        capacity = np.array([[self._room(host, name) for name in resources] for host in self.hosts])
        for name, value in (
            ("resources", resources),
            ("demand", demand.reshape(len(tasks), -1)),
            ("capacity", capacity.reshape(len(self.hosts), -1)),
            ("fixed", self._fixed()),
            ("simulator", FlowSimulator(self.tasks, self.links)),
        ):
            object.__setattr__(self, name, value)
        self._refuse_impossible()

    @property
    def free(self) -> Ints:
        """Indices of the movable tasks."""
        return np.flatnonzero(self.fixed < 0)

    @property
    def groups(self) -> list[Ints]:
        """Movable tasks of each worker: itself and its samplers."""
        owner = {t.name: t.worker or t.name for t in self.tasks.tasks if t.kind in ("worker", "sampler")}
        by_worker: dict[str, list[int]] = {}
        for number in self.free:
            name = self.tasks.tasks[number].name
            if name in owner:
                by_worker.setdefault(owner[name], []).append(int(number))
        return [np.array(members) for members in by_worker.values()]

    def left(self, placement: Ints) -> Matrix:
        """Remaining capacity, negative where tasks do not fit, [H, R]; tasks with place -1 use none."""
        left = self.capacity.copy()
        placed = placement >= 0
        np.subtract.at(left, placement[placed], self.demand[placed])
        return left

    def fits(self, placement: Ints) -> bool:
        """Whether all tasks are placed, fixed ones at their host, and no capacity is exceeded."""
        kept = (self.fixed < 0) | (placement == self.fixed)
        return bool((placement >= 0).all() and kept.all() and (self.left(placement) >= -_FITS).all())

    def hosts_for(self, members: Ints, left: Matrix) -> Ints:
        """Hosts with capacity for some tasks together."""
        return np.flatnonzero((left - self.demand[members].sum(axis=0) >= -_FITS).all(axis=1))

    def shortage(self, members: Ints, left: Matrix) -> str:
        """Explain why tasks that belong together fit on no host: the resource that fewest hosts have enough of."""
        enough = (left - self.demand[members].sum(axis=0) >= -_FITS).sum(axis=0)
        scarce = int(np.argmin(enough))
        names = ", ".join(self.tasks.tasks[member].name for member in members)
        return self._short(scarce, f"{names} find no host, the most left is {left[:, scarce].max():g}")

    def _short(self, resource: int, why: str) -> str:
        name = self.resources[resource]
        return (
            f"no room for all tasks: {name!r} is short: {why}; tasks demand {self.demand[:, resource].sum():g} of it, "
            f"hosts have {self.capacity[:, resource].sum():g}, at most {self.capacity[:, resource].max():g} each; give "
            "hosts more of it (`hosts` of the job, devices of the topology) or start fewer tasks"
        )

    def _refuse_impossible(self) -> None:
        whole, single = self.demand.sum(axis=0), self.demand.max(axis=0, initial=0.0)
        for resource in range(len(self.resources)):
            if whole[resource] > self.capacity[:, resource].sum() + _FITS:
                raise PlanError(self._short(resource, "demands add up to more than there is"))
            if single[resource] > self.capacity[:, resource].max() + _FITS:
                raise PlanError(self._short(resource, "a task demands more than any host has"))
        left = self.left(self.fixed)
        if (left < -_FITS).any():
            host, resource = (int(i) for i in np.argwhere(left < -_FITS)[0])
            raise PlanError(
                self._short(resource, f"tasks fixed on {self.hosts[host]!r} demand more than it has")
            )

    def _room(self, host: str, resource: str) -> float:
        for given in (self.tasks.hosts, self.room):
            if resource in given.get(host, {}):
                return float(given[host][resource])
        return 0.0

    def _fixed(self) -> Ints:
        numbers = {name: number for number, name in enumerate(self.hosts)}
        unknown = (
            sorted({t.host for t in self.tasks.tasks if t.host} | set(self.tasks.hosts)) if numbers else []
        )
        if missing := [name for name in unknown if name not in numbers]:
            raise InputError(f"there is no host {missing[0]!r}; expected one of: {', '.join(self.hosts)}")
        fixed, stores = [], 0
        for task in self.tasks.tasks:
            if task.host:
                fixed.append(numbers[task.host])
            elif task.kind == "store":
                fixed.append(stores % len(self.hosts))
            else:
                fixed.append(-1)
            stores += task.kind == "store"
        return np.array(fixed, np.int64)


def problem_of(tasks: TaskSet, links: Topology | Links | None) -> PlacementProblem:
    """Build the problem on the hosts of a topology, with its devices as capacity, by kind, such as "gpu".

    Links alone have neither names nor devices: their hosts are host0, host1 and so on, with the capacity given by the
    tasks.

    Raises:
        InputError, PlanError: As `PlacementProblem` and `Links.of`.
    """
    if not isinstance(links, Topology):
        between = expect_links(links)
        return PlacementProblem(tasks, tuple(f"host{number}" for number in range(between.hosts)), between)
    topology = links
    room: dict[str, dict[str, float]] = {}
    for device in topology.devices:
        of_host = room.setdefault(device.host, {})
        of_host[device.kind] = of_host.get(device.kind, 0.0) + 1.0
    return PlacementProblem(tasks, tuple(host.name for host in topology.hosts), Links.of(topology), room)


def numbers_of(problem: PlacementProblem, kind: str) -> list[int]:
    """Indices of the movable tasks of a kind."""
    return [int(number) for number in problem.free if problem.tasks.tasks[number].kind == kind]
