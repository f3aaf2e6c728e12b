"""Pipeline timetables on the event engine: times of passes, messages, exchanges and whole updates.

A position runs its actions in order. The output of a pass is sent at once; between two positions and in one direction
messages are serialised, gradients before activations. Interfaces of hosts are shared fairly by all concurrent
messages and exchanges, or uncontended if links are assumed independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.cost.stages import StageCosts
from wirewise.errors import InputError
from wirewise.plans.reshard import MulticastTree
from wirewise.plans.stages import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.sim.chains import chunk_of, flows_between, last_chunk_s
from wirewise.sim.op_graph import OpGraph
from wirewise.sim.replicas import MessageLoad, fold_replicas

__all__ = [
    "EdgeSeconds",
    "PipelineOp",
    "PipelineSimulation",
    "message_seconds",
    "simulate_pipeline",
    "steady_update",
]

Vector = NDArray[np.float64]

EdgeSeconds = Callable[[int, int, float], float]
"""Seconds of a message: `(sending stage, receiving stage, bytes)`, such as those that a reshard plan predicts."""

_GRADIENT, _ACTIVATION, _EXCHANGE = 0, 1, 2
"""Priorities: what waits for a link goes in this order."""
_UPDATES = (7, 14)
"""Updates without a flush that are simulated, the fewer if their lengths repeat by then."""
_SETTLED = 1e-9


class PipelineOp(NamedTuple):
    """Pass, message, gradient exchange or parameter update."""

    phase: str
    """Kind of op: "forward", "backward", "weight gradient", "message", "communication" or "optimizer"."""
    replica: int
    """Index of the pipeline, or -1 for all of them."""
    position: int
    """Position that computes or sends."""
    target: int
    """Receiving position of a message; -1 for other ops."""
    update: int
    stage: int
    """Stage that computes or sends, or -1 for all of the position."""
    microbatch: int
    """Microbatch of the update, or -1 for none."""
    gradient: bool = False
    """Whether a message carries a gradient to the stage before, not an activation to the next."""

    @property
    def label(self) -> str:
        """Description of the op, in words."""
        if self.phase == "communication":
            return f"gradients of position {self.position}, update {self.update}"
        if self.phase == "optimizer":
            return f"update {self.update}"
        to = f" to position {self.target}" if self.target >= 0 else ""
        return f"{'gradient of ' * self.gradient}microbatch {self.microbatch} of stage {self.stage}{to}"


@dataclass(frozen=True)
class PipelineSimulation:
    """Times of all ops, in seconds from the first pass."""

    plan: StagePlan
    ops: list[PipelineOp]
    start_s: Vector
    """Start of each op, [n]."""
    end_s: Vector
    """End of each op, [n]."""
    classes: tuple[tuple[int, ...], ...]
    """Equivalence classes of replicas, of which only the first has ops."""

    @cached_property
    def done_s(self) -> Vector:
        """End of each update at the last position, without exchanges that overlap passes, in seconds, [updates]."""
        update = np.array([op.update for op in self.ops])
        counted = np.array(
            [op.target < 0 and (op.microbatch >= 0 or self.plan.exchange == "end") for op in self.ops]
        )
        found = np.zeros(int(update.max(initial=-1)) + 1)
        np.maximum.at(found, update[counted], self.end_s[counted])
        return found


class _Draft:
    """Graph of a timetable under construction."""

    def __init__(self) -> None:
        self.ops: list[PipelineOp] = []
        self.graph = OpGraph()
        self.follows = self.graph.follows

    def add(self, op: PipelineOp, seconds: float) -> int:
        self.ops.append(op)
        return self.graph.add(seconds)

    def send(self, op: PipelineOp, label: MessageLoad, priority: int, link: tuple[int, ...]) -> int:
        self.ops.append(op)
        return self.graph.add(
            label.duration_s,
            work=label.work,
            interfaces=label.interface,
            weights=label.weight,
            resource=link,
            priority=priority,
        )


def simulate_pipeline(
    plan: StagePlan,
    costs: StageCosts,
    links: Links,
    *,
    updates: int = 1,
    shared_nics: bool = True,
    edge_s: EdgeSeconds | None = None,
    slowdown: Vector | None = None,
    fold: bool = True,
) -> PipelineSimulation:
    """Simulate a plan's timetable.

    Args:
        plan: Plan, which should pass `check_itself`.
        costs: Costs of its stages, for its microbatch size.
        links: Links between its ranks.
        updates: Number of successive updates; the first fills the pipeline, the last drains it.
        shared_nics: Whether messages share the interfaces of hosts; otherwise there is no contention.
        edge_s: Seconds of messages between two stages, without contention. Defaults to those of the links.
        slowdown: Slowdown factor of each rank's compute, [ranks]. Defaults to 1.
        fold: Whether only the first of equivalent replicas has ops (`sim.replicas`); if False, each has its own.

    Raises:
        InputError: Two ranks that must communicate are not connected.
    """
    wires, draft = _Wires(links, shared_nics), _Draft()
    slow = _slowdowns(plan, slowdown)
    needs, joint = _needs(plan, costs, wires, edge_s), _exchange_needs(plan, costs, wires)
    does = [(own, 0 if fold else replica) for replica, own in enumerate(slow)]
    folded = fold_replicas(needs, joint, wires.capacity, does)
    passes: dict[tuple[int, StagePass], int] = {}
    backward: dict[tuple[int, int], list[int]] = {}
    rows = {
        (replica, position): _row(draft, plan, costs, replica, position, slow, updates, passes, backward)
        for replica, *_ in folded.classes
        for position in range(plan.positions)
    }
    _messages(draft, plan, folded.own, passes)
    exchanges = _exchanges(draft, folded.joint, backward)
    for (replica, position), row in rows.items():
        _chain(draft, plan, costs, replica, position, slow, row, exchanges, backward)
    found = draft.graph.run(wires.capacity)
    return PipelineSimulation(plan, draft.ops, found.start, found.end, folded.classes)


def message_seconds(
    plan: StagePlan, costs: StageCosts, links: Links, edge_s: EdgeSeconds | None = None
) -> tuple[float, ...]:
    """Uncontended time of an activation over each edge of a plan, in the order of `all_edges`, in seconds."""
    wires, found = _Wires(links, True), list[float]()
    for source, target in plan.all_edges:
        size = costs.edge_bytes.get((source, target), 0.0)
        first, second = (plan.ranks[plan.stages[stage].position] for stage in (source, target))
        if first == second:
            found.append(0.0)
        elif edge_s is not None:
            found.append(edge_s(source, target, size))
        else:
            found.append(
                max(
                    wires.alone_s(wires.between(plan, costs, (source, target), replica, forward=True))
                    for replica in range(plan.replicas)
                )
            )
    return tuple(found)


def steady_update(
    plan: StagePlan, costs: StageCosts, links: Links, **conditions: bool | EdgeSeconds | Vector | None
) -> tuple[PipelineSimulation, float, float]:
    """Simulate a plan to steady state; returns the run, and start and end of a representative update.

    With a flush between updates it is a single whole one. Without, updates become periodic, with a period of one to
    three; the representative one has their mean length, and is cut out of the run while others are in progress.

    Args:
        plan: Plan whose updates are simulated.
        costs: Costs of its stages.
        links: Links between its ranks.
        conditions: Further arguments of `simulate_pipeline`.
    """
    if plan.weight_versions == 1:
        found = simulate_pipeline(plan, costs, links, **conditions)  # type: ignore[arg-type]
        return found, 0.0, float(found.end_s.max(initial=0.0))
    for updates in _UPDATES:
        found = simulate_pipeline(plan, costs, links, updates=updates, **conditions)  # type: ignore[arg-type]
        ends = found.done_s[:-1]
        if cycle := _cycle(np.diff(ends)):
            break
    cycle = cycle or len(ends) // 2
    mean_s = float(ends[-1] - ends[-1 - cycle]) / cycle
    begins = np.sort(found.start_s[found.start_s >= ends[-1 - cycle] - mean_s])
    begins = begins[(begins + mean_s <= ends[-1]) & _under_way(found, begins + mean_s)]
    begin_s = float(begins[0]) if len(begins) else float(ends[-2])
    return found, begin_s, begin_s + mean_s if len(begins) else float(ends[-1])


def _under_way(found: PipelineSimulation, at_s: Vector) -> NDArray[np.bool_]:
    """Whether an op has begun before each of these times, and not ended before it."""
    order = np.argsort(found.start_s, kind="stable")
    last = np.maximum.accumulate(found.end_s[order])
    begun = np.searchsorted(found.start_s[order], at_s, side="left")
    busy: NDArray[np.bool_] = (begun > 0) & (last[np.maximum(begun - 1, 0)] >= at_s)
    return busy


def _cycle(lengths: Vector) -> int:
    """Updates after which lengths repeat, three times in a row; 0: they do not."""
    for cycle in range(1, len(lengths) // 3 + 1):
        rows = lengths[len(lengths) - 3 * cycle :].reshape(3, cycle)
        if np.ptp(rows, axis=0).max() <= _SETTLED * lengths[-1]:
            return cycle
    return 0


def _row(
    draft: _Draft,
    plan: StagePlan,
    costs: StageCosts,
    replica: int,
    position: int,
    slow: Sequence[Sequence[float]],
    updates: int,
    passes: dict[tuple[int, StagePass], int],
    backward: dict[tuple[int, int], list[int]],
) -> list[int]:
    """Add the passes of a position; the numbers of their ops in order."""
    row, last = [], dict[int, int]()
    for step in plan.steps(position, updates):
        phase = {"F": "forward", "W": "weight gradient"}.get(step.kind, "backward")
        op = PipelineOp(phase, replica, position, -1, step.update, step.stage, step.microbatch)
        number = draft.add(op, slow[replica][position] * _seconds(step, plan, costs))
        passes[replica, step] = number
        row.append(number)
        if step.kind != "F":
            last[step.update] = number
    for update, number in last.items():
        backward.setdefault((position, update), []).append(number)
    return row


def _seconds(step: StagePass, plan: StagePlan, costs: StageCosts) -> float:
    stage = step.stage
    if step.kind == "F":
        return float(costs.forward_s[stage])
    if step.kind == "W":
        return float(costs.weight_s[stage])
    again = costs.forward_s[stage] if plan.stages[stage].recompute else 0.0
    less = costs.weight_s[stage] if step.kind == "I" else 0.0
    return float(costs.backward_s[stage] - less + again)


def _slowdowns(plan: StagePlan, slowdown: Vector | None) -> list[tuple[float, ...]]:
    """Factor of the compute at each position of each replica, which goes at the pace of its slowest rank."""
    by = np.ones(plan.world_size) if slowdown is None else np.asarray(slowdown, np.float64)
    if by.shape != (plan.world_size,) or not ((by > 0) & np.isfinite(by)).all():
        raise InputError(
            f"slowdown has shape {by.shape}; expected a finite factor above 0 for each of {plan.world_size} ranks"
        )
    return [
        tuple(float(by[list(replicas[replica])].max()) for replicas in plan.ranks)
        for replica in range(plan.replicas)
    ]


def _needs(
    plan: StagePlan, costs: StageCosts, wires: _Wires, edge_s: EdgeSeconds | None
) -> dict[tuple[int, int], list[MessageLoad]]:
    """Load of messages from one stage to another, in each replica."""
    found: dict[tuple[int, int], list[MessageLoad]] = {}
    for edge in plan.all_edges:
        if plan.stages[edge[0]].position == plan.stages[edge[1]].position:
            continue
        size = costs.edge_bytes.get(edge, 0.0)
        for forward, pair in ((True, edge), (False, edge[::-1])):
            found[pair] = [
                MessageLoad(edge_s(*pair, size), 0.0, (), ())
                if edge_s is not None
                else wires.between(plan, costs, edge, replica, forward=forward)
                for replica in range(plan.replicas)
            ]
    return found


def _exchange_needs(plan: StagePlan, costs: StageCosts, wires: _Wires) -> dict[int, MessageLoad]:
    """Load of exchanges of gradients between replicas, by position; none with one replica."""
    if plan.replicas == 1:
        return {}
    sizes = [0.0] * plan.positions
    for number, stage in enumerate(plan.stages):
        sizes[stage.position] += float(costs.parameter_bytes[number])
    return {position: wires.all_reduce(plan.ranks[position], size) for position, size in enumerate(sizes)}


def _messages(
    draft: _Draft,
    plan: StagePlan,
    needs: Mapping[tuple[int, int], Mapping[int, MessageLoad]],
    passes: dict[tuple[int, StagePass], int],
) -> None:
    """Add what travels between stages, and let passes wait for it."""
    at = [stage.position for stage in plan.stages]
    for (replica, step), number in list(passes.items()):
        if step.kind == "W":
            continue
        forward = step.kind == "F"
        for edge in plan.all_edges:
            if edge[0 if forward else 1] != step.stage:
                continue
            to = edge[1 if forward else 0]
            wanted = [step] if forward else [step._replace(kind="B"), step._replace(kind="I")]
            found = (passes.get((replica, one._replace(stage=to))) for one in wanted)
            consumer = next(one for one in found if one is not None)
            if at[to] == at[step.stage]:
                draft.follows(consumer, number)
                continue
            op = PipelineOp(
                "message",
                replica,
                at[step.stage],
                at[to],
                step.update,
                step.stage,
                step.microbatch,
                not forward,
            )
            link = (replica, at[step.stage], at[to])
            need = needs[step.stage, to][replica]
            message = draft.send(op, need, _ACTIVATION if forward else _GRADIENT, link)
            draft.follows(message, number)
            draft.follows(consumer, message)


def _exchanges(
    draft: _Draft, needs: Mapping[int, MessageLoad], backward: dict[tuple[int, int], list[int]]
) -> dict[tuple[int, int], int]:
    """Add the exchanges of gradients between replicas; their ops by position and update."""
    found: dict[tuple[int, int], int] = {}
    for (position, update), last in backward.items() if needs else ():
        op = PipelineOp("communication", -1, position, -1, update, -1, -1)
        number = draft.send(op, needs[position], _EXCHANGE, (-1, position))
        for one in last:
            draft.follows(number, one)
        found[position, update] = number
    return found


def _chain(
    draft: _Draft,
    plan: StagePlan,
    costs: StageCosts,
    replica: int,
    position: int,
    slow: Sequence[Sequence[float]],
    row: Sequence[int],
    exchanges: dict[tuple[int, int], int],
    backward: dict[tuple[int, int], list[int]],
) -> None:
    """Let the passes of a position follow each other, with the updates of its parameters among them."""
    seconds = float(
        sum(costs.optimizer_s[n] for n, stage in enumerate(plan.stages) if stage.position == position)
    )
    seconds *= slow[replica][position]
    waiting: list[int] = []
    before: int | None = None

    def update_parameters() -> None:
        nonlocal before
        update = waiting.pop(0)
        exchange = exchanges.get((position, update))
        number = draft.add(PipelineOp("optimizer", replica, position, -1, update, -1, -1), seconds)
        draft.follows(number, before)
        draft.follows(number, exchange)
        before = number

    for number in row:
        # With two versions, passes of update u take the weights that update u - 2 left.
        while waiting and draft.ops[number].update >= waiting[0] + 2 and draft.ops[number].phase == "forward":
            update_parameters()
        draft.follows(number, before)
        before = number
        update = draft.ops[number].update
        if number in backward[position, update]:
            waiting.append(update)
            if plan.exchange == "end":
                update_parameters()
    while waiting:
        update_parameters()


class _Wires:
    """Load of messages between ranks on interfaces."""

    def __init__(self, links: Links, shared: bool) -> None:
        self._links, self._shared = links, shared
        hosts = links.hosts
        self._capacity = [
            *links.bandwidth_out_bytes_per_s,
            *links.bandwidth_in_bytes_per_s,
            *links.intra_bytes_per_s,
        ]
        self._hosts = hosts
        self._pairs: dict[tuple[int, int], int] = {}

    @property
    def capacity(self) -> Vector:
        """Bytes per second of all interfaces; those without a limit are never used."""
        found = np.array(self._capacity, np.float64)
        return np.where(np.isfinite(found), found, 1.0)

    def between(
        self, plan: StagePlan, costs: StageCosts, edge: tuple[int, int], replica: int, *, forward: bool
    ) -> MessageLoad:
        """Load of one stage's output for another, from the ranks of the one to those of the other.

        Partial sums come before the rest, on links of their own.
        """
        flows, before_s = list[tuple[tuple[int, int], float]](), 0.0
        behind_s = 0.0
        for module, size in costs.value_bytes.get(edge, {"": costs.edge_bytes.get(edge, 0.0)}).items():
            split = [one.dim or 0 for one in plan.splits if one.module == module]
            source, target = (
                plan.layout_of(module, stage, replica, 1 + max(split, default=0)) for stage in edge
            )
            if not forward:
                source, target = target, source.summed
            for one in flows_between(source, target, self._links):
                part = one.share * size
                flows += [(pair, part) for pair in one.edges]
                if one.addends:
                    adding = self._transfer([(pair, part) for pair in one.addends], 1)
                    before_s = max(before_s, self.alone_s(adding))
                tree = MulticastTree(start=0, stop=max(round(part), 1), sender=one.sender, edges=one.edges)
                behind_s = max(behind_s, last_chunk_s(tree, chunk_of(tree.stop), self._links))
        found = self._transfer(flows, 1)
        return found._replace(duration_s=found.duration_s + before_s + behind_s)

    def all_reduce(self, replicas: Sequence[Sequence[int]], size_bytes: float) -> MessageLoad:
        """A ring over replicas for each rank of a stage's width."""
        count = len(replicas)
        pairs = [
            (replicas[r][lane], replicas[(r + 1) % count][lane])
            for lane in range(len(replicas[0]))
            for r in range(count)
        ]
        rounds = 2 * (count - 1)
        burden = self._links.burden.get("all_reduce", 1.0)
        return self._transfer([(pair, rounds * size_bytes / count * burden) for pair in pairs], rounds)

    def _transfer(self, flows: Sequence[tuple[tuple[int, int], float]], rounds: int) -> MessageLoad:
        """Bytes from rank to rank, all at once."""
        costs, pairs = self._links.pairs, [pair for pair, _ in flows]
        sizes = np.array([size for _, size in flows])
        latency = np.array([costs.latency_s[pair] for pair in pairs])
        slope = np.array([costs.s_per_byte[pair] for pair in pairs])
        if not np.isfinite(slope).all():
            a, b = pairs[int(np.argmax(~np.isfinite(slope)))]
            raise InputError(f"no path leads from rank {a} to rank {b} past no other; add a link")
        size_bytes = float(sizes.max())
        if not self._shared or size_bytes <= 0:
            return MessageLoad(float((rounds * latency + sizes * slope).max()), 0.0, (), ())
        load: dict[int, float] = {}
        for pair, size, s_per_byte in zip(pairs, sizes.tolist(), slope.tolist(), strict=True):
            for interface in self._interfaces(pair, s_per_byte):
                load[interface] = load.get(interface, 0.0) + size
        limited = {i: size for i, size in load.items() if np.isfinite(self._capacity[i])}
        return MessageLoad(
            float(rounds * latency.max()),
            size_bytes if limited else 0.0,
            tuple(limited),
            tuple(size / size_bytes for size in limited.values()),
        )

    def alone_s(self, one: MessageLoad) -> float:
        """Seconds of a message that has all interfaces for itself."""
        used = zip(one.interface, one.weight, strict=True)
        return one.duration_s + max(
            (one.work * weight / float(self._capacity[i]) for i, weight in used), default=0.0
        )

    def _interfaces(self, pair: tuple[int, int], s_per_byte: float) -> list[int]:
        """Interfaces on the way of a pair, one of its own where it is slower than those of its hosts."""
        source, target = (int(self._links.host_of_rank[rank]) for rank in pair)
        hosts = self._hosts
        found = [2 * hosts + source] if source == target else [source, hosts + target]
        fastest = min(self._capacity[i] for i in found)
        if s_per_byte * fastest > 1.0 + 1e-9:
            if pair not in self._pairs:
                self._pairs[pair] = len(self._capacity)
                self._capacity.append(1.0 / s_per_byte)
            found.append(self._pairs[pair])
        return found
