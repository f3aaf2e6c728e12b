"""Activity of a thread as disjoint pieces of time."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from wirewise.trace.records import Op

__all__ = ["OpPiece", "own_work", "pieces"]


class OpPiece(NamedTuple):
    """Part of an op in which no nested op runs."""

    op: Op
    start_s: float
    end_s: float
    last: bool
    """Whether this is the op's last piece."""


def pieces(ops: Sequence[Op], cuts: Sequence[float] = ()) -> list[OpPiece]:
    """Split the ops of one thread at nested ops and at the given times.

    Args:
        ops: Ops of one thread. One that begins inside another and outlasts it ends with it.
        cuts: Times in order; waits are not cut.

    Returns:
        Pieces in order; every op has at least one, which may be empty.
    """
    found: list[OpPiece] = []
    stack: list[tuple[Op, float]] = []
    begun: list[float] = []

    def leave(until: float) -> None:
        """End the ops that are over."""
        while stack and stack[-1][1] <= until:
            op, end = stack.pop()
            found.append(OpPiece(op, begun.pop(), end, True))
            if begun:
                begun[-1] = max(begun[-1], end)

    for op in sorted(ops, key=lambda op: (op.start_s, -op.end_s)):
        leave(op.start_s)
        if stack and op.start_s > begun[-1]:
            found.append(OpPiece(stack[-1][0], begun[-1], op.start_s, False))
        end = min(op.end_s, stack[-1][1]) if stack else op.end_s
        stack.append((op, end))
        begun.append(op.start_s)
    leave(float("inf"))
    cut = [part for piece in found for part in _cut(piece, cuts)]
    return sorted(cut, key=lambda piece: (piece.start_s, piece.end_s))


def own_work(ops: Iterable[Op]) -> Iterator[tuple[int, OpPiece]]:
    """Local work of a rank as (step, piece), thread by thread, without communication and waits.

    Args:
        ops: Ops of one rank, of any steps.
    """
    threads: dict[tuple[int, str], list[Op]] = {}
    for op in ops:
        if op.step >= 0 and op.kind not in ("communication", "step"):
            threads.setdefault((op.step, op.thread), []).append(op)
    for (step, _), own in threads.items():
        for piece in pieces(own):
            if piece.op.kind != "wait":
                yield step, piece


def _cut(piece: OpPiece, cuts: Sequence[float]) -> list[OpPiece]:
    if piece.op.kind == "wait":
        return [piece]
    first, last = bisect.bisect_right(cuts, piece.start_s), bisect.bisect_left(cuts, piece.end_s)
    marks = [piece.start_s, *dict.fromkeys(cuts[first:last]), piece.end_s]
    return [OpPiece(piece.op, a, b, piece.last and b == piece.end_s) for a, b in itertools.pairwise(marks)]
