"""Dependences of each step within its rank: values it reads, and readers of the values it overwrites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wirewise.collective.exporters.msccl.model import KINDS, Place, Step, ThreadBlock

__all__ = ["Order", "StepDraft", "accessed_chunks", "with_waits"]

Order = tuple[int, bool, int]
"""Order of the steps of a rank: step of the program, whether it receives, number."""

_At = tuple[int, int]
"""Thread block and place in it, before steps that only wait are put in."""


class StepDraft(NamedTuple):
    """Step before thread blocks are numbered."""

    order: Order
    send: int
    receive: int
    channel: int
    step: Step


class _Cell(NamedTuple):
    """Last users of one chunk of memory."""

    writer: list[_At]
    readers: list[_At]


def accessed_chunks(step: Step) -> Iterator[tuple[Place, bool]]:
    """Chunks that a step accesses, and whether it writes them."""
    kind = KINDS[step.kind]
    for place, used, writes in ((step.source, kind.reads, False), (step.target, kind.writes, True)):
        if used and place is not None:
            for n in range(step.chunks):
                yield Place(place.buffer, place.offset + n), writes


def with_waits(blocks: Sequence[Sequence[StepDraft]]) -> tuple[ThreadBlock, ...]:
    """Add to the thread blocks of one rank the waits that their steps need, and no more.

    A step waits for the last writer of what it reads, and for the readers and the writer of what it overwrites. Waits
    implied by the thread block's own order or by another wait are left out. Of several waits, all but the last go on
    separate `nop` steps.
    """
    waits = _waits(blocks)
    awaited = {other for found in waits.values() for other in found}
    number: dict[_At, int] = {}
    for b, block in enumerate(blocks):
        at = 0
        for place in range(len(block)):
            at += max(0, len(waits[b, place]) - 1)
            number[b, place] = at
            at += 1
    return tuple(
        ThreadBlock(
            max(d.send for d in block),
            max(d.receive for d in block),
            block[0].channel,
            tuple(
                step
                for place, draft in enumerate(block)
                for step in _written(
                    draft.step,
                    [(other[0], number[other]) for other in waits[b, place]],
                    (b, place) in awaited,
                )
            ),
        )
        for b, block in enumerate(blocks)
    )


def _written(step: Step, waits: list[tuple[int, int]], awaited: bool) -> Iterator[Step]:
    for wait in waits[:-1]:
        yield Step("nop", None, None, 0, wait)
    yield step._replace(waits_for=waits[-1] if waits else None, awaited=awaited)


def _waits(blocks: Sequence[Sequence[StepDraft]]) -> dict[_At, list[_At]]:
    order = sorted(
        ((b, place) for b, block in enumerate(blocks) for place in range(len(block))),
        key=lambda at: blocks[at[0]][at[1]].order,
    )
    cells: dict[Place, _Cell] = defaultdict(lambda: _Cell([], []))
    known: dict[_At, dict[int, int]] = {}
    waits: dict[_At, list[_At]] = {}
    for at in order:
        needed = _needed(blocks[at[0]][at[1]].step, cells)
        done = dict(known.get((at[0], at[1] - 1), {}))
        waits[at] = _new(needed, at, done, known)
        known[at] = done | {at[0]: at[1]}
        _use(blocks[at[0]][at[1]].step, cells, at)
    return waits


def _needed(step: Step, cells: dict[Place, _Cell]) -> set[_At]:
    needed: set[_At] = set()
    for place, writes in accessed_chunks(step):
        needed.update(cells[place].writer)
        if writes:
            needed.update(cells[place].readers)
    return needed


def _new(needed: set[_At], at: _At, done: dict[int, int], known: dict[_At, dict[int, int]]) -> list[_At]:
    """Waits that do not follow from others; `done` (by thread block, the last step known to be over) grows."""
    found: list[_At] = []
    # Later ones first: what they waited for themselves need not be waited for again.
    for block, place in sorted(needed, key=lambda other: -other[1]):
        if block != at[0] and done.get(block, -1) < place:
            found.append((block, place))
            for other, step in known[block, place].items():
                done[other] = max(done.get(other, -1), step)
    return found


def _use(step: Step, cells: dict[Place, _Cell], at: _At) -> None:
    for place, writes in accessed_chunks(step):
        if writes:
            cells[place] = _Cell([at], [])
        else:
            cells[place].readers.append(at)
