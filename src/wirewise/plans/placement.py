"""Hosts of the tasks of distributed GNN training, and the priorities of their flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import ClassVar, Literal, get_args

import msgspec

from wirewise.errors import PlanError
from wirewise.plans.base import Plan, TopologyLike

__all__ = ["FlowPolicy", "PlacedTask", "PlacementPlan"]

TaskKind = Literal["store", "sampler", "worker", "server"]
"""Kinds of tasks, equal to `wirewise.trace.tasks.TaskKind`; written again because that folder takes a tenth of a
second to import."""

FlowPolicy = Literal["iter", "maxmin", "oes", "fifo", "mrtf", "omcoflow"]
"""Policy by which flows share the interfaces of hosts (`wirewise.sim.flows.rates`)."""

_NAMED = 4
"""Tasks that a message names at most."""


class PlacedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Task and its host."""

    name: str
    kind: TaskKind
    host: int
    """Index of the host."""
    demand: dict[str, float] = {}
    """Amounts of its host's resources that the task needs, by name."""


class PlacementPlan(Plan, frozen=True, kw_only=True, tag="placement"):
    """Hosts of all tasks; the world size is the number of hosts."""

    family: ClassVar[str] = "placement"

    tasks: tuple[PlacedTask, ...]
    hosts: tuple[str, ...]
    """Names of the hosts, [world size]."""
    policy: FlowPolicy
    iterations: int
    """Number of simulated iterations."""
    prefetch: int
    """Iterations that samplers may run ahead of their worker."""
    predicted_s: float
    """Simulated time of all iterations."""
    colocated_s: float
    """Predicted seconds with samplers on their workers' hosts and workers spread evenly; 0 if that does not fit."""
    lower_bound_s: float
    """Lower bound for any order of flows under this placement, in seconds."""
    competitive_ratio: float
    """Maximum number of flows that share one direction of an interface; under `oes` no run takes longer than this
    multiple of the shortest possible one (Luo, Bao, Wu, INFOCOM 2022)."""

    @property
    def places(self) -> dict[str, int]:
        """Host of each task, by name."""
        return {task.name: task.host for task in self.tasks}

    @property
    def headline(self) -> str:
        """Hosts, and the simulated time compared with colocated tasks."""
        said = (
            f"placement plan by {self.planner!r} for {self.world_size} hosts: {self.iterations} iterations take "
            f"{self.predicted_s:.4g} s simulated under {self.policy}"
        )
        if self.colocated_s > 0:
            said += f", colocated {self.colocated_s:.4g} s"
        return said

    def check_tasks(self, kinds: Mapping[str, TaskKind]) -> None:
        """Raise if the plan was made for other tasks.

        Args:
            kinds: Kind of each task of the job, by name.

        Raises:
            PlanError: The message names tasks that only one of the two has, or whose kinds differ.
        """
        own = {task.name: task.kind for task in self.tasks}
        different = {
            "unknown to the job": sorted(own.keys() - kinds.keys()),
            "not placed": sorted(kinds.keys() - own.keys()),
            "of another kind": sorted(name for name in own.keys() & kinds.keys() if own[name] != kinds[name]),
        }
        if any(different.values()):
            said = "; ".join(f"{what}: {_some(names)}" for what, names in different.items() if names)
            raise PlanError(
                f"plan {self.planner!r} was made for other tasks; {said}; make the plan again for this job"
            )

    def check(self, topology: TopologyLike) -> None:
        """Raise if the plan is inconsistent or was made for another number of hosts; see `Plan.check`."""
        if len(topology.hosts) != self.world_size:
            raise PlanError(
                f"plan {self.planner!r} was made for world size {self.world_size}, the topology has "
                f"{len(topology.hosts)} hosts; make the plan again for these hosts"
            )
        self.check_itself()

    def check_itself(self) -> None:
        """Raise if a value is out of range or a name occurs twice; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in (*self._task_faults(), *self._value_faults()):
            raise PlanError(fault)

    def _task_faults(self) -> Iterator[str]:
        seen: dict[str, int] = {}
        for number, task in enumerate(self.tasks):
            where = f"task {number} - at `$.tasks[{number}]`"
            if not task.name or task.name in seen:
                yield f"{where}: name {task.name!r} is empty or that of task {seen.get(task.name)}; give each its own"
            seen[task.name] = number
            if not 0 <= task.host < self.world_size:
                yield f"{where}: host is {task.host}; expected 0 to {self.world_size - 1}"
            for resource, amount in task.demand.items():
                if not isfinite(amount) or amount < 0:
                    yield f"{where}: demands {amount} of {resource!r}; expected a finite amount of at least 0"

    def _value_faults(self) -> Iterator[str]:
        if len(self.hosts) != self.world_size or len(set(self.hosts)) != self.world_size:
            yield f"hosts are {list(self.hosts)} - at `$.hosts`; expected {self.world_size} different names"
        for name in ("iterations", "prefetch"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)} - at `$.{name}`; expected at least 1"
        for name in ("predicted_s", "colocated_s", "lower_bound_s", "competitive_ratio"):
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                yield f"{name} is {value} - at `$.{name}`; expected a finite figure of at least 0"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per host, with its tasks."""
        rows = []
        for number, name in enumerate(self.hosts):
            here = [task for task in self.tasks if task.host == number]
            rows.append([name, *(_names(here, kind) for kind in get_args(TaskKind))])
        return ["host", "stores", "samplers", "workers", "servers"], rows


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _names(tasks: list[PlacedTask], kind: TaskKind) -> str:
    return " ".join(task.name for task in tasks if task.kind == kind) or "-"
