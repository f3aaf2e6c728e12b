"""Op groups of a model, groups of unequal devices, and the possible actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from math import inf
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.placement.tag.factors import FactorProblem, duplicated_ops
from wirewise.planners.placement.tag.grouping import group_modules
from wirewise.planners.placement.tag.operators import modules_of
from wirewise.plans.deployment import Communication, DeployedDevice, DeployedGroup, DeploymentPlan
from wirewise.sim.deployments import DeploymentSimulator, DeploymentStep, Spread
from wirewise.sim.lowering.deployment import WAYS
from wirewise.topology import Topology
from wirewise.trace.operator_graph import OperatorGraph
from wirewise.trace.stages import StageTrace
from wirewise.units import format_size

__all__ = ["Action", "DeploymentProblem", "Strategy", "problem_of"]

Kept = TypeVar("Kept")

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

_MOST_SETS = 31
"""Sets of device groups that op groups are placed on, where there are more than five device groups."""

Strategy = tuple[int, ...]
"""Index of an action for each op group."""


class Action(NamedTuple):
    """Action for an op group."""

    groups: tuple[int, ...]
    """Device groups that it is placed on."""
    communication: Communication
    proportional: bool
    """Whether rows are proportional to the speeds of the devices; otherwise they are even."""


class _Placed(NamedTuple):
    """An action as part of a `Spread`."""

    first: Ints
    rows: Ints
    communication: Ints
    priority: Ints
    unit: Ints
    """Unit of each module of the group, from 0."""
    owner: Ints
    duplicated: Ints


@dataclass(frozen=True)
class DeploymentProblem:
    """Model, unequal devices and batch.

    Raises:
        InputError: There is not one device per rank, no rows, a module takes no time, or a profile is of a type that
            no device has.
    """

    trace: StageTrace
    """Modules, which stand for ops."""
    links: Links
    devices: tuple[DeployedDevice, ...]
    """Device of each rank."""
    batch: int
    """Rows of a step."""
    profiles: Mapping[str, StageTrace] = field(default_factory=dict)
    """The modules measured on other types of devices, by name of the type."""
    groups: int = 12
    """Largest number of op groups."""

    def __post_init__(self) -> None:
        if len(self.devices) != self.links.world_size or self.batch < 1 or self.groups < 1:
            raise InputError(
                f"got {len(self.devices)} devices for {self.links.world_size} ranks, {self.batch} rows and "
                f"{self.groups} groups; expected a device a rank, and at least 1 of the others"
            )
        if not any(sum(m.forward_s) + sum(m.backward_s) > 0 for m in self.trace.modules):
            raise InputError(
                "modules take no time at all; expected seconds of their passes, as `wirewise profile stages` measures"
            )
        numbers = self.trace.numbers
        for name, profile in self.profiles.items():
            if profile.numbers != numbers:
                raise InputError(f"the profile of {name!r} is of other modules; expected those of the job")
        if unused := sorted(set(self.profiles) - (types := {device.type for device in self.devices})):
            raise InputError(
                f"got profiles of {', '.join(map(repr, unused))}; expected types of the devices: "
                f"{', '.join(map(repr, sorted(types - {''}))) or 'they have none'}"
            )

    @cached_property
    def simulator(self) -> DeploymentSimulator:
        """Simulator of the model on the devices."""
        return DeploymentSimulator(self.trace, self.links, self.devices, self.batch, self.profiles)

    @cached_property
    def device_groups(self) -> list[list[int]]:
        """Ranks of equal devices on a host."""
        found: dict[tuple[object, ...], list[int]] = {}
        for rank, one in enumerate(self.devices):
            key = (int(self.links.host_of_rank[rank]), one.type, one.speed, one.memory_bytes)
            found.setdefault(key, []).append(rank)
        return list(found.values())

    @cached_property
    def op_groups(self) -> list[list[int]]:
        """Module indices of each op group, in topological order."""
        return group_modules(self.trace, self.groups)

    @cached_property
    def seconds(self) -> Vector:
        """Seconds of both passes of each op group with the whole batch on each device, [G, D]."""
        costs = self.simulator.costs
        both = (costs.forward + costs.backward)[costs.type, self.batch] / costs.speed[:, None]
        return np.stack([both[:, group].sum(axis=1) for group in self.op_groups])

    @cached_property
    def order(self) -> list[int]:
        """Op groups by time, the longest first."""
        return sorted(range(len(self.op_groups)), key=lambda g: -self.seconds[g].mean())

    def ranks(self, groups: Sequence[int]) -> list[int]:
        """Ranks of some device groups."""
        return sorted(chain.from_iterable(self.device_groups[g] for g in groups))

    @cached_property
    def actions(self) -> list[list[Action]]:
        """Actions of each op group."""
        return [self._actions_of(g) for g in range(len(self.op_groups))]

    def baseline(self) -> Strategy:
        """Baseline: everything on all devices, even rows, all-reduces; fewer devices if there are fewer rows."""
        return self.uniform_strategy("allreduce", proportional=False)

    def uniform_strategy(self, communication: Communication, *, proportional: bool) -> Strategy:
        """Strategy with one communication scheme and row rule for all op groups on all devices."""
        wanted = Action(tuple(range(len(self.device_groups))), communication, proportional)
        even = wanted._replace(proportional=False)
        return tuple(
            of_group.index(wanted if wanted in of_group else even if even in of_group else of_group[-1])
            for of_group in self.actions
        )

    def seconds_of(self, strategy: Strategy) -> float:
        """Simulated step time in seconds; infinite if a device runs out of memory."""
        step = self.step(strategy)
        return inf if (step.memory > self.simulator.room).any() else step.step_s

    def step(self, strategy: Strategy) -> DeploymentStep:
        """Simulate a step regardless of memory; the last result is cached."""
        if self._kept.get("strategy") != strategy:
            self._kept["strategy"], self._kept["step"] = strategy, self.simulator.step(self.spread(strategy))
        kept: DeploymentStep = self._kept["step"]
        return kept

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """Cached value under this name, computed by `make` on first use."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: Kept = self._kept[name]
        return kept

    def first_rows(self, group: int) -> tuple[Ints, Ints]:
        """First row and number of rows of an op group on each device under each of its actions, [actions, D].

        Under mp, rows of all its modules together.
        """
        return self.keep(
            f"rows {group}",
            lambda: (
                np.stack([one.first.max(axis=0) for one in self._placed[group]]),
                np.stack([one.rows.max(axis=0) for one in self._placed[group]]),
            ),
        )

    def slowest_port(self, groups: Sequence[int]) -> float:
        """Bandwidth of the slowest link between device groups for rows and gradients, in bytes per second."""
        hosts = self.links.host_of_rank[self.ranks(groups)]
        return min(self._ring(hosts)[0], 1e11) if len(hosts) > 1 else 1e11

    def spread(self, strategy: Strategy) -> Spread:
        """Convert a strategy to arrays for the simulator."""
        parts = [self._placed[g][a] for g, a in enumerate(strategy)]
        unit, owner, duplicated = (np.empty(len(self.trace.modules), np.int64) for _ in range(3))
        base = 0
        for group, one in zip(self.op_groups, parts, strict=True):
            unit[group] = one.unit + base
            owner[group] = one.owner
            duplicated[group] = one.duplicated
            base += len(one.rows)
        return Spread(
            unit,
            np.concatenate([one.first for one in parts]),
            np.concatenate([one.rows for one in parts]),
            np.concatenate([one.communication for one in parts]),
            owner,
            duplicated,
            np.concatenate([one.priority for one in parts]),
        )

    def plan(
        self, strategy: Strategy, planner: str, seed: int, notes: tuple[str, ...] = ()
    ) -> DeploymentPlan:
        """Build the plan of a strategy, with its simulated figures.

        Raises:
            PlanError: A device runs out of memory; the message says which, and by how much.
        """
        step = self.step(strategy)
        over = step.memory - self.simulator.room
        if (over > 0).any():
            rank = int(over.argmax())
            raise PlanError(
                f"no plan by {planner!r} fits: device {self.devices[rank].name!r} lacks {format_size(over[rank])} of "
                f"{format_size(step.memory[rank])}; give more or larger devices, or a smaller batch"
            )
        return DeploymentPlan(
            world_size=len(self.devices),
            planner=planner,
            seed=seed,
            batch=self.batch,
            devices=self.devices,
            groups=tuple(self._deployed(g, a) for g, a in enumerate(strategy)),
            predicted_step_s=step.step_s,
            baseline_step_s=self.step(self.baseline()).step_s,
            predicted_bytes=tuple(int(size) for size in step.memory),
            notes=notes,
        )

    def shares(self, ranks: Sequence[int], *, proportional: bool) -> Ints:
        """Rows of each rank, at least 1; proportional ones equalise the time of a pass."""
        return self.keep(f"shares {list(ranks)} {proportional}", lambda: self._shares(ranks, proportional))

    def _shares(self, ranks: Sequence[int], proportional: bool) -> Ints:
        rows = np.full(len(ranks), self.batch // len(ranks), np.int64)
        rows[: self.batch % len(ranks)] += 1
        if not proportional or self.batch < len(ranks):
            return rows
        costs, of_type = self.simulator.costs, self.simulator.costs.type[list(ranks)]
        seconds = (costs.forward + costs.backward).sum(axis=2)[of_type] / costs.speed[list(ranks), None]
        rows[:] = 1
        # Each further row goes where it is done first.
        for _ in range(self.batch - len(ranks)):
            rows[np.argmin(seconds[np.arange(len(ranks)), rows + 1])] += 1
        return rows

    @cached_property
    def _sets(self) -> list[tuple[int, ...]]:
        """Sets of device groups that op groups are placed on."""
        count = len(self.device_groups)
        numbers = range(count)
        if count <= 5:
            return [some for size in range(1, count + 1) for some in combinations(numbers, size)]
        speed = [sum(self.devices[rank].speed for rank in group) for group in self.device_groups]
        rate = self.links.bandwidth_out_bytes_per_s[
            [self.links.host_of_rank[group[0]] for group in self.device_groups]
        ]
        best = [sorted(numbers, key=lambda g: -by[g]) for by in (speed, rate)]
        leading = [tuple(sorted(order[:k])) for k in range(2, count + 1) for order in best]
        return list(dict.fromkeys([*((g,) for g in numbers), *leading]))[:_MOST_SETS]

    def _actions_of(self, g: int) -> list[Action]:
        factored = any(self.trace.modules[m].factored_bytes > 0 for m in self.op_groups[g])
        found = []
        for some in self._sets:
            ranks = self.ranks(some)
            if len(ranks) == 1:
                found.append(Action(some, "mp", False))
                continue
            shares = (
                [False]
                if len({tuple(self.shares(ranks, proportional=p)) for p in (False, True)}) == 1
                else [False, True]
            )
            if len(ranks) <= self.batch:
                found += [Action(some, way, p) for p in shares for way in ("allreduce", "ps")]
            if len(ranks) <= self.batch and factored:
                found += [
                    action for p in shares if self._duplicated(g, action := Action(some, "duplicate", p))
                ]
            if len(ranks) <= len(self.op_groups[g]):
                found.append(Action(some, "mp", False))
        if not any(action.communication != "mp" or len(action.groups) == 1 for action in found):
            # Fewer rows and ops than devices everywhere: one device of a group has to do.
            found.append(Action(self._sets[0], "mp", False))
        return found

    def _duplicated(self, g: int, action: Action) -> list[int]:
        """Modules of a group whose factors are worth exchanging."""
        return self.keep(f"duplicated {g} {action}", lambda: self._worth_duplicating(g, action))

    def _worth_duplicating(self, g: int, action: Action) -> list[int]:
        ranks = self.ranks(action.groups)
        rows, costs = self.shares(ranks, proportional=action.proportional), self.simulator.costs
        n, modules = len(ranks), self.op_groups[g]
        hosts = self.links.host_of_rank[ranks]
        slowest, latency = self._ring(hosts)
        device = ranks[int(np.argmin(costs.speed[ranks]))]
        weight = costs.weight[costs.type[device], :, modules] / costs.speed[device]
        extra = weight[:, self.batch] - weight[:, rows[ranks.index(device)]]
        saved = [2 * (n - 1) * (costs.factored[m] / n / slowest + latency) for m in modules]
        sent = [(self.batch - rows.min()) * costs.factor[m] / slowest + (n - 1) * latency for m in modules]
        # Inputs and output gradients of a module's linear layers are made by ops that stay as they are.
        count, without = len(modules), [k for k, m in enumerate(modules) if costs.factored[m] <= 0]
        problem = FactorProblem(
            [*extra, *np.zeros(count)],
            [*saved, *np.zeros(count)],
            [*np.zeros(count), *sent],
            [(count + k, k) for k in range(count)],
            [*without, *range(count, 2 * count)],
        )
        return [modules[k] for k in duplicated_ops(problem)]

    def _ring(self, hosts: Ints) -> tuple[float, float]:
        """Rate of the slowest link of a ring and its largest latency."""
        pairs = list(zip(hosts, np.roll(hosts, -1), strict=True))
        links = self.links
        rate = min(
            min(links.bandwidth_out_bytes_per_s[a], links.bandwidth_in_bytes_per_s[b])
            if a != b
            else links.intra_bytes_per_s[a] / (hosts == a).sum()
            for a, b in pairs
        )
        return float(rate), float(max(links.latency_s[a, b] for a, b in pairs))

    @cached_property
    def _deployments(self) -> dict[tuple[int, int], DeployedGroup]:
        return {}

    def _deployed(self, g: int, a: int) -> DeployedGroup:
        if (g, a) in self._deployments:
            return self._deployments[g, a]
        action, modules = self.actions[g][a], self.op_groups[g]
        names = tuple(self.trace.modules[m].name for m in modules)
        ranks, way = self.ranks(action.groups), action.communication
        owners: tuple[int, ...] = ()
        rows: tuple[int, ...] = ()
        if way == "mp":
            owners = self._runs(modules, ranks)
            ranks = sorted(set(owners))
        else:
            rows = tuple(self.shares(ranks, proportional=action.proportional).tolist())
        if way == "ps":
            owners = self._servers(modules, ranks)
        found = DeployedGroup(
            ops=names,
            devices=tuple(ranks),
            communication=way,
            rows=rows,
            owners=owners,
            duplicated=tuple(self.trace.modules[m].name for m in self._duplicated(g, action))
            if way == "duplicate"
            else (),
            priority=self._priorities[g],
        )
        self._deployments[g, a] = found
        return found

    @cached_property
    def _priorities(self) -> list[int]:
        """Ranks of HEFT: of gradients that wait for the same devices those go first behind which most remains."""
        parameters = self.simulator.costs.parameters
        after = [sum(parameters[m] for m in group) for group in self.op_groups]
        by_rank = sorted(range(len(after)), key=lambda g: -after[g])
        return [by_rank.index(g) for g in range(len(after))]

    def _runs(self, modules: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
        """Devices of a group's modules: runs of them that take about as long, as devices are fast."""
        used = sorted(sorted(ranks, key=lambda rank: -self.devices[rank].speed)[: len(modules)])
        speed = np.cumsum([self.devices[rank].speed for rank in used])
        costs = self.simulator.costs
        seconds = (costs.forward + costs.backward)[0, self.batch, list(modules)]
        middle = np.cumsum(seconds) - seconds / 2
        run = np.searchsorted(speed / speed[-1], middle / max(seconds.sum(), 1e-30))
        return tuple(used[min(int(k), len(used) - 1)] for k in run)

    def _servers(self, modules: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
        """Servers of a group's modules: the largest goes where most of a link is left."""
        rate = {
            rank: float(self.links.bandwidth_out_bytes_per_s[host])
            / (self.links.host_of_rank[list(ranks)] == host).sum()
            for rank in ranks
            for host in [self.links.host_of_rank[rank]]
        }
        taken, found = dict.fromkeys(ranks, 0.0), dict[int, int]()
        for m in sorted(modules, key=lambda m: -self.trace.modules[m].parameter_bytes):
            size = max(self.trace.modules[m].parameter_bytes, 1.0)
            found[m] = min(ranks, key=lambda rank: ((taken[rank] + size) / rate[rank], rank))
            taken[found[m]] += size
        return tuple(found[m] for m in modules)

    @cached_property
    def _placed(self) -> list[list[_Placed]]:
        return [[self._place(g, a) for a in range(len(self.actions[g]))] for g in range(len(self.op_groups))]

    def _place(self, g: int, a: int) -> _Placed:
        group, modules = self._deployed(g, a), self.op_groups[g]
        owner, duplicated = np.full(len(modules), -1, np.int64), np.zeros(len(modules), np.int64)
        devices = len(self.devices)
        if group.communication == "mp":
            unit = np.cumsum([0, *(x != y for x, y in zip(group.owners, group.owners[1:], strict=False))])
            first, rows = np.zeros((2, unit[-1] + 1, devices), np.int64)
            rows[unit, list(group.owners)] = self.batch
        else:
            unit = np.zeros(len(modules), np.int64)
            first, rows = np.zeros((2, 1, devices), np.int64)
            rows[0, list(group.devices)] = group.rows
            first[0, list(group.devices)] = np.cumsum([0, *group.rows[:-1]])
            if group.owners:
                owner[:] = group.owners
            duplicated[:] = [op in group.duplicated for op in group.ops]
        ways = np.full(len(rows), WAYS[group.communication], np.int64)
        return _Placed(first, rows, ways, np.full(len(rows), group.priority), unit, owner, duplicated)


def problem_of(
    trace: StageTrace | OperatorGraph,
    topology: Topology | None,
    *,
    batch: int | None = None,
    profiles: Mapping[str, StageTrace] | None = None,
    groups: int = 12,
) -> DeploymentProblem:
    """Build the problem on the devices of a topology.

    Args:
        trace: Modules of the model, measured on a device of speed 1, or its captured operators with times.
        topology: Hosts, devices with their types, speeds and memory, and links.
        batch: Rows per step. Defaults to 8 per device.
        profiles: Profiles of the modules on other device types, by type name; other types use the times of `trace`
            divided by their speed.
        groups: Maximum number of op groups.

    Raises:
        InputError: The topology is missing, or raised by `DeploymentProblem`.
    """
    if isinstance(trace, OperatorGraph):
        trace = modules_of(trace)
    if not isinstance(topology, Topology):
        got = "none" if topology is None else f"a {type(topology).__name__}"
        raise InputError(f"got {got} as the links of the job; expected the Topology, which has its devices")
    if topology.devices:
        devices = tuple(
            DeployedDevice(
                name=one.name, host=one.host, type=one.type, speed=one.speed, memory_bytes=one.memory_bytes
            )
            for one in topology.devices
        )
    else:
        devices = tuple(DeployedDevice(name=host.name, host=host.name) for host in topology.hosts)
    rows = 8 * len(devices) if batch is None else batch
    return DeploymentProblem(trace, Links.of(topology), devices, rows, profiles or {}, groups)
