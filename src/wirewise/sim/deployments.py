"""Graph of a training step whose ops are spread over unequal devices, for the simulator's core.

Every device runs its passes in one order: units forward, units backward, products of factors, update. Rows are sent
from device to device concurrently, as soon as the pass that computes them is done. Gradients of a unit are exchanged
when all its replicas have them; units on the same devices share a communicator and are serialised, all others share
links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.plans.deployment import DeployedDevice
from wirewise.sim.compiled import outer
from wirewise.sim.engine import Ops, Run, run
from wirewise.sim.sharing import InterfaceUse
from wirewise.trace.stages import StageTrace

__all__ = [
    "ALLREDUCE", "DUPLICATE", "MP", "PHASES", "PS", "DeploymentSimulator", "DeploymentStep", "Spread",
]  # fmt: skip

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

MP, ALLREDUCE, PS, DUPLICATE = range(4)
"""Numbers of ways in which gradients meet."""

PHASES = ("forward", "backward", "product", "update", "rows", "wire", "communication")
"""Kinds of a step's ops: passes, products of gathered factors, updates of parameters; rows and their gradients between
devices; gathered factors; gradients."""
_FORWARD, _BACKWARD, _PRODUCT, _UPDATE, _ROWS, _FACTORS, _GRADIENTS = range(len(PHASES))


class Spread(NamedTuple):
    """Devices of n modules, in U units of modules with the same placement; units are in topological order."""

    unit: Ints
    """Unit of each module, [n]."""
    first: Ints
    """First row of each unit on each device, [U, D]."""
    rows: Ints
    """Number of rows, [U, D]."""
    communication: Ints
    """MP, ALLREDUCE, PS or DUPLICATE, [U]."""
    owner: Ints
    """Device that sums a module's gradients under PS, otherwise -1, [n]."""
    duplicated: Ints
    """Whether linear layers of the module exchange factors, 0 or 1, [n]."""
    priority: Ints
    """Priority of each unit, [U]: order in which units whose gradients wait for the same devices are exchanged."""


class _Costs(NamedTuple):
    """Costs of n modules on T types of devices, and properties of D devices."""

    forward: Vector
    """Seconds of a number of rows, [T, batch + 1, n]; `backward` and `weight` likewise."""
    backward: Vector
    weight: Vector
    update: Vector
    """Seconds to update the parameters, [T, n]."""
    output: Vector
    """Bytes a row, [n]; `saved` and `factor` likewise."""
    saved: Vector
    factor: Vector
    parameters: Vector
    """Bytes, [n]."""
    factored: Vector
    """Bytes of the parameters whose gradients factors make, [n]."""
    state: float
    """Bytes for each byte of parameters, they themselves among them."""
    source: Ints
    """Producer of each edge between modules, [E]; `target`: consumer."""
    target: Ints
    type: Ints
    """Type of each device, [D]."""
    speed: Vector
    """Factor of each device, [D]."""
    host: Ints
    """Host of each device, [D]."""
    latency: Vector
    """Seconds from host to host, [H, H]."""
    capacity: Vector
    """Bytes a second out of hosts, into them and inside, [3 H]."""


class DeploymentStep(NamedTuple):
    """Simulated step of N ops."""

    ops: Ops
    uses: InterfaceUse
    phase: Ints
    """Index in PHASES of each op, [N]."""
    unit: Ints
    """Unit of each op, -1 of updates, [N]."""
    member: Ints
    """1 for each device that takes part in an op, [N, D]."""
    run: Run
    memory: Vector
    """Peak bytes of each device, [D]."""

    @property
    def step_s(self) -> float:
        """Seconds until the last op ends."""
        return float(self.run.end.max(initial=0.0))


class DeploymentSimulator:
    """Simulator of a model's steps for any placement on devices.

    Args:
        trace: Modules of the model.
        links: Links between the devices, one per rank.
        devices: Device of each rank.
        batch: Rows per step.
        profiles: Profiles of the modules on other device types, by type name; other types use the times of `trace`.
    """

    def __init__(
        self,
        trace: StageTrace,
        links: Links,
        devices: Sequence[DeployedDevice],
        batch: int,
        profiles: Mapping[str, StageTrace] | None = None,
    ) -> None:
        self.trace, self.links, self.devices, self.batch = trace, links, tuple(devices), batch
        own = dict(profiles or {})
        types = [trace, *own.values()]
        names = ["", *own]
        modules, flows = trace.modules, np.array(trace.flows, np.int64).reshape(-1, 2)
        tables = [_tables(one, batch) for one in types]

        def of_modules(name: str) -> Vector:
            return np.array([getattr(module, name) for module in modules], np.float64)

        self.costs = _Costs(
            forward=np.stack([table[0] for table in tables]),
            backward=np.stack([table[1] for table in tables]),
            weight=np.stack([table[2] for table in tables]),
            update=np.array([[module.optimizer_s for module in one.modules] for one in types]),
            output=of_modules("output_bytes"),
            saved=of_modules("saved_bytes"),
            factor=of_modules("factor_bytes"),
            parameters=of_modules("parameter_bytes"),
            factored=of_modules("factored_bytes"),
            state=1.0 + trace.state_factor,
            source=flows[:, 0].copy(),
            target=flows[:, 1].copy(),
            type=np.array([names.index(one.type) if one.type in own else 0 for one in devices], np.int64),
            speed=np.array([one.speed for one in devices], np.float64),
            host=links.host_of_rank.astype(np.int64),
            latency=np.ascontiguousarray(links.latency_s, np.float64),
            capacity=np.concatenate(
                [links.bandwidth_out_bytes_per_s, links.bandwidth_in_bytes_per_s, links.intra_bytes_per_s]
            ).astype(np.float64),
        )
        self.room = np.array([one.memory_bytes or np.inf for one in devices], np.float64)

    def step(self, spread: Spread) -> DeploymentStep:
        """Simulate a step."""
        return _step(self.costs, spread)

    def seconds(self, spread: Spread) -> float:
        """Step time in seconds; infinite if a device runs out of memory."""
        found = _step(self.costs, spread)
        return float("inf") if (found.memory > self.room).any() else found.step_s


def _tables(trace: StageTrace, batch: int) -> tuple[Vector, Vector, Vector]:
    """Seconds of forward, backward and weights' gradients of 0 to `batch` rows (`StageTrace.times`), [batch + 1, n]."""
    sizes, rows = np.array(trace.sizes, np.float64), np.arange(batch + 1.0)[:, None]
    backward = np.array([module.backward_s for module in trace.modules], np.float64)
    weight = np.array(
        [m.weight_gradient_s or [0.5 * s for s in m.backward_s] for m in trace.modules], np.float64
    )
    forward = np.array([module.forward_s for module in trace.modules], np.float64)
    if len(sizes) == 1:
        return rows * forward.T / sizes[0], rows * backward.T / sizes[0], rows * weight.T / sizes[0]
    right = np.clip(np.searchsorted(sizes, rows[:, 0]), 1, len(sizes) - 1)
    share = (rows[:, 0] - sizes[right - 1]) / (sizes[right] - sizes[right - 1])

    def on_line(seconds: Vector) -> Vector:
        low, high = seconds[:, right - 1], seconds[:, right]
        found: Vector = np.maximum(low + share * (high - low), 0.0).T
        found[0] = 0.0
        return np.ascontiguousarray(found)

    return on_line(forward), on_line(backward), on_line(weight)


class _Draft(NamedTuple):
    """A graph in the making."""

    duration: Vector
    work: Vector
    resource: Ints
    priority: Ints
    phase: Ints
    unit: Ints
    member: Ints
    before: Ints
    """Op of each edge that ends first; `after`: the other one."""
    after: Ints
    owner: Ints
    """Transfer of each use of an interface."""
    interface: Ints
    weight: Vector
    need: Vector
    """Bytes on each interface of the transfer that is made, [3 H]."""
    made: Ints
    """Number of ops, edges and uses, [3]."""


@outer
def _step(costs: _Costs, spread: Spread) -> DeploymentStep:
    units, devices = spread.rows.shape
    edge = _row_bytes(costs, spread)
    group = _communicators(spread)
    draft = _new_draft(units, devices, int((edge > 0).sum()), len(costs.capacity))
    forward, backward = np.full((units, devices), -1), np.full((units, devices), -1)
    last = np.full(devices, -1)
    batch = costs.forward.shape[1] - 1
    for u in range(units):
        _passes(costs, spread, draft, u, _FORWARD, forward, last)
        for p in range(u):
            if edge[p, u] > 0.0:
                _rows(costs, spread, draft, p, u, edge[p, u], forward, forward)
    done = np.full((units, 2), -1)
    gathered = np.full(units, -1)
    for u in range(units - 1, -1, -1):
        _passes(costs, spread, draft, u, _BACKWARD, backward, last)
        for c in range(u + 1, units):
            if edge[u, c] > 0.0:
                _rows(costs, spread, draft, c, u, edge[u, c], backward, backward)
        _gradients(costs, spread, draft, u, backward, devices + group[u], done, gathered)
    for u in range(units - 1, -1, -1):
        if gathered[u] >= 0:
            for d in range(devices):
                if spread.rows[u, d] > 0:
                    seconds = 0.0
                    for m in range(len(spread.unit)):
                        if spread.unit[m] == u and spread.duplicated[m] == 1:
                            seconds += costs.weight[costs.type[d], batch, m] / costs.speed[d]
                    op = _op(draft, seconds, d, draft.made[0], _PRODUCT, u)
                    draft.member[op, d] = 1
                    _edge(draft, last[d], op)
                    _edge(draft, gathered[u], op)
                    last[d] = op
    for d in range(devices):
        seconds = 0.0
        for m in range(len(spread.unit)):
            if spread.rows[spread.unit[m], d] > 0:
                seconds += costs.update[costs.type[d], m] / costs.speed[d]
        if last[d] < 0:
            continue
        op = _op(draft, seconds, d, draft.made[0], _UPDATE, -1)
        draft.member[op, d] = 1
        _edge(draft, last[d], op)
        for u in range(units):
            if spread.rows[u, d] > 0 and done[u, 0] >= 0:
                _edge(draft, done[u, 0], op)
    ops, uses = _finished(draft, costs.capacity, devices + units)
    n = draft.made[0]
    return DeploymentStep(
        ops, uses, draft.phase[:n], draft.unit[:n], draft.member[:n], run(ops, uses), _memory(costs, spread)
    )


@outer
def _new_draft(units: int, devices: int, pairs: int, interfaces: int) -> _Draft:
    # At most n + m pieces of rows go from n devices to m, forward and backward.
    moves = 4 * devices * pairs
    ops = 3 * units * devices + moves + 3 * units + devices
    edges = 3 * moves + 8 * units * devices + 4 * ops
    uses = 2 * moves + 3 * units * interfaces
    return _Draft(
        np.zeros(ops), np.zeros(ops), np.full(ops, -1), np.zeros(ops, np.int64), np.zeros(ops, np.int64),
        np.full(ops, -1), np.zeros((ops, devices), np.int64), np.empty(edges, np.int64), np.empty(edges, np.int64),
        np.empty(uses, np.int64), np.empty(uses, np.int64), np.empty(uses), np.zeros(interfaces),
        np.zeros(3, np.int64),
    )  # fmt: skip


@outer
def _row_bytes(costs: _Costs, spread: Spread) -> Vector:
    """Bytes a row from unit to unit, [U, U]; what several modules of a unit take goes there once."""
    units = len(spread.rows)
    found = np.zeros((units, units))
    for e in range(len(costs.source)):
        s, t = spread.unit[costs.source[e]], spread.unit[costs.target[e]]
        if s == t:
            continue
        again = False
        for other in range(e):
            if costs.source[other] == costs.source[e] and spread.unit[costs.target[other]] == t:
                again = True
        if not again:
            found[s, t] += max(costs.output[costs.source[e]], 1e-9)
    return found


@outer
def _communicators(spread: Spread) -> Ints:
    """Number of the first unit that is on the same devices, [U]."""
    units, devices = spread.rows.shape
    found = np.arange(units)
    for u in range(units):
        for other in range(u):
            same = True
            for d in range(devices):
                same = same and (spread.rows[u, d] > 0) == (spread.rows[other, d] > 0)
            if same:
                found[u] = other
                break
    return found


@outer
def _op(draft: _Draft, seconds: float, resource: int, priority: int, phase: int, unit: int) -> int:
    op = draft.made[0]
    draft.made[0] += 1
    draft.duration[op], draft.resource[op], draft.priority[op] = seconds, resource, priority
    draft.phase[op], draft.unit[op] = phase, unit
    return op


@outer
def _edge(draft: _Draft, before: int, after: int) -> None:
    if before >= 0:
        draft.before[draft.made[1]], draft.after[draft.made[1]] = before, after
        draft.made[1] += 1


@outer
def _passes(
    costs: _Costs, spread: Spread, draft: _Draft, u: int, phase: int, numbers: Ints, last: Ints
) -> None:
    """A pass of a unit on each of its devices, behind the last one there."""
    for d in range(len(last)):
        count = spread.rows[u, d]
        if count == 0:
            continue
        seconds, kind = 0.0, costs.type[d]
        for m in range(len(spread.unit)):
            if spread.unit[m] != u:
                continue
            if phase == _FORWARD:
                seconds += costs.forward[kind, count, m]
            elif spread.duplicated[m] == 1:
                seconds += costs.backward[kind, count, m] - costs.weight[kind, count, m]
            else:
                seconds += costs.backward[kind, count, m]
        op = _op(draft, seconds / costs.speed[d], d, draft.made[0], phase, u)
        draft.member[op, d] = 1
        _edge(draft, last[d], op)
        numbers[u, d] = last[d] = op


@outer
def _flow(costs: _Costs, draft: _Draft, source: int, target: int, size: float) -> float:
    """Note what a flow between two devices takes of interfaces; its latency."""
    a, b = costs.host[source], costs.host[target]
    hosts = len(costs.latency)
    if a == b:
        draft.need[2 * hosts + a] += size
    else:
        draft.need[a] += size
        draft.need[hosts + b] += size
    return costs.latency[a, b]


@outer
def _transfer(
    costs: _Costs,
    draft: _Draft,
    largest: float,
    seconds: float,
    resource: int,
    priority: int,
    phase: int,
    unit: int,
) -> int:
    """An op with the flows that were noted."""
    op = _op(draft, seconds, resource, priority, phase, unit)
    draft.work[op] = largest
    for k in range(len(draft.need)):
        if draft.need[k] > 0.0 and costs.capacity[k] < np.inf:
            use = draft.made[2]
            draft.owner[use], draft.interface[use], draft.weight[use] = op, k, draft.need[k] / largest
            draft.made[2] += 1
        draft.need[k] = 0.0
    return op


@outer
def _rows(
    costs: _Costs, spread: Spread, draft: _Draft, p: int, u: int, size: float, made: Ints, taken: Ints
) -> None:
    """Rows of unit p, or gradients of them, to the devices of unit u that need them."""
    devices = spread.rows.shape[1]
    for t in range(devices):
        for s in range(devices):
            if spread.rows[p, s] == 0 or spread.rows[u, t] == 0 or s == t:
                continue
            begin = max(spread.first[p, s], spread.first[u, t])
            end = min(spread.first[p, s] + spread.rows[p, s], spread.first[u, t] + spread.rows[u, t])
            if begin < end:
                moved = (end - begin) * size
                latency = _flow(costs, draft, s, t, moved)
                op = _transfer(costs, draft, moved, latency, -1, draft.made[0], _ROWS, u)
                draft.member[op, s] = draft.member[op, t] = 1
                _edge(draft, made[p, s], op)
                _edge(draft, op, taken[u, t])


@outer
def _gradients(
    costs: _Costs,
    spread: Spread,
    draft: _Draft,
    u: int,
    backward: Ints,
    resource: int,
    done: Ints,
    gathered: Ints,
) -> None:
    """Exchange of a unit's gradients between replicas once all have made them."""
    way = spread.communication[u]
    members = np.flatnonzero(spread.rows[u] > 0)
    n = len(members)
    if way == MP or n < 2:
        return
    size = 0.0
    for m in range(len(spread.unit)):
        if spread.unit[m] == u:
            size += costs.parameters[m] - costs.factored[m] * spread.duplicated[m]
    if way == DUPLICATE:
        gathered[u] = _gather(costs, spread, draft, u, members, resource)
        _members(draft, gathered[u], members, backward[u])
    if size <= 0.0:
        return
    slowest, largest = 0.0, 0.0
    if way == PS:
        first = _served(costs, spread, draft, u, members, resource, True)
        _members(draft, first, members, backward[u])
        done[u, 0] = _served(costs, spread, draft, u, members, resource, False)
        _members(draft, done[u, 0], members, backward[u])
        _edge(draft, first, done[u, 0])
        return
    for i in range(n):
        largest = 2.0 * (n - 1) / n * size
        slowest = max(slowest, _flow(costs, draft, members[i], members[(i + 1) % n], largest))
    op = _transfer(costs, draft, largest, 2 * (n - 1) * slowest, resource, spread.priority[u], _GRADIENTS, u)
    done[u, 0] = op
    _members(draft, op, members, backward[u])


@outer
def _members(draft: _Draft, op: int, members: Ints, backward: Ints) -> None:
    for d in members:
        draft.member[op, d] = 1
        _edge(draft, backward[d], op)


@outer
def _gather(costs: _Costs, spread: Spread, draft: _Draft, u: int, members: Ints, resource: int) -> int:
    """Factors of all rows to all replicas, around a ring."""
    size = 0.0
    for m in range(len(spread.unit)):
        if spread.unit[m] == u and spread.duplicated[m] == 1:
            size += costs.factor[m]
    n, batch = len(members), spread.rows[u].sum()
    slowest, largest = 0.0, 1e-9
    for i in range(n):
        after = members[(i + 1) % n]
        own = size * (batch - spread.rows[u, after])
        largest = max(largest, own)
        slowest = max(slowest, _flow(costs, draft, members[i], after, own))
    return _transfer(costs, draft, largest, (n - 1) * slowest, resource, spread.priority[u], _FACTORS, u)


@outer
def _served(
    costs: _Costs, spread: Spread, draft: _Draft, u: int, members: Ints, resource: int, push: bool
) -> int:
    """Gradients to the owners of a unit's modules, or sums back from them."""
    slowest, largest = 0.0, 1e-9
    for m in range(len(spread.unit)):
        if spread.unit[m] != u or costs.parameters[m] <= 0.0:
            continue
        for d in members:
            if d != spread.owner[m]:
                a, b = (d, spread.owner[m]) if push else (spread.owner[m], d)
                slowest = max(slowest, _flow(costs, draft, a, b, costs.parameters[m]))
                largest = max(largest, costs.parameters[m])
    return _transfer(costs, draft, largest, slowest, resource, spread.priority[u], _GRADIENTS, u)


@outer
def _finished(draft: _Draft, capacity: Vector, resources: int) -> tuple[Ops, InterfaceUse]:
    n, edges, uses = draft.made[0], draft.made[1], draft.made[2]
    indptr, use_indptr = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for e in range(edges):
        indptr[draft.before[e] + 1] += 1
    for use in range(uses):
        use_indptr[draft.owner[use] + 1] += 1
    for op in range(n):
        indptr[op + 1] += indptr[op]
        use_indptr[op + 1] += use_indptr[op]
    place, successors = indptr[:-1].copy(), np.empty(edges, np.int64)
    for e in range(edges):
        successors[place[draft.before[e]]] = draft.after[e]
        place[draft.before[e]] += 1
    finite = capacity.copy()
    for k in range(len(finite)):
        if finite[k] == np.inf:
            finite[k] = 1.0
    ops = Ops(
        draft.duration[:n], np.zeros(n), np.zeros(n), draft.work[:n], draft.resource[:n], draft.priority[:n],
        indptr, successors, np.ones(resources, np.int64),
    )  # fmt: skip
    # Ops are made in ascending order, so uses are sorted by their op.
    return ops, InterfaceUse(
        use_indptr, draft.interface[:uses], draft.weight[:uses], draft.owner[:uses], finite
    )


@outer
def _memory(costs: _Costs, spread: Spread) -> Vector:
    """Peak bytes of each device: at the end of the forward pass all activations are kept."""
    devices = spread.rows.shape[1]
    found = np.zeros(devices)
    batch = costs.forward.shape[1] - 1
    for m in range(len(spread.unit)):
        for d in range(devices):
            rows = spread.rows[spread.unit[m], d]
            if rows > 0:
                found[d] += costs.state * costs.parameters[m] + rows * costs.saved[m]
                found[d] += spread.duplicated[m] * batch * costs.factor[m]
    return found
