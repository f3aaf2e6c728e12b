"""Activity of one rank in a step as chains of ops, one per thread."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from wirewise.trace.match import Match
from wirewise.trace.records import Op
from wirewise.trace.segments import OpPiece, pieces
from wirewise.trace.sketch import GraphSketch, SketchNode

__all__ = ["CollectivePart", "GraphDraft", "Key", "add_rank"]

Key = tuple[str, int]
"""Group and number of a collective."""


@dataclass
class CollectivePart:
    """One rank's part of a collective in the graph, by op index."""

    match: Match
    op: Op
    enqueue: int = -1
    """Op that launches it."""
    done: int = -1
    """Op after which the rank has the result."""
    begun: int = -1
    """Op in which a thread of the rank starts to execute it; -1 if a library executes it."""
    ended: int = -1
    """Op with which the thread completes it."""
    encodes: list[int] = field(default_factory=list)
    """Ops of other threads that precede it."""
    decodes: list[tuple[int, float]] = field(default_factory=list)
    """Ops of other threads on the result, each with its end."""

    @property
    def is_buffered(self) -> bool:
        """Whether it is a message buffered by the network, whose sender finished long before it arrived."""
        # Clocks may differ by a little.
        middle = (self.match.start_s + self.match.end_s) / 2
        return self.op.collective == "send" and self.op.end_s < middle

    def finish(self) -> tuple[set[int], float]:
        """Ops to wait for, and the end of that wait, in seconds."""
        if not self.decodes:
            return {self.done}, self.match.start_s if self.is_buffered else self.op.end_s
        return {number for number, _ in self.decodes}, max(end for _, end in self.decodes)


class GraphDraft:
    """Graph under construction.

    Args:
        hosts: Host of each rank.
        step: Step of all ops.
    """

    def __init__(self, hosts: Sequence[int], step: int) -> None:
        self.sketch, self.step = GraphSketch(hosts), step
        self.members: dict[int, list[str]] = {}
        """Traced ops that each op stands for."""

    def add(self, node: SketchNode, members: Iterable[str] = ()) -> int:
        """Add an op, and return its index."""
        node.step = self.step
        number = self.sketch.add(node)
        self.members[number] = list(members)
        return number


class _Chain:
    """Ops of one thread, each after the one before."""

    def __init__(
        self, draft: GraphDraft, rank: int, thread: str, at: float, after: Iterable[int] = ()
    ) -> None:
        self.draft, self.rank, self.resource = draft, rank, f"rank {rank} {thread}"
        self.made: list[int] = []
        self.end_s = at
        name = "begin" if thread == "main" else f"begin {thread}"
        self._append(SketchNode(name, "other", after=set(after)), [])

    def mark(self, name: str, at: float) -> int:
        """An op that takes no time."""
        self._idle(at)
        return self._append(SketchNode(name, "other"), [])

    def piece(self, piece: OpPiece, parts: Sequence[CollectivePart], not_before_s: float = -math.inf) -> int:
        """A piece of an op that needs the results of `parts`, or something else that was there at a time."""
        op, after, until = piece.op, set[int](), not_before_s
        for part in parts:
            numbers, end = part.finish()
            after |= numbers
            until = max(until, end)
        if op.kind == "wait":
            # Only what is left once the result is there is its own time.
            self._idle(piece.start_s)
            seconds = piece.end_s - max(piece.start_s, until)
        else:
            # The time before was not idle as long as the result was not there.
            self._idle(max(piece.start_s - max(until - self.end_s, 0.0), self.end_s))
            seconds = piece.end_s - piece.start_s
        self.end_s = max(self.end_s, piece.end_s)
        node = SketchNode(op.name, op.kind, duration_s=max(seconds, 0.0), after=after)
        node.gradient_bytes = float(op.gradient_bytes if piece.last else 0)
        return self._append(node, [op.name])

    def _idle(self, until: float) -> None:
        self.draft.sketch.nodes[self.made[-1]].gap_s = max(until - self.end_s, 0.0)
        self.end_s = max(self.end_s, until)

    def _append(self, node: SketchNode, members: list[str]) -> int:
        node.rank, node.resource, node.priority = self.rank, self.resource, len(self.made)
        if self.made:
            node.after = node.after | {self.made[-1]}
        self.made.append(self.draft.add(node, members))
        return self.made[-1]


def add_rank(
    draft: GraphDraft, rank: int, ops: Sequence[Op], parts: dict[Key, CollectivePart], waited: set[Key]
) -> None:
    """Add the chains of a rank, with the ops at which it launches and receives each collective.

    Args:
        draft: Graph under construction.
        rank: Index of the rank.
        ops: All its ops of the step.
        parts: Communications of the rank; `enqueue`, `done`, `encodes` and `decodes` are set.
        waited: Collectives with a known wait, in this step or another.
    """
    marks = [op for op in ops if op.kind == "step"] or list(ops)
    begin, end = min(op.start_s for op in marks), max(op.end_s for op in marks)
    threads: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.kind not in ("step", "communication"):
            threads[op.thread].append(op)
    main = threads.pop("main", [])
    for part in parts.values():
        part.done = draft.add(SketchNode(part.op.name, "communication", rank=rank), [part.op.name])
    chain, tails = _Chain(draft, rank, "main", begin), []
    for name, ops_of_thread in threads.items():
        beside = _Chain(draft, rank, name, begin, [chain.made[0]])
        handed_over = {key: part for key, part in parts.items() if part.op.caller == name}
        _fill(beside, ops_of_thread, parts, handed_over, waited, (begin, end))
        tails.append((beside.made[-1], beside.end_s))
    handed_over = {key: part for key, part in parts.items() if part.op.caller not in threads}
    _fill(chain, main, parts, handed_over, waited, (begin, end))
    over = chain.mark("end", max(end, chain.end_s))
    # What goes on beyond the step does not hold up its end.
    draft.sketch.nodes[over].after |= {tail for tail, until in tails if until <= end}
    for part in parts.values():
        if part.begun >= 0:
            draft.sketch.nodes[part.begun].after |= {part.enqueue} - {part.begun}
            draft.sketch.nodes[part.done].after.add(part.ended)
    _share_gradients([draft.sketch.nodes[op] for op in chain.made], chain.made, list(parts.values()))


def _needed(op: Op) -> Key:
    return (op.group, op.seq) if op.kind in ("wait", "decode") else ("", -1)


def _fill(
    chain: _Chain,
    ops: list[Op],
    parts: dict[Key, CollectivePart],
    handed_over: dict[Key, CollectivePart],
    waited: set[Key],
    span: tuple[float, float],
) -> None:
    """Add what one thread does, hands over and waits for."""
    begin, end = span
    needs = {id(op): [parts[key]] for op in ops if (key := _needed(op)) in parts}
    ops = ops + _inferred_waits(ops, handed_over, waited, needs, begin, end)
    waits = [op for op in ops if op.kind == "wait"]
    enqueues = []
    for part in handed_over.values():
        at = min(max(part.op.enqueued_s if part.op.enqueued_s != -1.0 else part.op.start_s, begin), end)
        # Another thread handed it over while this one was blocked.
        at = min([at, *(wait.start_s for wait in waits if wait.start_s < at < wait.end_s)])
        enqueues.append((at, part))
    enqueues.sort(key=lambda item: (item[0], item[1].op.start_s, item[1].op.seq))
    count = 0
    for piece in pieces(ops, [at for at, _ in enqueues]):
        while count < len(enqueues) and enqueues[count][0] <= piece.start_s:
            _hand_over(chain, *enqueues[count])
            count += 1
        _add_piece(chain, piece, parts.get((piece.op.group, piece.op.seq)), needs)
    for at, part in enqueues[count:]:
        _hand_over(chain, at, part)


def _add_piece(
    chain: _Chain, piece: OpPiece, part: CollectivePart | None, needs: dict[int, list[CollectivePart]]
) -> None:
    """Add a piece; `part` is the communication that its op names."""
    op = piece.op
    begins = part is not None and op.kind == "other" and part.begun < 0
    # The pieces of a wait before its last are broken off by other work, not by the result.
    needed = needs.get(id(op), []) if piece.last or op.kind != "wait" else []
    number = chain.piece(piece, needed, part.op.start_s if part and begins else -math.inf)
    if part is None:
        return
    if begins:
        part.begun = number
    if piece.last and op.kind == "other":
        part.ended = number
    if piece.last and op.kind == "encode":
        part.encodes.append(number)
    if piece.last and op.kind == "decode":
        part.decodes.append((number, piece.end_s))


def _hand_over(chain: _Chain, at: float, part: CollectivePart) -> None:
    part.enqueue = chain.mark(f"enqueue {part.op.name}", at)


def _inferred_waits(
    main: list[Op],
    parts: dict[Key, CollectivePart],
    waited: set[Key],
    needs: dict[int, list[CollectivePart]],
    begin: float,
    end: float,
) -> list[Op]:
    """Waits for communications for which none was recorded; `needs` tells what each waits for.

    A rank that did nothing between handing over and having the result waited for it at once. Otherwise the
    optimizer did, or else the end of the step.
    """
    ordered = sorted(main, key=lambda op: op.start_s)
    made: dict[float, Op] = {}
    for key, part in parts.items():
        if key in waited:
            continue
        op, until = part.op, part.op.end_s
        recorded = (w for w in ordered if w.kind == "wait" and w.seq < 0 and id(w) not in needs)
        own = next((w for w in recorded if w.name == op.name and w.end_s >= until), None)
        if own is not None:
            needs[id(own)] = [part]
            continue
        blocked = not any(op.start_s < other.start_s < until for other in ordered)
        later = [other for other in ordered if other.start_s >= until]
        places = [other.start_s for other in later if blocked or other.kind == "optimizer"]
        target = places[0] if places else max(end, until)
        if target not in made:
            known = [other.end_s for other in ordered if other.end_s <= target]
            known += [other.start_s for other in ordered if other.start_s < target]
            start = max(known, default=begin)
            made[target] = Op(name=op.name, kind="wait", start_s=start, end_s=target, step=op.step)
        needs.setdefault(id(made[target]), []).append(part)
    return list(made.values())


def _share_gradients(nodes: list[SketchNode], numbers: list[int], parts: list[CollectivePart]) -> None:
    """Where no backward op says which bytes it completes, share those of each bucket.

    They go to the ops whose parameters the bucket names, in proportion to their number, else in equal parts
    to the ops since the bucket before.
    """
    backward = [
        (number, node) for number, node in zip(numbers, nodes, strict=True) if node.kind == "backward"
    ]
    if not backward or any(node.gradient_bytes for _, node in backward):
        return
    before = -1
    for part in sorted(parts, key=lambda part: part.enqueue):
        if part.op.collective != "all_reduce":
            continue
        since = [node for number, node in backward if before < number < part.enqueue]
        before = part.enqueue
        named = {
            id(node): sum(name.startswith(f"{node.name}.") for name in part.op.parameters) for node in since
        }
        total = sum(named.values())
        for node in since:
            share = named[id(node)] / total if total else 1.0 / len(since)
            node.gradient_bytes += part.op.size_bytes * share
