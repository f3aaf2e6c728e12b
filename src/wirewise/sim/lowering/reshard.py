"""Lowering of reshard plans: trees of messages that share the interfaces of hosts.

The chunks of a tree are pipelined through its edges at one rate, so a tree is one transfer that uses every interface
on its path. A rank further down gets its last chunk later, by the hops in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans.reshard import MulticastTree, ReshardPlan, UnitTask
from wirewise.sim.chains import last_chunk_s
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.op_graph import OpGraph
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.timeline import Span, Timeline

__all__ = ["SliceTimes", "lower_reshard", "simulate_tasks"]


class SliceTimes(NamedTuple):
    """Start and end of the transfer of a part of a task's slices."""

    task: int
    """Index of the task."""
    tree: MulticastTree
    """Tree of the part; a single edge for a partial sum to the reducing rank."""
    start_s: float
    sent_s: float
    """Time at which its sender has sent everything."""
    end_s: float
    """Time at which its last rank has received everything."""


class _Op(NamedTuple):
    task: int
    tree: MulticastTree
    adds: bool


def lower_reshard(plan: ReshardPlan, job: Any, links: Any) -> Prediction:
    """Simulate all messages of the plan; see `predict`."""
    if job is not None:
        raise InputError(
            f"got a {type(job).__name__} as the job; a reshard plan holds its tensors itself, expected none"
        )
    links = expect("links", links, Links, plan)
    same_ranks(plan, links.world_size, "the links have")
    if plan.hosts != tuple(links.host_of_rank.tolist()):
        raise PlanError(
            f"hosts are {list(plan.hosts)} - at `$.hosts`; the links have their ranks on hosts "
            f"{links.host_of_rank.tolist()}, make the plan again"
        )
    travels = simulate_tasks(plan.tasks, plan.chunk_bytes, links)
    timeline = Timeline(spans=tuple(_spans(plan, travels)), world_size=plan.world_size)
    return prediction_of(plan, "reshard", timeline, max((one.end_s for one in travels), default=0.0))


def simulate_tasks(tasks: Sequence[UnitTask], chunk_bytes: int, links: Links) -> list[SliceTimes]:
    """Simulate all parts of all tasks; returns their transfer times.

    Args:
        tasks: Slices to move, with trees and rounds.
        chunk_bytes: Bytes forwarded at a time.
        links: Links between the ranks.
    """
    sends = list(_sends(tasks))
    if not sends:
        return []
    graph, capacity = OpGraph(), _Capacity(links)
    for one in sends:
        latency = max(
            float(links.pairs.latency_s[edge]) for edge in one.tree.edges if edge[0] == one.tree.sender
        )
        used = capacity.used_by(one.tree)
        graph.add(
            latency, work=float(one.tree.size_bytes), interfaces=list(used), weights=list(used.values())
        )
    _order(graph, tasks, sends)
    found = graph.run(capacity.finite)
    return [
        SliceTimes(
            one.task,
            one.tree,
            float(found.start[number]),
            float(found.end[number]),
            float(found.end[number]) + last_chunk_s(one.tree, chunk_bytes, links),
        )
        for number, one in enumerate(sends)
    ]


def _sends(tasks: Sequence[UnitTask]) -> Iterator[_Op]:
    for number, task in enumerate(tasks):
        for giver in task.adders[1:]:
            edge = (giver, task.adders[0])
            yield _Op(number, MulticastTree(start=0, stop=task.size_bytes, sender=giver, edges=(edge,)), True)
        for tree in task.trees:
            yield _Op(number, tree, False)


def _order(graph: OpGraph, tasks: Sequence[UnitTask], sends: Sequence[_Op]) -> None:
    """Let sums come before what is sent of them, and rounds of a sender after each other."""
    adds: dict[int, list[int]] = {}
    of_sender: dict[int, dict[int, list[int]]] = {}
    for number, one in enumerate(sends):
        if one.adds:
            adds.setdefault(one.task, []).append(number)
        else:
            for before in adds.get(one.task, ()):
                graph.follows(number, before)
        of_sender.setdefault(one.tree.sender, {}).setdefault(tasks[one.task].round, []).append(number)
    for rounds in of_sender.values():
        gate: int | None = None
        for _, own in sorted(rounds.items()):
            for number in own:
                graph.follows(number, gate)
            gate = graph.add(0.0)
            for number in own:
                graph.follows(gate, number)


class _Capacity:
    """Bandwidth of interfaces: ways out of hosts, into them, inside, then pairs that are narrower."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._bytes_per_s = [
            *links.bandwidth_out_bytes_per_s.tolist(),
            *links.bandwidth_in_bytes_per_s.tolist(),
            *links.intra_bytes_per_s.tolist(),
        ]
        self._narrow: dict[tuple[int, int], int] = {}

    @property
    def finite(self) -> NDArray[np.float64]:
        """Bandwidth of each interface; of those without limit any, as nothing is counted on them."""
        return np.array([rate if np.isfinite(rate) else 1.0 for rate in self._bytes_per_s], np.float64)

    def used_by(self, tree: MulticastTree) -> dict[int, float]:
        """How many edges of a tree use each interface."""
        host, hosts, rates = self._links.host_of_rank, self._links.hosts, self._bytes_per_s
        found: dict[int, float] = {}
        for here, there in tree.edges:
            a, b = int(host[here]), int(host[there])
            ways = [2 * hosts + a] if a == b else [a, hosts + b]
            own_rate = min(rates[way] for way in ways)
            pair_rate = 1.0 / max(float(self._links.pairs.s_per_byte[here, there]), 1e-300)
            if pair_rate < own_rate * (1 - 1e-9):
                if (here, there) not in self._narrow:
                    self._narrow[here, there] = len(rates)
                    rates.append(pair_rate)
                ways.append(self._narrow[here, there])
            for way in ways:
                if np.isfinite(rates[way]):
                    found[way] = found.get(way, 0.0) + 1.0
        return found


def _spans(plan: ReshardPlan, travels: Sequence[SliceTimes]) -> Iterator[Span]:
    found = []
    for one in travels:
        named = f"task {one.task} from rank {one.tree.sender}, round {plan.tasks[one.task].round}"
        ranks = {one.tree.sender: one.sent_s} | {there: one.end_s for _, there in one.tree.edges}
        found += [
            Span(rank=rank, phase="message", exchange=named, start_s=one.start_s, end_s=end)
            for rank, end in ranks.items()
            if end > one.start_s
        ]
    yield from sorted(found, key=lambda span: (span.rank, span.start_s, span.end_s))
