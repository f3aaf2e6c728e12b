"""Global dataflow graph of one step, from the traces of all ranks.

The ops of a thread form a chain that keeps the idle time between them. A communication is launched at its place in
the chain; its transfer begins when all members of the group have arrived and a slot is free; ops that wait for it
continue when the rank has the result:

    backward (rank 0) -> enqueue (rank 0) -+               +-> done (rank 0) -> wait (rank 0) -> optimizer
                                           +-> transfer -> +
    backward (rank 1) -> enqueue (rank 1) -+               +-> done (rank 1) -> wait (rank 1) -> optimizer
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wirewise.errors import InputError, TraceError
from wirewise.trace.arrays import Dataflow
from wirewise.trace.chains import CollectivePart, GraphDraft, Key, add_rank
from wirewise.trace.match import Match, match, transfer_starts
from wirewise.trace.records import COLLECTIVES, KINDS, Trace
from wirewise.trace.sketch import GraphSketch, SketchNode
from wirewise.trace.traffic import message_weights

if TYPE_CHECKING:
    from wirewise.collective.named import Flows

__all__ = ["COLLECTIVES", "KINDS", "Dataflow", "build", "check", "coarsen"]

_RANKS_END_APART = ("all_to_all", "broadcast")
"""Collectives in which a rank may have all that it gets long before the others."""
_LEAST_APART_S = 1e-3
_GRAIN = 0.1
"""Shares of a transfer after which ranks are done are rounded to multiples of this."""


def build(
    trace: Trace,
    step: int,
    *,
    algorithm: str = "",
    expand: bool = False,
    servers: int = 1,
    matches: Sequence[Match] | None = None,
) -> Dataflow:
    """Build the graph of a step.

    Args:
        trace: Trace, aligned or of ranks that share a clock.
        step: One of `trace.steps()`.
        algorithm: Algorithm of all_reduce, one of `collective.named.ALGORITHMS`. Defaults to the trace's, else
            "ring". All-reduces that a thread executed by its own messages remain these messages (`whole` removes
            them).
        expand: Whether a collective is expanded to its transfers between ranks, instead of one transfer with the sum
            of their flows. A collective then starts on a rank once the one `comm_slots` before it is done.
        servers: Number of first ranks that hold the parameters, for the algorithm "ps".
        matches: Result of `match(trace)`, if many steps of a trace are built.

    Raises:
        TraceError: The step does not exist, ranks do not fit each other, or ops form a cycle.
        InputError: The algorithm is unknown.
    """
    steps = trace.steps()
    if step not in steps:
        known = f"{steps[0]} to {steps[-1]}" if steps else "none: no step is on all ranks"
        raise TraceError(f"no step {step} on all ranks; the steps are {known}")
    known_algorithms = _algorithms()
    if algorithm and algorithm not in known_algorithms:
        raise InputError(f"got the algorithm {algorithm!r}; expected one of {', '.join(known_algorithms)}")
    numbers: dict[str, int] = {}
    hosts = [numbers.setdefault(rank.header.host, len(numbers)) for rank in trace.ranks]
    draft = GraphDraft(hosts, step)
    chosen = _of_step(match(trace) if matches is None else matches, step)
    parts = _parts(trace, step, [one for one, _ in chosen])
    for rank in range(trace.world_size):
        waited = {(op.group, op.seq) for op in trace.ranks[rank].ops if op.kind == "wait" and op.seq >= 0}
        add_rank(draft, rank, trace.of(rank, step), parts[rank], waited)
    messages = [one for one, _ in chosen if one.collective == "send"]
    transfers = _Transfers(draft, algorithm, servers, messages)
    by_match = {id(one): [_part(parts[rank], one) for rank in one.ranks] for one, _ in chosen}
    for one, begins in chosen:
        if not _carried_out(one, by_match[id(one)]):
            transfers.add(one, begins, by_match[id(one)], expand)
    flow = replace(
        draft.sketch.dataflow(), member_ops=[draft.members[op] for op in sorted(draft.sketch.nodes)]
    )
    check(flow)
    return flow


def check(flow: Dataflow) -> None:
    """Raise unless every op can run and is connected to another.

    Raises:
        TraceError: Ops form a cycle, or an op is isolated.
    """
    waits = np.bincount(flow.indices, minlength=len(flow.names))
    alone = np.flatnonzero(waits + np.diff(flow.indptr) == 0)
    if len(alone):
        op = int(alone[0])
        raise TraceError(
            f"op {flow.names[op]!r} of rank {flow.rank[op]} is tied to no other; this graph is of no use"
        )
    ready = np.flatnonzero(waits == 0).tolist()
    done = 0
    while ready:
        op = ready.pop()
        done += 1
        for follower in flow.indices[flow.indptr[op] : flow.indptr[op + 1]].tolist():
            waits[follower] -= 1
            if waits[follower] == 0:
                ready.append(follower)
    if done < len(flow.names):
        stuck = ", ".join(repr(flow.names[op]) for op in np.flatnonzero(waits > 0)[:5])
        raise TraceError(
            f"{len(flow.names) - done} ops wait for each other, among them {stuck}; a rank waits for a collective "
            "before it hands it over: align the clocks and check the order of waits in the trace"
        )


def coarsen(flow: Dataflow, *, max_gap_s: float = 100e-6) -> Dataflow:
    """Merge consecutive ops of one kind, where no other op is affected.

    Ops at whose start or end another op begins are kept separate. `member_ops` lists the ops merged into each.

    Args:
        flow: Graph to coarsen.
        max_gap_s: Maximum idle time between merged ops, in seconds, which then counts as work.
    """
    sketch = GraphSketch.of(flow)
    followers = sketch.followers()
    members = dict(enumerate(flow.member_ops or [[name] for name in flow.names]))
    for op in sorted(sketch.nodes):
        if len(followers[op]) != 1:
            continue
        node, target = sketch.nodes[op], followers[op][0]
        heir = sketch.nodes[target]
        if heir.after != {op} or node.gap_s > max_gap_s or not _mergeable(node, heir, sketch):
            continue
        for before in node.after:
            followers[before] = [target if one == op else one for one in followers[before]]
        heir.after, heir.priority = node.after, node.priority
        heir.duration_s += node.duration_s + node.gap_s
        heir.gradient_bytes += node.gradient_bytes
        members[target] = members.pop(op) + members[target]
        heir.name = f"{members[target][0]}..{members[target][-1]}"
        del sketch.nodes[op]
    return replace(sketch.dataflow(), member_ops=[members[op] for op in sorted(sketch.nodes)])


def _mergeable(node: SketchNode, heir: SketchNode, sketch: GraphSketch) -> bool:
    alike = (node.rank, node.resource, node.kind) == (heir.rank, heir.resource, heir.kind)
    work = node.kind not in ("wait", "communication") and node.duration_s > 0 and heir.duration_s > 0
    return alike and work and sketch.slots.get(node.resource) == 1


def _of_step(matches: Sequence[Match], step: int) -> list[tuple[Match, float]]:
    """Collectives and messages of the step, with the time at which each got a slot."""
    starts = dict(zip(map(id, matches), transfer_starts(matches), strict=True))
    chosen = [one for one in matches if any(op.step == step for op in one.ops)]
    for one in chosen:
        if any(op.step != step for op in one.ops):
            raise TraceError(
                f"{one.collective} {one.seq} of group {one.group!r} is of steps {sorted(op.step for op in one.ops)} "
                f"on ranks {list(one.ranks)}; mark the steps at the same place on all ranks"
            )
    return [(one, starts[id(one)]) for one in chosen]


def _parts(trace: Trace, step: int, chosen: Sequence[Match]) -> list[dict[Key, CollectivePart]]:
    """Communications of each rank in the step."""
    parts: list[dict[Key, CollectivePart]] = [{} for _ in trace.ranks]
    for number, one in enumerate(chosen):
        for rank, op in zip(one.ranks, one.ops, strict=True):
            # Messages have numbers between two ranks only, so they get a name that no collective has.
            key = ("", -2 - number) if one.collective == "send" else (one.group, one.seq)
            parts[rank][key] = CollectivePart(one, op)
    for rank, own in enumerate(parts):
        known = {id(part.op) for part in own.values()}
        for op in trace.ranks[rank].ops:
            if op.kind == "communication" and op.step == step and id(op) not in known:
                which = op.seq if op.seq >= 0 else f"with tag {op.tag}"
                raise TraceError(
                    f"rank {rank} has {op.collective or op.name} {which} of group {op.group!r} in step {step} "
                    "without its counterparts on the other ranks; choose a step that all ranks recorded whole"
                )
    return parts


def _carried_out(one: Match, parts: list[CollectivePart]) -> bool:
    """Whether threads of the ranks carry it out, so that it is nothing besides what they do."""
    without = [rank for rank, part in zip(one.ranks, parts, strict=True) if part.begun < 0]
    if without and len(without) < len(parts):
        raise TraceError(
            f"{one.collective} {one.seq} of group {one.group!r} has its messages on some ranks, but not on rank "
            f"{without[0]}; the trace lost ops: record again"
        )
    return not without


def _part(parts: dict[Key, CollectivePart], one: Match) -> CollectivePart:
    return next(part for part in parts.values() if part.match is one)


class _Transfers:
    """Adds what lies between handing over and having the result."""

    def __init__(self, draft: GraphDraft, algorithm: str, servers: int, messages: list[Match]) -> None:
        self.draft, self.algorithm, self.servers = draft, algorithm, servers
        found = message_weights(messages, draft.sketch.hosts)
        self.weights = {id(one): weight for one, weight in zip(messages, found, strict=True)}
        self.done: dict[tuple[int, str], list[int]] = defaultdict(list)
        """Ops of each (rank, group) in the order in which they were done; only where transfers are expanded."""

    def add(self, one: Match, begin_s: float, parts: list[CollectivePart], expand: bool) -> None:
        """Add one collective or message that got its slot at `begin_s`."""
        if one.collective == "broadcast" and one.ops[0].peer in one.ranks:
            # Trees start at the first rank.
            first = one.ranks.index(one.ops[0].peer)
            parts = parts[first:] + parts[:first]
            ranks = one.ranks[first:] + one.ranks[:first]
        else:
            ranks = one.ranks
        hosts = [self.draft.sketch.hosts[rank] for rank in ranks]
        seconds = max(one.end_s - begin_s, 0.0)
        if not (expand and self._expanded(one, ranks, hosts, parts, seconds)):
            self._whole(one, hosts, parts, begin_s)

    def _whole(self, one: Match, hosts: list[int], parts: list[CollectivePart], begin_s: float) -> None:
        found = self._flows(one, hosts)
        after = {number for part in parts for number in (part.enqueue, *part.encodes)}
        done = 0.0
        for share, over in _shares(one, parts, begin_s):
            node = SketchNode(
                parts[0].op.name,
                "communication",
                duration_s=max(one.end_s - begin_s, 0.0) * (share - done),
                size_bytes=float(one.size_bytes) * (share - done),
                flows=[(a, b, size * (share - done)) for a, b, size in found.flows],
                rounds=found.rounds if not done else 0,
                weight=self.weights.get(id(one), 1.0),
                collective=one.collective,
                priority=max(one.seq, 0),
                after=after,
            )
            if one.collective != "send":
                node.resource = f"group {one.group}"
                self.draft.sketch.slots.setdefault(node.resource, one.slots)
            transfer = self.draft.add(node, [] if done else [parts[0].op.name])
            for part in over:
                before = after if part.is_buffered else {transfer}
                self.draft.sketch.nodes[part.done].after |= before
            after, done = {transfer}, share

    def _flows(self, one: Match, hosts: list[int]) -> Flows:
        from wirewise.collective.named import Flows, collective_flows

        if (splits := _splits(one)) is not None:
            return Flows(_split_flows(hosts, splits), len(hosts) - 1)
        return collective_flows(
            one.collective, hosts, one.size_bytes, self._algorithm(one), servers=self.servers
        )

    def _expanded(
        self, one: Match, ranks: Sequence[int], hosts: list[int], parts: list[CollectivePart], seconds: float
    ) -> bool:
        """Add single transfers; False where there are none."""
        from wirewise.collective.named import collective_hops

        found = collective_hops(
            one.collective,
            hosts,
            one.size_bytes,
            self._algorithm(one),
            servers=self.servers,
            splits=_splits(one),
        )
        if not found:
            return False
        starts = [self._start(one, rank, part) for rank, part in zip(ranks, parts, strict=True)]
        each = seconds / (max(hop.step for hop in found) + 1)
        numbers: list[int] = []
        last: list[dict[int, None]] = [{} for _ in ranks]
        for hop in found:
            after = {numbers[i] for i in hop.after}
            seen = {place for i in hop.after for place in (found[i].source, found[i].target)}
            after |= {starts[place] for place in (hop.source, hop.target) if place not in seen}
            name = f"{parts[0].op.name} {ranks[hop.source]}>{ranks[hop.target]} round {hop.step}"
            node = SketchNode(
                name,
                "communication",
                duration_s=each,
                size_bytes=hop.size_bytes,
                flows=[(hosts[hop.source], hosts[hop.target], hop.size_bytes)],
                rounds=1,
                collective=one.collective,
                priority=max(one.seq, 0),
                after=after,
            )
            number = self.draft.add(node, [parts[0].op.name])
            for place in (hop.source, hop.target):
                # What came before in the same chain need not be waited for once more.
                for i in hop.after:
                    last[place].pop(numbers[i], None)
                last[place][number] = None
            numbers.append(number)
        for place, (rank, part) in enumerate(zip(ranks, parts, strict=True)):
            self.draft.sketch.nodes[part.done].after |= set(last[place]) or {starts[place]}
            self.done[rank, one.group].append(part.done)
        return True

    def _algorithm(self, one: Match) -> str:
        recorded = one.ops[0].algorithm
        return self.algorithm or (recorded if recorded in _algorithms() else "ring")

    def _start(self, one: Match, rank: int, part: CollectivePart) -> int:
        """An op at which the rank has a slot for the collective."""
        after = {part.enqueue, *part.encodes}
        before = self.done[rank, one.group]
        if one.collective != "send" and len(before) >= one.slots:
            after.add(before[-one.slots])
        return self.draft.add(SketchNode(f"start {part.op.name}", "other", rank=rank, after=after))


def _algorithms() -> tuple[str, ...]:
    # The programs take as long to import as all that reads traces.
    from wirewise.collective.named import ALGORITHMS

    return ALGORITHMS


def _shares(
    one: Match, parts: list[CollectivePart], begin_s: float
) -> list[tuple[float, list[CollectivePart]]]:
    """Shares of the transfer after which some ranks are done, the last one being 1, and these ranks.

    All ranks of most collectives are done together; what differs then is when they notice.
    """
    seconds = one.end_s - begin_s
    if one.collective not in _RANKS_END_APART or seconds < _LEAST_APART_S:
        return [(1.0, parts)]
    found: dict[float, list[CollectivePart]] = defaultdict(list)
    for part in parts:
        share = (part.op.end_s - begin_s) / seconds
        found[min(max(round(share / _GRAIN) * _GRAIN, _GRAIN), 1.0)].append(part)
    return sorted({1.0: [], **found}.items())


def _splits(one: Match) -> list[list[float]] | None:
    """Bytes from each rank to each of an all_to_all; None if not known."""
    n = len(one.ranks)
    if one.collective != "all_to_all" or any(len(op.split_bytes) != n for op in one.ops):
        return None
    return [[float(size) for size in op.split_bytes] for op in one.ops]


def _split_flows(hosts: Sequence[int], splits: list[list[float]]) -> list[tuple[int, int, float]]:
    total: dict[tuple[int, int], float] = defaultdict(float)
    for i, row in enumerate(splits):
        for j, size in enumerate(row):
            if i != j and size > 0:
                total[hosts[i], hosts[j]] += size
    return [(a, b, size) for (a, b), size in total.items()]
