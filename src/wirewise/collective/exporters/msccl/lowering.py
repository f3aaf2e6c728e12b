"""Lower a program to an MSCCL algorithm: buffer positions, channels, thread blocks and waits.

Each message becomes a send step at its source and a receive step at its target, on the connection (source, target,
channel). Sends to a peer are one thread block and receives from a peer are another; the two share a thread block if
no step of the program needs both. Within a thread block, steps are in program order, so that waits form no cycle.
Instances are copies of the program on separate channels, each with an equal part of every chunk. Segments are left
out: the runtime itself slices buffers and pipelines them. Lowering as in TACCL (Shah et al., NSDI 2023, section 6)
and MSCCLang (Cowan et al., ASPLOS 2023).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from wirewise.collective.check import check
from wirewise.collective.exporters.msccl.dependences import StepDraft, with_waits
from wirewise.collective.exporters.msccl.fusion import fuse_steps
from wirewise.collective.exporters.msccl.interpreter import deadlocked_steps
from wirewise.collective.exporters.msccl.layout import Layout
from wirewise.collective.exporters.msccl.model import Algorithm, Gpu, Place, Protocol, Step, limits, sizes
from wirewise.collective.program import Message, Program
from wirewise.errors import InputError

__all__ = ["lower", "more_channels"]


class _Move(NamedTuple):
    """Chunks that follow each other at both ends, in one message."""

    source: int
    target: int
    channel: int
    step: int
    sent_from: Place
    added_to: Place | None
    """Place at the target that they are added to; None if they are copied."""
    goes_to: Place
    chunks: int


def lower(
    program: Program,
    *,
    protocol: Protocol = "Simple",
    in_place: bool = False,
    instances: int = 1,
    channels: int | None = None,
    fuse: bool = False,
    most_steps: int = 256,
    min_bytes: int = 0,
    max_bytes: int = 0,
) -> Algorithm:
    """Lower a program to an MSCCL algorithm.

    Args:
        program: Program in which all ranks take part.
        protocol: Protocol of the runtime.
        in_place: Whether it is for calls whose input and output are the same memory; False if for the others.
        instances: Copies that each move an equal part of every chunk, on separate channels.
        channels: Connections between two ranks in each copy, used round-robin. Defaults to the fewest that keep
            thread blocks within `most_steps`, or the most there can be.
        fuse: Whether to fuse receive and send into one step where possible.
        most_steps: Maximum number of steps per thread block of the runtime.
        min_bytes: Smallest size of the larger buffer for which the runtime uses the algorithm, in bytes.
        max_bytes: Size from which the runtime no longer uses it, in bytes; 0 for no limit.

    Raises:
        ProgramError: The program is incorrect, or MSCCL cannot express it; the message says why.
        InputError: No instances or no channels.
    """
    if instances < 1 or (channels is not None and channels < 1):
        raise InputError(f"got {instances} instances and {channels} channels; expected at least 1 of each")
    check(program)
    layout = Layout(program, in_place)
    form = Algorithm(
        name=program.name[: limits("microsoft").name],
        collective=program.collective,
        chunks_per_loop=layout.chunks_per_loop * instances,
        protocol=protocol,
        in_place=in_place,
        out_of_place=not in_place,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        channels=1,
        gpus=(),
    )
    count: int | None = channels or 1
    while count is not None:
        found = _lowered(form, layout, instances, count, fuse)
        longest = max((len(b.steps) for gpu in found.gpus for b in gpu.blocks), default=0)
        count = None if channels is not None else more_channels(count, instances, longest, most_steps)
    return found


def more_channels(now: int, instances: int, longest: int, maximum: int) -> int | None:
    """Number of channels per copy to try next. None if thread blocks are short enough, or no more channels exist.

    Args:
        now: Number of channels tried last.
        instances: Number of copies.
        longest: Length of the longest thread block.
        maximum: Maximum length allowed.
    """
    limit = max(1, limits("microsoft").channels // instances)
    if longest <= maximum or now >= limit:
        return None
    return min(limit, now * math.ceil(longest / maximum))


def _lowered(form: Algorithm, layout: Layout, instances: int, channels: int, fuse: bool) -> Algorithm:
    def made(largest: int, joined: bool) -> Algorithm:
        moves = list(_moves(layout, instances, channels, largest))
        return msgspec.structs.replace(
            form,
            channels=max((move.channel for move in moves), default=0) + 1,
            gpus=_gpus(layout, moves, instances, joined),
        )

    # Steps that receive and send can wait for each other in a circle, and so can two ranks that exchange long
    # messages in place; separate steps of single chunks cannot.
    longest = limits("microsoft").chunks
    for joined in (True, False):
        if joined <= fuse:
            found = made(longest, joined)
            if not deadlocked_steps(found, fifo=1):
                return found
    return made(1, False)


def _moves(layout: Layout, instances: int, channels: int, largest: int) -> Iterator[_Move]:
    program = layout.program
    held = {
        (rank, chunk): layout.start(rank, chunk)
        for rank in range(program.ranks)
        for chunk in range(program.chunks)
    }
    used: dict[tuple[int, int], int] = defaultdict(int)
    by_step: dict[int, list[Message]] = defaultdict(list)
    for message in program.messages():
        by_step[message.step].append(message)
    for messages in by_step.values():
        read = [[held[m.source, t.chunk] for t in m.transfers] for m in messages]
        for message, places in zip(messages, read, strict=True):
            pair = message.source, message.target
            channel = used[pair] % channels * instances
            used[pair] += 1
            pieces = _pieces(message, places, held, layout, channel)
            for move in _joined(pieces, largest):
                yield from _copies(move, instances)


def _pieces(
    message: Message,
    places: list[Place | None],
    held: dict[tuple[int, int], Place | None],
    layout: Layout,
    channel: int,
) -> Iterator[_Move]:
    for t, sent_from in zip(message.transfers, places, strict=True):
        assert sent_from is not None, "a checked program sends only what it holds"
        cell = t.target, t.chunk
        home = layout.home(*cell)
        added_to = held[cell] if t.reduces else None
        count = layout.units.counts[t.chunk]
        yield _Move(t.source, t.target, channel, t.step, sent_from, added_to, home, count)
        held[cell] = home


def _joined(pieces: Iterator[_Move], largest: int) -> Iterator[_Move]:
    """Pieces that follow each other as one, and what is longer than `largest` cut."""
    last: _Move | None = None
    for piece in pieces:
        if last is not None and _follows(last, piece):
            last = last._replace(chunks=last.chunks + piece.chunks)
            continue
        if last is not None:
            yield from _cut(last, largest)
        last = piece
    if last is not None:
        yield from _cut(last, largest)


def _follows(a: _Move, b: _Move) -> bool:
    ends = [(a.sent_from, b.sent_from), (a.goes_to, b.goes_to)]
    if a.added_to is not None and b.added_to is not None:
        ends.append((a.added_to, b.added_to))
    elif a.added_to is not None or b.added_to is not None:
        return False
    return all(y == x._replace(offset=x.offset + a.chunks) for x, y in ends)


def _cut(move: _Move, largest: int) -> Iterator[_Move]:
    for begin in range(0, move.chunks, largest):
        chunks = min(largest, move.chunks - begin)
        yield _shifted(move, 1, begin)._replace(chunks=chunks) if chunks < move.chunks else move


def _copies(move: _Move, instances: int) -> Iterator[_Move]:
    if instances == 1:
        yield move
        return
    for i in range(instances):
        yield _shifted(move, instances, i * move.chunks)._replace(channel=move.channel + i)


def _gpus(layout: Layout, moves: list[_Move], instances: int, fuse: bool) -> tuple[Gpu, ...]:
    drafts: list[list[StepDraft]] = [
        _copy_steps(layout, rank, instances) for rank in range(layout.program.ranks)
    ]
    for number, m in enumerate(moves):
        sends = Step("s", m.sent_from, None, m.chunks)
        receives = Step("rrc" if m.added_to else "r", m.added_to, m.goes_to, m.chunks)
        drafts[m.source].append(StepDraft((m.step, False, number), m.target, -1, m.channel, sends))
        drafts[m.target].append(StepDraft((m.step, True, number), -1, m.source, m.channel, receives))
    return tuple(_gpu(layout, rank, found, instances, fuse) for rank, found in enumerate(drafts))


def _copy_steps(layout: Layout, rank: int, instances: int) -> list[StepDraft]:
    pieces = []
    for chunk in layout.to_copy(rank):
        source, target = layout.start(rank, chunk), layout.home(rank, chunk)
        assert source is not None, "only what a rank holds is copied"
        move = _Move(rank, rank, 0, -1, source, None, target, layout.units.counts[chunk])
        whole = _shifted(move, instances, 0)
        pieces.append(whole._replace(chunks=move.chunks * instances))
    return [
        StepDraft((-1, False, n), -1, -1, 0, Step("cpy", part.sent_from, part.goes_to, part.chunks))
        for n, part in enumerate(_joined(iter(pieces), limits("microsoft").chunks))
    ]


def _shifted(move: _Move, factor: int, more: int) -> _Move:
    """The move with each offset times `factor`, plus `more`."""

    def moved(place: Place) -> Place:
        return Place(place.buffer, place.offset * factor + more)

    return move._replace(
        sent_from=moved(move.sent_from),
        added_to=moved(move.added_to) if move.added_to else None,
        goes_to=moved(move.goes_to),
    )


def _gpu(layout: Layout, rank: int, drafts: list[StepDraft], instances: int, fuse: bool) -> Gpu:
    blocks = _thread_blocks(drafts, fuse)
    steps = [draft.step for block in blocks for draft in block]
    used = {place.buffer for step in steps for place in (step.source, step.target) if place is not None}
    whole = layout.chunks_per_loop * instances
    inputs, outputs = sizes(layout.program.collective, layout.program.ranks, whole)
    return Gpu(
        inputs if "i" in used else 0,
        outputs if "o" in used else 0,
        layout.scratch[rank] * instances if "s" in used else 0,
        with_waits(blocks),
    )


def _thread_blocks(drafts: list[StepDraft], fuse: bool) -> list[list[StepDraft]]:
    """Steps of a rank by thread block, each in the order of the program; with or without joined steps."""
    blocks, rest = fuse_steps(drafts) if fuse else ([], drafts)
    return sorted(blocks + _shared(rest), key=_peers)


def _shared(drafts: list[StepDraft]) -> list[list[StepDraft]]:
    """Steps by thread block: sends and receives of one channel together where no step needs both."""
    groups: dict[tuple[int, int, int], list[StepDraft]] = defaultdict(list)
    for draft in sorted(drafts, key=lambda d: d.order):
        groups[draft.send, draft.receive, draft.channel].append(draft)
    free = {key: {d.order[0] for d in found} for key, found in groups.items() if key[1] >= 0}
    blocks = []
    for (send, receive, channel), found in groups.items():
        if receive >= 0:
            continue
        steps = {d.order[0] for d in found}
        fits = [
            key
            for key, others in free.items()
            if send >= 0 and key[2] == channel and steps.isdisjoint(others)
        ]
        if fits:
            # The same peer first: then the thread block serves one link.
            mate = min(fits, key=lambda key: (key[1] != send, key))
            del free[mate]
            found = sorted([*found, *groups[mate]], key=lambda d: d.order)
        blocks.append(found)
    blocks.extend(groups[key] for key in free)
    return blocks


def _peers(block: list[StepDraft]) -> tuple[int, int, int]:
    return max(d.send for d in block), max(d.receive for d in block), block[0].channel
