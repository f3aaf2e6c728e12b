"""Programs executed by messages of a torch process group: also between GPUs, by NCCL, with each hop observable.

All messages of a step are in flight together, and the next step starts when they have completed. This executes
programs where sockets cannot reach the tensors; on CPUs `Group` is faster.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.collective import Program
from wirewise.collective.program import Message
from wirewise.errors import ProgramError
from wirewise.runtime.collective.memory import REDUCTIONS, Blocks, ChunkLayout, layout
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["Observer", "Steps", "run_over_torch"]


class Observer(Protocol):
    """Callback interface for a rank's activity."""

    def __call__(
        self, kind: str, source: int, target: int, size_bytes: int, start_s: float, end_s: float, /
    ) -> None:
        """Take note of one act.

        Args:
            kind: "send" or "recv" of a hop; "encode", "all_gather" or "decode" of a compressed exchange.
            source: Rank that sends.
            target: Rank that receives; of what a rank does alone, the rank itself.
            size_bytes: Bytes of the message, or of what is encoded or decoded.
            start_s: `time.perf_counter` when it was asked for.
            end_s: `time.perf_counter` when it was done.
        """


def run_over_torch(
    program: Program, blocks: Blocks, *, op: str = "sum", group: dist.ProcessGroup | None = None
) -> None:
    """Execute a program, and wait for its end.

    Args:
        program: Program for the ranks of the group.
        blocks: Flat tensor of each block that this rank has, on any device; relayed blocks are allocated.
        op: One of `REDUCTIONS`, except "avg".
        group: A gloo or NCCL process group. Defaults to the default one.

    Raises:
        ProgramError: The program was made for another number of ranks.
        PeerError: A peer is gone.
    """
    transport = transport_of(group)
    if program.ranks != transport.world_size:
        raise ProgramError(
            f"program {program.name!r} is for {program.ranks} ranks and the group has {transport.world_size}"
        )
    try:
        Steps(program, transport).execute(blocks, op)
    finally:
        transport.close()


class Steps:
    """Steps of one rank in a program over all ranks of a transport.

    Args:
        program: Program of these ranks.
        transport: Messages between the ranks.
        observer: Called for every message that this rank sends or receives.
    """

    def __init__(self, program: Program, transport: Transport, observer: Observer | None = None) -> None:
        self.program, self.transport, self.observer = program, transport, observer
        own = [m for m in program.messages() if transport.rank in (m.source, m.target)]
        self._steps = [list(found) for _, found in itertools.groupby(own, key=lambda m: m.step)]

    def execute(self, blocks: Blocks, op: str = "sum") -> None:
        """Execute all steps; arguments and errors as in `run_over_torch`."""
        program, tensors, places = self.program, _tensors(blocks), layout(self.program, blocks)
        # A message comes before the next call begins on its ranks, so the steps of each call can have the same tags.
        for segment in range(places.segments):
            for messages in self._steps:
                moves = [_Move(m, _pieces(program, m, tensors, places, segment)) for m in messages]
                self._take(moves, segment * program.steps + messages[0].step, REDUCTIONS[op])

    def _take(self, moves: list[_Move], tag: int, reduce: Callable[[Tensor, Tensor], object]) -> None:
        rank, program = self.transport.rank, self.program
        out = [m for m in moves if m.message.source == rank]
        into = [m for m in moves if m.message.target == rank]
        # All transfers of a step read before any writes.
        read = {t.chunk for move in out for t in move.message.transfers}
        buffers = {m.message.source: _buffer(m, read) for m in into}
        what = f"step {tag} of the {program.name} {program.collective.replace('_', '-')}"
        pending = self.transport.open(what, tag, buffers)
        sent_s = time.perf_counter()
        for move in out:
            parts = [piece.values for piece in move.pieces]
            pending.send(move.message.target, parts[0] if len(parts) == 1 else torch.cat(parts))
        pending.launch()
        for _ in pending.arrivals():
            pass
        for move in into:
            for piece, value in zip(move.pieces, buffers[move.message.source].split(move.sizes), strict=True):
                if piece.adds:
                    reduce(piece.values, value)
                elif piece.values.data_ptr() != value.data_ptr():
                    piece.values.copy_(value)
        pending.wait_sends()
        for move in into:
            end_s = pending.opened_s + pending.arrival_s.get(move.message.source, 0.0)
            self._tell("recv", move, pending.opened_s, end_s)
        for move in out:
            end_s = pending.sent_s.get(move.message.target, time.perf_counter())
            self._tell("send", move, sent_s, end_s)

    def _tell(self, kind: str, move: _Move, start_s: float, end_s: float) -> None:
        size_bytes = sum(move.sizes) * move.pieces[0].values.itemsize
        if self.observer is not None and size_bytes:
            self.observer(kind, move.message.source, move.message.target, size_bytes, start_s, end_s)


class _Piece(NamedTuple):
    """Elements of a message that lie next to each other."""

    values: Tensor
    adds: bool


class _Move(NamedTuple):
    """A message and what it carries."""

    message: Message
    pieces: list[_Piece]

    @property
    def sizes(self) -> list[int]:
        return [piece.values.numel() for piece in self.pieces]


def _tensors(blocks: Blocks) -> dict[int, Tensor]:
    """Memory of each block; blocks that must stay are copied."""
    device = next(iter(blocks.tensors.values())).device if blocks.tensors else torch.device("cpu")
    made = {
        block: torch.empty(count, dtype=blocks.dtype, device=device)
        for block, count in blocks.elements.items()
        if block not in blocks.tensors
    }
    return blocks.tensors | made | {block: blocks.tensors[block].clone() for block in blocks.read_only}


def _pieces(
    program: Program, message: Message, tensors: dict[int, Tensor], places: ChunkLayout, segment: int
) -> list[_Piece]:
    found: list[tuple[int, int, int, bool]] = []
    for t in message.transfers:
        block, (begin, end) = program.block_of(t.chunk), places.bounds[t.chunk][segment : segment + 2]
        if found and (found[-1][0], *found[-1][2:]) == (block, begin, t.reduces):
            begin = found.pop()[1]
        found.append((block, begin, end, t.reduces))
    return [_Piece(tensors[block][begin:end], adds) for block, begin, end, adds in found]


def _buffer(move: _Move, read: set[int]) -> Tensor:
    """Where a message arrives: in its place, unless it is added there or what lies there is still sent."""
    first = move.pieces[0]
    if len(move.pieces) == 1 and not first.adds and not read & {t.chunk for t in move.message.transfers}:
        return first.values
    return first.values.new_empty(sum(move.sizes))
