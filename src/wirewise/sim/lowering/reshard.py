"""Tensors that move between meshes: trees of messages that share the interfaces of hosts.

The chunks of a tree run through its edges at one rate, as those of a pipeline do, so a tree is one transfer that uses
every interface on its way. A rank further down gets its last chunk later, by the hops in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans.reshard import MulticastTree, ReshardPlan, UnitTask
from wirewise.sim.chains import last_chunk_s
from wirewise.sim.engine import Ops, run
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.sharing import Uses
from wirewise.sim.timeline import Span, Timeline

__all__ = ["Travel", "lower_reshard", "simulate_tasks"]


class Travel(NamedTuple):
    """When a part of a task's slices travels."""

    task: int
    """Number of the task."""
    tree: MulticastTree
    """Tree of the part; one edge for an addend on its way to the rank that sums."""
    start_s: float
    sent_s: float
    """When its sender has sent all."""
    end_s: float
    """When its last rank has all."""


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


def simulate_tasks(tasks: Sequence[UnitTask], chunk_bytes: int, links: Links) -> list[Travel]:
    """When all parts of all tasks travel.

    Args:
        tasks: What moves, with trees and rounds.
        chunk_bytes: Bytes that a rank passes on at a time.
        links: Links between the ranks.
    """
    sends = list(_sends(tasks))
    if not sends:
        return []
    followers, extra = _order(tasks, sends)
    count = len(sends) + extra
    latency = [
        max(float(links.pairs.latency_s[edge]) for edge in one.tree.edges if edge[0] == one.tree.sender)
        for one in sends
    ]
    indptr = np.cumsum([0, *map(len, followers)]).astype(np.int64)
    ops = Ops(
        duration=np.array([*latency, *[0.0] * extra]),
        gap=np.zeros(count),
        release=np.zeros(count),
        work=np.array([*(float(one.tree.size_bytes) for one in sends), *[0.0] * extra]),
        resource=np.full(count, -1, np.int64),
        priority=np.zeros(count, np.int64),
        indptr=indptr,
        successors=np.array([one for own in followers for one in own], np.int64),
        slots=np.zeros(0, np.int64),
    )
    found = run(ops, _uses(sends, count, links))
    return [
        Travel(
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


def _order(tasks: Sequence[UnitTask], sends: Sequence[_Op]) -> tuple[list[list[int]], int]:
    """Successors of each op, and how many ops without bytes, behind the others, join rounds."""
    followers: list[list[int]] = [[] for _ in sends]
    adds: dict[int, list[int]] = {}
    of_sender: dict[int, dict[int, list[int]]] = {}
    for number, one in enumerate(sends):
        if one.adds:
            adds.setdefault(one.task, []).append(number)
        else:
            for before in adds.get(one.task, ()):
                followers[before].append(number)
        of_sender.setdefault(one.tree.sender, {}).setdefault(tasks[one.task].round, []).append(number)
    extra = 0
    for rounds in of_sender.values():
        gate = -1
        for _, own in sorted(rounds.items()):
            if gate >= 0:
                followers[gate] += own
            gate = len(followers)
            followers.append([])
            extra += 1
            for number in own:
                followers[number].append(gate)
    return followers, extra


def _uses(sends: Sequence[_Op], count: int, links: Links) -> Uses:
    """Interfaces that each transfer uses: ways out of hosts, into them, inside, then pairs that are narrower."""
    host, hosts = links.host_of_rank, links.hosts
    capacity = [
        *links.bandwidth_out_bytes_per_s.tolist(),
        *links.bandwidth_in_bytes_per_s.tolist(),
        *links.intra_bytes_per_s.tolist(),
    ]
    narrow: dict[tuple[int, int], int] = {}
    indptr, owner = [0], list[int]()
    interface, weight = list[int](), list[float]()
    for number, one in enumerate(sends):
        own: dict[int, float] = {}
        for here, there in one.tree.edges:
            a, b = int(host[here]), int(host[there])
            ways = [2 * hosts + a] if a == b else [a, hosts + b]
            own_rate = min(capacity[way] for way in ways)
            pair_rate = 1.0 / max(float(links.pairs.s_per_byte[here, there]), 1e-300)
            if pair_rate < own_rate * (1 - 1e-9):
                if (here, there) not in narrow:
                    narrow[here, there] = len(capacity)
                    capacity.append(pair_rate)
                ways.append(narrow[here, there])
            for way in ways:
                if np.isfinite(capacity[way]):
                    own[way] = own.get(way, 0.0) + 1.0
        interface += own
        weight += own.values()
        owner += [number] * len(own)
        indptr.append(len(interface))
    indptr += [len(interface)] * (count - len(sends))
    finite = [rate if np.isfinite(rate) else 1.0 for rate in capacity]
    return Uses(
        np.array(indptr, np.int64),
        np.array(interface, np.int64),
        np.array(weight, np.float64),
        np.array(owner, np.int64),
        np.array(finite, np.float64),
    )


def _spans(plan: ReshardPlan, travels: Sequence[Travel]) -> Iterator[Span]:
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
