"""Input features of the network: op groups, device groups, links between them, and actions of one op group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.placement.tag.problem import Action, DeploymentProblem, Strategy
from wirewise.sim.deployments import DeploymentStep

__all__ = ["ACTION", "DEVICE", "LINK", "OP", "PAIR", "TENSOR", "Observation", "observe"]

Vector = NDArray[np.float64]

OP, DEVICE, TENSOR, LINK, PAIR, ACTION = 15, 7, 1, 2, 2, 13
"""Features of an op group, a device group, an edge between op groups, a link, an op group with a device group, and an
action."""
_WAYS = ("allreduce", "ps", "duplicate", "mp")


class Observation(NamedTuple):
    """G op groups on m device groups, and the A actions of the op group to decide."""

    ops: Vector
    """Features of op groups, [G, OP]."""
    devices: Vector
    """Features of device groups, [m, DEVICE]."""
    tensors: Vector
    """Features of the tensors that an op group reads from another, [G, G, TENSOR]; 0 if none."""
    links: Vector
    """Features of links between device groups, [m, m, LINK]."""
    pairs: Vector
    """Features of op groups on device groups, [G, m, PAIR]."""
    group: int
    """Index of the op group to decide."""
    actions: Vector
    """Features of its actions, [A, ACTION]."""
    places: Vector
    """1 if an action uses a device group, [A, m]."""


def observe(problem: DeploymentProblem, strategy: Strategy, position: int) -> Observation:
    """Compute dimensionless features of a partly decided strategy.

    Times are relative to the model's time on the mean device; bytes are the time of a mean port, likewise.

    Args:
        problem: Model and devices.
        strategy: Actions of all op groups, decided or inherited.
        position: Position of the op group to decide; earlier ones are decided.
    """
    step, scale = problem.step(strategy), _Scale.of(problem)
    group, count = problem.order[position], len(problem.op_groups)
    decided = np.zeros((count, 2))
    decided[problem.order[:position], 0] = 1.0
    decided[group, 1] = 1.0
    chosen = [_Options.of(problem, g) for g in range(count)]
    ways = np.stack([one.fixed[a, :5] for one, a in zip(chosen, strategy, strict=True)])
    ops = np.concatenate([scale.ops, ways, decided, _ends(problem, strategy, step)], axis=1)
    devices = np.concatenate([scale.devices, _use(problem, step)], axis=1)
    placed = np.stack([one.places[a] for one, a in zip(chosen, strategy, strict=True)])
    pairs = np.stack([scale.pairs, placed], axis=2)
    actions, places = _actions(problem, strategy, group, scale)
    return Observation(ops, devices, scale.tensors[..., None], scale.links, pairs, group, actions, places)


class _Scale:
    """Features that no strategy changes."""

    @classmethod
    def of(cls, problem: DeploymentProblem) -> _Scale:
        """Features of a problem, which keeps them."""
        return problem.keep("scale", lambda: cls(problem))

    def __init__(self, problem: DeploymentProblem) -> None:
        costs, count, batch = problem.simulator.costs, len(problem.op_groups), problem.batch
        links, hosts = problem.links, [int(problem.links.host_of_rank[g[0]]) for g in problem.device_groups]
        ports = np.minimum(links.bandwidth_out_bytes_per_s, links.bandwidth_in_bytes_per_s)[hosts]
        ports, inside = np.minimum(ports, 1e11), np.minimum(links.intra_bytes_per_s[hosts], 1e11)
        first = [g[0] for g in problem.device_groups]
        self.whole_s = float(problem.seconds.mean(axis=1).sum())
        self.rate = float(ports.mean())
        unit = count / self.whole_s
        self.unit, self.per_byte = unit, unit / self.rate

        def of_groups(values: Vector) -> Vector:
            return np.array([values[group].sum() for group in problem.op_groups])

        both = costs.forward[0] + costs.backward[0]
        part = max(batch // 4, 1)
        small, large = of_groups(both[part]) / part, np.maximum(of_groups(both[batch]) / batch, 1e-30)
        parameters, factored = of_groups(costs.parameters), of_groups(costs.factored)
        self.parameters, self.factored = parameters, factored
        self.factor = of_groups(costs.factor * (costs.factored > 0))
        self.ops = _flat(
            np.stack(
                [
                    problem.seconds.mean(axis=1) * unit,
                    # What takes no time at all, or less a row in small batches, is no slower there.
                    np.maximum(small / large - 1.0, 0.0),
                    parameters * self.per_byte,
                    factored * self.per_byte,
                    self.factor * batch * self.per_byte,
                    of_groups(costs.output) * batch * self.per_byte,
                ],
                axis=1,
            )
        )
        speed = np.array([problem.devices[rank].speed for rank in first])
        room = problem.simulator.room[first]
        need = (costs.state * costs.parameters).sum() + batch * costs.saved.sum()
        self.devices = np.stack(
            [
                np.log(speed / speed.mean()),
                np.array([len(g) for g in problem.device_groups]) / 4,
                np.log(ports / self.rate),
                np.log(inside / self.rate) / 4,
                np.minimum(room / max(need, 1.0), 4.0) / 4,
            ],
            axis=1,
        )
        between = np.minimum(ports[:, None], ports)
        np.fill_diagonal(between, inside)
        self.links = np.stack(
            [
                np.log(between / self.rate) / 2,
                _flat(links.latency_s[np.ix_(hosts, hosts)] * unit),
            ],
            axis=2,
        )
        self.pairs = _flat(problem.seconds[:, first] * unit)
        self.flows = np.zeros((count, count))
        of_module = {m: g for g, modules in enumerate(problem.op_groups) for m in modules}
        for s, t in zip(costs.source.tolist(), costs.target.tolist(), strict=True):
            if of_module[s] != of_module[t]:
                self.flows[of_module[t], of_module[s]] += max(costs.output[s], 1.0)
        self.tensors = _flat(self.flows * batch * self.per_byte) + 1e-3 * (self.flows > 0)


def _flat(values: Vector) -> Vector:
    return np.log1p(10.0 * values)


def _ends(problem: DeploymentProblem, strategy: Strategy, step: DeploymentStep) -> Vector:
    """When op groups are done with their backward pass and with their gradients, in shares of the step, [G, 2]."""
    found, whole = np.zeros((len(problem.op_groups), 2)), max(step.step_s, 1e-30)
    units = problem.spread(strategy).unit
    last = np.zeros((int(units.max()) + 1, 2))
    inside = step.unit >= 0
    np.maximum.at(last[:, 0], step.unit[inside & (step.phase == 1)], step.run.end[inside & (step.phase == 1)])
    np.maximum.at(last[:, 1], step.unit[inside & (step.phase > 4)], step.run.end[inside & (step.phase > 4)])
    for g, modules in enumerate(problem.op_groups):
        found[g] = last[units[modules]].max(axis=0) / whole
    return found


def _use(problem: DeploymentProblem, step: DeploymentStep) -> Vector:
    """Fraction of the step that device groups compute, and share of memory that they need, [m, 2]."""
    first = [g[0] for g in problem.device_groups]
    devices = len(problem.devices)
    computing = (step.ops.resource >= 0) & (step.ops.resource < devices)
    busy = np.bincount(step.ops.resource[computing], step.ops.duration[computing], minlength=devices)
    return np.stack(
        [busy[first] / max(step.step_s, 1e-30), np.minimum(step.memory / problem.simulator.room, 2.0)[first]],
        axis=1,
    )


class _Options:
    """Features of an op group's actions that no strategy changes, [A]."""

    def __init__(self, problem: DeploymentProblem, group: int, scale: _Scale) -> None:
        own, costs, modules = problem.actions[group], problem.simulator.costs, problem.op_groups[group]
        self.first, self.rows = problem.first_rows(group)
        per_rows = (costs.forward + costs.backward)[:, :, modules].sum(axis=2)
        seconds = (per_rows[costs.type, self.rows] / costs.speed).max(axis=1) * scale.unit
        ranks = np.maximum((self.rows > 0).sum(axis=1), 1)
        ways = np.array([_way(one) for one in own])
        parameters = scale.parameters[group]
        ring = 2 * (ranks - 1) / ranks * parameters
        # With factors the ring carries the rest, and each rank gets the factors of all rows.
        factors = problem.batch * scale.factor[group] + 2 * (ranks - 1) / ranks * (
            parameters - scale.factored[group]
        )
        rate = np.array([problem.slowest_port(one.groups) for one in own])
        sent = (
            np.where(ways[:, 3] > 0, 0.0, np.where(ways[:, 2] > 0, factors, ring * (1 + ways[:, 1]))) / rate
        )
        memory = costs.state * parameters + self.rows.max(axis=1) * costs.saved[modules].sum()
        room = np.array([min(problem.simulator.room[r] for r in problem.ranks(one.groups)) for one in own])
        self.fixed = np.concatenate([ways, _flat(np.stack([seconds, sent * scale.unit], axis=1))], axis=1)
        self.further = np.stack(
            [np.minimum(memory / room, 2.0), ranks / 8, np.log(rate / scale.rate) / 2], axis=1
        )
        numbers = range(len(problem.device_groups))
        self.places = np.array([[d in one.groups for d in numbers] for one in own], float)
        self.kinds = np.array([hash((one.groups, one.proportional)) for one in own])

    @classmethod
    def of(cls, problem: DeploymentProblem, group: int) -> _Options:
        """Options of an op group, which its problem keeps."""
        return problem.keep(f"options {group}", lambda: cls(problem, group, _Scale.of(problem)))


def _way(one: Action) -> list[float]:
    return [float(one.communication == way) for way in _WAYS] + [float(one.proportional)]


def _actions(
    problem: DeploymentProblem, strategy: Strategy, group: int, scale: _Scale
) -> tuple[Vector, Vector]:
    own = _Options.of(problem, group)
    moved, alike = np.zeros(len(own.first)), np.zeros(len(own.first))
    for other in np.flatnonzero(scale.flows[group] + scale.flows[:, group]).tolist():
        theirs, a = _Options.of(problem, other), strategy[other]
        ends = np.minimum(own.first + own.rows, theirs.first[a] + theirs.rows[a])
        here = np.maximum(ends - np.maximum(own.first, theirs.first[a]), 0).sum(axis=1)
        # Under mp several devices have all rows, of one module each.
        size = scale.flows[group, other] + scale.flows[other, group]
        moved += size * np.maximum(problem.batch - here, 0)
        alike += own.kinds == theirs.kinds[a]
    is_now = np.arange(len(own.first)) == strategy[group]
    found = [
        own.fixed,
        _flat(moved * scale.per_byte)[:, None],
        own.further[:, :1],
        np.stack([alike / 2, is_now], axis=1),
        own.further[:, 1:],
    ]
    return np.concatenate(found, axis=1), own.places
