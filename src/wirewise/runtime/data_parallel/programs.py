"""All-reduces carried out by messages between two ranks each: every hop can be seen, as no library's can."""

from __future__ import annotations

import itertools
import time
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from wirewise.collective import Message, Program, build
from wirewise.errors import InputError
from wirewise.runtime.collective.memory import Blocks, ChunkLayout, layout
from wirewise.runtime.transport import Transport

__all__ = ["AllReduce", "Observer"]


class Observer(Protocol):
    """Is told of what a rank did."""

    def __call__(
        self, kind: str, source: int, target: int, size_bytes: int, start_s: float, end_s: float, /
    ) -> None:
        """One act.

        Args:
            kind: "send" or "recv" of a hop; "encode", "all_gather" or "decode" of a compressed exchange.
            source: Rank that sends.
            target: Rank that receives; of what a rank does alone, the rank itself.
            size_bytes: Bytes of the message, or of what is encoded or decoded.
            start_s: `time.perf_counter` when it was asked for.
            end_s: `time.perf_counter` when it was done.
        """


class _Piece(NamedTuple):
    """Elements of a message that lie next to each other."""

    begin: int
    end: int
    adds: bool


class _Move(NamedTuple):
    """A message and what it carries."""

    message: Message
    pieces: list[_Piece]

    @property
    def numel(self) -> int:
        return sum(piece.end - piece.begin for piece in self.pieces)


class AllReduce:
    """Sums a flat tensor over all ranks in place, by the messages of a program.

    All ranks get the same sum bit by bit, since each element is added up in one place and in a fixed order, if
    the program adds up each chunk in one place. A message of a rank is sent once those of the step before have
    come. All-reduces of one transport run one after the other and in the same order on all ranks;
    `Reducer(collective=all_reduce)` sees to that.

    Args:
        transport: Transport between the ranks.
        program: An all-reduce of all these ranks, such as `collective.named_program` makes; none: a ring.
        observer: Is told of every message that this rank sends or gets.

    Raises:
        InputError: A program of another collective, or of other ranks.
    """

    def __init__(
        self, transport: Transport, program: Program | None = None, *, observer: Observer | None = None
    ) -> None:
        self.transport, self.observer = transport, observer
        self.program = program or build("all_reduce", "ring", transport.world_size)
        collective, ranks = self.program.collective, self.program.group
        if collective != "all_reduce" or ranks != tuple(range(transport.world_size)):
            raise InputError(
                f"program {self.program.name!r} is an {collective} of {len(ranks)} ranks; expected an all_reduce, one "
                f"for each of {transport.world_size} ranks"
            )
        own = [m for m in self.program.messages() if transport.rank in (m.source, m.target)]
        self._steps = [list(found) for _, found in itertools.groupby(own, key=lambda message: message.step)]

    def __call__(self, flat: Tensor) -> None:
        """Sum `flat`, 1-D and contiguous, over the ranks.

        Raises:
            InputError: Another shape, or not contiguous.
            PeerError: A peer is gone.
        """
        if flat.dim() != 1 or not flat.is_contiguous():
            raise InputError(f"got shape {tuple(flat.shape)}; expected one dimension, contiguous")
        places = layout(self.program, Blocks(flat.dtype, {0: flat.numel()}, {0: flat}))
        # A message comes before the next call begins on its ranks, so the steps of each call can have the same tags.
        for segment in range(places.segments):
            for messages in self._steps:
                moves = [_Move(message, _pieces(message, places, segment)) for message in messages]
                self._carry_out(flat, moves, segment * self.program.steps + messages[0].step)

    def _carry_out(self, flat: Tensor, moves: list[_Move], tag: int) -> None:
        rank = self.transport.rank
        out = [m for m in moves if m.message.source == rank]
        into = [m for m in moves if m.message.target == rank]
        # All transfers of a step read before any writes.
        read = {t.chunk for move in out for t in move.message.transfers}
        buffers = {m.message.source: _buffer(flat, m, read) for m in into}
        name = f"step {tag} of the {self.program.name} all-reduce"
        pending = self.transport.open(name, tag, buffers)
        sent_s = time.perf_counter()
        for move in out:
            parts = [flat[piece.begin : piece.end] for piece in move.pieces]
            pending.send(move.message.target, parts[0] if len(parts) == 1 else torch.cat(parts))
        pending.launch()
        for _ in pending.arrivals():
            pass
        for move in into:
            _take(flat, move, buffers[move.message.source])
        pending.wait_sends()
        for move in into:
            end_s = pending.opened_s + pending.arrival_s.get(move.message.source, 0.0)
            self._tell("recv", flat, move, pending.opened_s, end_s)
        for move in out:
            end_s = pending.sent_s.get(move.message.target, time.perf_counter())
            self._tell("send", flat, move, sent_s, end_s)

    def _tell(self, kind: str, flat: Tensor, move: _Move, start_s: float, end_s: float) -> None:
        if self.observer is not None and move.numel:
            source, target = move.message.source, move.message.target
            self.observer(kind, source, target, move.numel * flat.itemsize, start_s, end_s)


def _pieces(message: Message, places: ChunkLayout, segment: int) -> list[_Piece]:
    found: list[_Piece] = []
    for t in message.transfers:
        begin, end = places.bounds[t.chunk][segment : segment + 2]
        if found and found[-1].end == begin and found[-1].adds == t.reduces:
            begin = found.pop().begin
        found.append(_Piece(begin, end, t.reduces))
    return found


def _buffer(flat: Tensor, move: _Move, read: set[int]) -> Tensor:
    """Where a message arrives: in its place, unless it is added there or what lies there is still sent."""
    if (
        len(move.pieces) == 1
        and not move.pieces[0].adds
        and not read & {t.chunk for t in move.message.transfers}
    ):
        return flat[move.pieces[0].begin : move.pieces[0].end]
    return flat.new_empty(move.numel)


def _take(flat: Tensor, move: _Move, buffer: Tensor) -> None:
    """Put what came where it belongs, or add it."""
    for piece, value in zip(move.pieces, buffer.split([p.end - p.begin for p in move.pieces]), strict=True):
        own = flat[piece.begin : piece.end]
        if piece.adds:
            own.add_(value)
        elif own.data_ptr() != value.data_ptr():
            own.copy_(value)
