"""All-reduces carried out by messages between two ranks each: every hop can be seen, as no library's can."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from wirewise.collective import Message, Program, Transfer
from wirewise.collective.builders import build
from wirewise.errors import InputError
from wirewise.runtime.transport import Transport
from wirewise.trace.flows import ALGORITHMS
from wirewise.trace.hops import hops

__all__ = ["AllReduce", "Observer", "program_of", "span"]


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
            size_bytes: Of the message, or of what is encoded or decoded.
            start_s: `time.perf_counter` when it was asked for.
            end_s: The same when it was done.
        """


def program_of(algorithm: str, hosts: Sequence[int], servers: int = 1) -> Program:
    """The program of an all-reduce, with the messages of `trace.hops.hops`, which replays of traces count on.

    Args:
        algorithm: One of `trace.flows.ALGORITHMS`.
        hosts: Host of each rank.
        servers: Of "ps": the first ranks, with a part of the tensor each.

    Raises:
        InputError: An algorithm that is not known, or servers that are no ranks.
    """
    if algorithm not in ALGORITHMS or not 1 <= servers <= len(hosts):
        raise InputError(
            f"got the algorithm {algorithm!r} with {servers} servers; expected one of {', '.join(ALGORITHMS)} and "
            f"1 to {len(hosts)} servers"
        )
    if algorithm == "ring":
        return build("all_reduce", "ring", len(hosts))
    if algorithm == "hierarchical":
        chunks, transfers = _by_leaders(hosts)
    else:
        found = hops("all_reduce", hosts, 1.0, algorithm, servers=servers)
        chunks = servers if algorithm == "ps" else 1
        up = [hop.round == 0 if algorithm == "ps" else hop.target < hop.source for hop in found]
        transfers = [
            # A server sums up the part of its number; a tree has one part.
            Transfer((h.target if adds else h.source) % chunks, h.source, h.target, h.round, adds)
            for h, adds in zip(found, up, strict=True)
        ]
    return Program(
        name=algorithm,
        collective="all_reduce",
        ranks=len(hosts),
        chunks=chunks,
        transfers=tuple(transfers),
    )


def _by_leaders(hosts: Sequence[int]) -> tuple[int, list[Transfer]]:
    """To the first rank of each host, round a ring of these, and back; how many chunks, and the transfers."""
    leaders = {host: list(hosts).index(host) for host in hosts}
    order = sorted(leaders.values())
    ring = build("all_reduce", "ring", len(order))
    pairs = [(rank, leaders[host]) for rank, host in enumerate(hosts) if leaders[host] != rank]
    chunks = range(ring.chunks)
    up = [Transfer(c, rank, leader, 0, True) for rank, leader in pairs for c in chunks]
    between = [
        Transfer(t.chunk, order[t.source], order[t.target], 1 + t.step, t.reduces) for t in ring.transfers
    ]
    down = [Transfer(c, leader, rank, 1 + ring.steps) for rank, leader in pairs for c in chunks]
    return ring.chunks, up + between + down


def span(message: Message, chunks: int, numel: int) -> tuple[int, int]:
    """First element of the chunks that a message carries, and the one behind the last."""
    first, last = message.transfers[0].chunk, message.transfers[-1].chunk
    return numel * first // chunks, numel * (last + 1) // chunks


class _Move(NamedTuple):
    """A message with the part of the tensor that it carries."""

    source: int
    target: int
    adds: bool
    part: Tensor


class AllReduce:
    """Sums a flat tensor over all ranks in place, by the messages of a program.

    All ranks get the same sum bit by bit, since each element is added up in one place and in a fixed order.
    A message of a rank is sent once those of the step before have come. All-reduces of one transport run one
    after the other and in the same order on all ranks; `Reducer(collective=all_reduce)` sees to that.

    Args:
        transport: The ranks.
        algorithm: "ring", "tree", "ps" or "hierarchical".
        hosts: Host of each rank, for "hierarchical"; none: each rank is a host.
        servers: Of "ps".
        observer: Is told of every message that this rank sends or gets.

    Raises:
        InputError: An algorithm that is not known, or hosts or servers that do not fit the ranks.
    """

    def __init__(
        self,
        transport: Transport,
        algorithm: str = "ring",
        *,
        hosts: Sequence[int] | None = None,
        servers: int = 1,
        observer: Observer | None = None,
    ) -> None:
        self.transport, self.observer = transport, observer
        hosts = list(range(transport.world_size)) if hosts is None else list(hosts)
        if len(hosts) != transport.world_size:
            raise InputError(f"got hosts {hosts}; expected one for each of {transport.world_size} ranks")
        self.program = program_of(algorithm, hosts, servers)
        self._steps: list[list[Message]] = [[] for _ in range(self.program.steps)]
        for message in self.program.messages():
            if transport.rank in (message.source, message.target):
                self._steps[message.step].append(message)

    def __call__(self, flat: Tensor) -> None:
        """Sum `flat`, 1-D and contiguous, over the ranks.

        Raises:
            InputError: Another shape, or not contiguous.
            PeerError: A peer is gone.
        """
        if flat.dim() != 1 or not flat.is_contiguous():
            raise InputError(f"got shape {tuple(flat.shape)}; expected one dimension, contiguous")
        # A message comes before the next call begins on its ranks, so the steps of each call can have the same tags.
        for step, own in enumerate(self._steps):
            self._carry_out([self._move(flat, message) for message in own], step)

    def _move(self, flat: Tensor, message: Message) -> _Move:
        begin, end = span(message, self.program.chunks, flat.numel())
        return _Move(message.source, message.target, message.transfers[0].reduces, flat[begin:end])

    def _carry_out(self, moves: list[_Move], step: int) -> None:
        rank = self.transport.rank
        out = [m for m in moves if m.source == rank]
        into = [m for m in moves if m.target == rank]
        buffers = {m.source: torch.empty_like(m.part) if m.adds else m.part for m in into}
        pending = self.transport.open(f"step {step} of the {self.program.name} all-reduce", step, buffers)
        sent_s = time.perf_counter()
        for move in out:
            pending.send(move.target, move.part)
        pending.launch()
        for _ in pending.arrivals():
            pass
        for move in into:
            if move.adds:
                move.part.add_(buffers[move.source])
        pending.wait_sends()
        for move in into:
            end_s = pending.opened_s + pending.arrival_s.get(move.source, 0.0)
            self._tell("recv", move, pending.opened_s, end_s)
        for move in out:
            self._tell("send", move, sent_s, pending.sent_s.get(move.target, time.perf_counter()))

    def _tell(self, kind: str, move: _Move, start_s: float, end_s: float) -> None:
        if self.observer is not None and move.part.numel():
            self.observer(kind, move.source, move.target, move.part.nbytes, start_s, end_s)
