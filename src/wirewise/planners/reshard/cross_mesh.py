"""Any layout to any other, on disjoint, overlapping or equal meshes (AlpaComm).

Y. Zhuang et al.: On Optimizing the Communication of Model Parallelism, MLSys 2023. Tensors are sliced at all shard
boundaries before and after; slices with the same holders and the same receivers move together, from one holder to all
receivers. Objective: the simulated end of the last message. Variables: for each slice its sender, its trees and its
round. Constraints: a sender holds the slice; buckets are sent in sequence. Slices that a rank already holds are not
sent to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from wirewise.errors import InputError, PlanError
from wirewise.planners.reshard.bound import bound, shares
from wirewise.planners.reshard.order import ORDERS, OrderedSlices, choices, order_slices
from wirewise.planners.reshard.problem import ReshardProblem
from wirewise.planners.reshard.trees import has_unequal_receivers, trees_of
from wirewise.plans.reshard import STRATEGIES, MulticastTree, ReshardPlan, Strategy, UnitTask
from wirewise.plans.sharding import Movement
from wirewise.sim.chains import chunk_of
from wirewise.sim.lowering.reshard import simulate_tasks

__all__ = ["plan"]

_WORTH = 0.995
"""Fraction of the predicted time below which a candidate takes the place of a plainer one."""


_HAND_ON_S = 2e-4
"""Time of a rank to forward a chunk, beside the links: small tensors go straight."""


class _Candidate(NamedTuple):
    tasks: tuple[UnitTask, ...]
    seconds: float
    strategy: str
    order: str


def plan(
    problem: ReshardProblem,
    *,
    strategy: str = "auto",
    order: str = "auto",
    chunk_bytes: int | None = None,
    seed: int = 0,
) -> ReshardPlan:
    """Choose senders, trees and rounds; deterministic, so the plan is the same on every rank.

    Args:
        problem: Tensors and links.
        strategy: "auto", for the one predicted to be fastest, or one of `plans.reshard.STRATEGIES`.
        order: One of `planners.reshard.ORDERS`; "auto" also tries all slices at once, and slices sent by several
            hosts in parts.
        chunk_bytes: Bytes forwarded at a time. Defaults to a 128th of the largest part, from 64 KiB to 4 MiB.
        seed: Seed of randomised orders.

    Raises:
        InputError: The chunk size is not positive.
        PlanError: The strategy or the order is unknown.
    """
    if strategy != "auto" and strategy not in STRATEGIES:
        raise PlanError(f"unknown strategy {strategy!r}; expected one of: auto, {', '.join(STRATEGIES)}")
    if order not in ORDERS:
        raise PlanError(f"unknown order {order!r}; expected one of: {', '.join(ORDERS)}")
    if chunk_bytes is not None and chunk_bytes < 1:
        raise InputError(f"got chunks of {chunk_bytes} bytes; expected at least 1")
    chunk = chunk_bytes or chunk_of(max(problem.sizes, default=0))
    limit = bound(problem)
    best: _Candidate | None = None
    quickest: dict[str, float] = {}
    for name in _worth_trying(problem) if strategy == "auto" else [cast(Strategy, strategy)]:
        for one in _candidates(problem, name, order, chunk, seed, limit.size_bytes):
            quickest[name] = min(quickest.get(name, np.inf), one.seconds)
            if best is None or one.seconds + _handed_on_s(one) < _WORTH * (best.seconds + _handed_on_s(best)):
                best = one
    assert best is not None
    return ReshardPlan(
        world_size=problem.links.world_size,
        planner="cross-mesh",
        seed=seed,
        tensors=problem.tensors,
        hosts=problem.hosts,
        tasks=best.tasks,
        strategy=best.strategy,
        order=best.order,
        chunk_bytes=chunk,
        predicted_s=best.seconds,
        bound_s=limit.size_bytes / limit.bandwidth_bytes_per_s if limit.size_bytes else 0.0,
        busiest=limit,
        candidates=quickest,
    )


def _handed_on_s(one: _Candidate) -> float:
    """Seconds of the ranks between the sender and the last rank of the deepest tree."""
    deepest = 1
    for task in one.tasks:
        for tree in task.trees:
            depth = {tree.sender: 0}
            for here, there in tree.edges:
                depth[there] = depth[here] + 1
            deepest = max(deepest, *depth.values())
    return _HAND_ON_S * (deepest - 1)


def _worth_trying(problem: ReshardProblem) -> list[Strategy]:
    """The plainest first; without the ones that are the same as a plainer one here."""
    remote = [_remote(one) for one in problem.movements]
    several = any(len(ranks) > 1 for ranks in remote)
    hosts = any(len(problem.hosts_of(ranks)) > 1 for ranks in remote)
    found: list[Strategy] = ["p2p"]
    if several:
        found += ["ring", "local_all_gather"]
    if hosts:
        found.append("global_all_gather")
        if any(
            has_unequal_receivers(one.holders[0][0], ranks, problem.links) for one, ranks in _pairs(problem)
        ):
            found.append("trees")
    return found


def _pairs(problem: ReshardProblem) -> Iterator[tuple[Movement, list[int]]]:
    for one in problem.movements:
        if ranks := _remote(one):
            yield one, ranks


def _remote(one: Movement) -> list[int]:
    """Receivers that do not hold the slice; of a sum, all of them."""
    held = set(one.holders[0]) if len(one.holders) == 1 else set()
    return [rank for rank in one.receivers if rank not in held]


@dataclass
class _Builder:
    """Tasks of a strategy as they are given their senders."""

    problem: ReshardProblem
    strategy: Strategy

    def __post_init__(self) -> None:
        self.sent: dict[tuple[int, int], int] = {}
        """Bytes that a rank sends first in a round, by round and rank."""

    def sender(self, one: Movement, host: int, size: int, round_: int) -> int:
        """A rank of the host that holds the slice, or for a sum a partial sum of it; receivers first.

        Of several, the one that sends least in the round: slices of other rounds had better come from the same rank,
        which begins a round when it has sent the one before.
        """
        ranks = [rank for rank in _senders(one) if self.problem.hosts[rank] == host]
        found = min(ranks, key=lambda rank: (self._sent(round_, rank), rank))
        self.sent[round_, found] = self._sent(round_, found) + size
        return found

    def _sent(self, round_: int, rank: int) -> int:
        return self.sent.get((round_, rank), 0)

    def adders(self, one: Movement, root: int, size: int, round_: int) -> tuple[int, ...]:
        """A rank for each partial sum of a sum: the root first, then those of its host or that send least."""
        if len(one.holders) == 1:
            return ()
        hosts, found = self.problem.hosts, [root]
        for own in one.holders:
            if root not in own:
                giver = min(
                    own, key=lambda rank: (hosts[rank] != hosts[root], self._sent(round_, rank), rank)
                )
                self.sent[round_, giver] = self._sent(round_, giver) + size
                found.append(giver)
        return tuple(found)

    def task(self, number: int, host: int, round_: int, parts: dict[int, int] | None = None) -> UnitTask:
        """The task of a movement.

        Args:
            number: Index of the movement.
            host: Host that sends.
            round_: Round in which it is sent.
            parts: Bytes that each of several hosts sends, in place of `host`.
        """
        one, size = self.problem.movements[number], self.problem.sizes[number]
        trees, adders, begin = list[MulticastTree](), tuple[int, ...](), 0
        for here, share in (parts or {host: size}).items():
            if not _remote(one):
                break
            root = self.sender(one, here, share, round_)
            adders = self.adders(one, root, size, round_)
            receivers = [rank for rank in one.receivers if rank not in (adders[:1] or one.holders[0])]
            if receivers:
                trees += trees_of(self.strategy, share, root, receivers, self.problem.links, start=begin)
            begin += share
        return UnitTask(
            slices=one.slices,
            size_bytes=size,
            holders=one.holders,
            receivers=one.receivers,
            adders=adders or _first_adders(one),
            strategy=self.strategy,
            round=round_,
            trees=tuple(trees),
        )


def _first_adders(one: Movement) -> tuple[int, ...]:
    return tuple(own[0] for own in one.holders) if len(one.holders) > 1 else ()


def _senders(one: Movement) -> list[int]:
    """Ranks that may send a slice; of a sum the receivers that have a partial sum, which need no message then."""
    ranks = [rank for own in one.holders for rank in own]
    needing = [rank for rank in ranks if rank in one.receivers] if len(one.holders) > 1 else []
    return needing or ranks


def _candidates(
    problem: ReshardProblem, strategy: Strategy, order: str, chunk: int, seed: int, limit: int
) -> Iterator[_Candidate]:
    moving = [number for number, one in enumerate(problem.movements) if _remote(one)]

    def told(tasks: Sequence[UnitTask], name: str) -> _Candidate:
        used = {task.strategy for task in tasks if task.trees}
        seconds = max((one.end_s for one in simulate_tasks(tasks, chunk, problem.links)), default=0.0)
        return _Candidate(tuple(tasks), seconds, used.pop() if len(used) == 1 else strategy, name)

    found = _ordered(problem, strategy, moving, order, seed)
    yield told(_in_rounds(problem, strategy, moving, found), order)
    if order != "auto":
        return
    yield told(_in_rounds(problem, strategy, moving, found, together=True), "together")
    if strategy in ("ring", "trees", "p2p") and (tasks := _divided(problem, strategy, moving)):
        yield told(tasks, "divided")


def _in_rounds(
    problem: ReshardProblem,
    strategy: Strategy,
    moving: Sequence[int],
    found: dict[int, tuple[int, int]],
    together: bool = False,
) -> list[UnitTask]:
    """Tasks with the host and the round of each movement that was ordered; buckets come one after the other."""
    builder, tasks, base, last, bucket = _Builder(problem, strategy), [], 0, -1, 0
    by_start = sorted(moving, key=lambda number: found[number][1])
    rounds = dict.fromkeys(moving, 0) if together else {number: found[number][1] for number in by_start}
    for number, one in enumerate(problem.movements):
        if one.bucket > bucket:
            base, bucket = last + 1, one.bucket
        host, own = found.get(number, (-1, 0))[0], rounds.get(number, 0)
        last = max(last, base + own)
        tasks.append(builder.task(number, host, base + own))
    return tasks


def _ordered(
    problem: ReshardProblem, strategy: Strategy, moving: Sequence[int], order: str, seed: int
) -> dict[int, tuple[int, int]]:
    """Sending host and round of each movement, bucket by bucket."""
    found = {}
    for bucket in sorted({problem.movements[number].bucket for number in moving}):
        own = [number for number in moving if problem.movements[number].bucket == bucket]
        options = [list(_options(problem, strategy, number)) for number in own]
        given = choices([[(seconds, ways) for _, seconds, ways in one] for one in options])
        placed = order_slices(given, order, seed=seed)
        for place, level in enumerate(_levels(placed, options)):
            found[own[place]] = (options[place][placed.option[place]][0], level)
    return found


def _levels(placed: OrderedSlices, options: list[list[tuple[int, float, list[int]]]]) -> list[int]:
    """Round of each slice: one after the last round of those before it that hold a way of its own."""
    levels, used = [0] * len(options), dict[int, int]()
    for place in placed.order.tolist():
        ways = options[place][placed.option[place]][2]
        levels[place] = max((used.get(way, 0) for way in ways), default=0)
        used |= dict.fromkeys(ways, levels[place] + 1)
    return levels


def _options(
    problem: ReshardProblem, strategy: Strategy, number: int
) -> Iterator[tuple[int, float, list[int]]]:
    """Sending hosts with the seconds that the slice holds its ways: out of host h is 2 h, into it 2 h + 1."""
    one, size, links = problem.movements[number], problem.sizes[number], problem.links
    remote = _remote(one)
    for host in sorted(problem.hosts_of(_senders(one))):
        count: dict[int, int] = {}
        for rank in remote:
            if problem.hosts[rank] != host:
                count[problem.hosts[rank]] = count.get(problem.hosts[rank], 0) + 1
        copies = {"p2p": sum(count.values()), "local_all_gather": len(count)}.get(strategy, 1)
        into = {there: ranks if strategy == "p2p" else 1 for there, ranks in count.items()}
        seconds = max(
            (
                copies * size / links.bandwidth_out_bytes_per_s[host],
                *(size * n / links.bandwidth_in_bytes_per_s[there] for there, n in into.items()),
            )
            if count
            else (size / links.intra_bytes_per_s[host],)
        )
        ways = [2 * host, *(2 * there + 1 for there in count)] if count else [2 * host]
        yield host, float(max(seconds, 1e-12)), ways


def _divided(problem: ReshardProblem, strategy: Strategy, moving: Sequence[int]) -> list[UnitTask] | None:
    """All slices at once, each sent in part by several of the hosts that hold it; None if no slice has a choice."""
    rates = problem.links.bandwidth_out_bytes_per_s
    free = [
        number
        for number in moving
        if len(problem.movements[number].holders) == 1
        and not problem.hosts_of(_remote(problem.movements[number]))
        & problem.hosts_of(problem.movements[number].holders[0])
    ]
    held = {number: sorted(problem.hosts_of(problem.movements[number].holders[0])) for number in free}
    if not any(len(hosts) > 1 for hosts in held.values()) or not np.isfinite(rates).all():
        return None
    given = shares(
        [held[number] for number in free], [problem.sizes[number] for number in free], rates.tolist()
    )
    parts = dict(zip(free, given, strict=True))
    builder, tasks, base, last, bucket = _Builder(problem, strategy), [], 0, -1, 0
    for number, one in enumerate(problem.movements):
        if one.bucket > bucket:
            base, bucket = last + 1, one.bucket
        last = max(last, base)
        host = min(problem.hosts_of(_senders(one)))
        own = _whole(parts[number], problem.sizes[number]) if number in parts else None
        tasks.append(builder.task(number, host, base, own))
    return tasks


def _whole(shares_: np.ndarray, size: int) -> dict[int, int]:
    """Bytes of each host that sends any, which add up to the size."""
    ends = np.round(np.cumsum(shares_) / max(shares_.sum(), 1e-300) * size).astype(int)
    ends[-1] = size
    own = np.diff(ends, prepend=0)
    return {host: int(part) for host, part in enumerate(own.tolist()) if part > 0}
