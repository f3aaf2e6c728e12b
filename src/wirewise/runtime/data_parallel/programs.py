"""Collective algorithms as messages between two ranks each: every hop can be seen, as no library's can."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.runtime.full_graph.transport import Transport
from wirewise.trace.flows import ALGORITHMS
from wirewise.trace.hops import Hop, hops

__all__ = ["Move", "Observer", "Program", "moves"]


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


class Move(NamedTuple):
    """A hop, with the part of the tensor that it carries."""

    source: int
    target: int
    begin: int
    """First element."""
    end: int
    """One behind the last element."""
    adds: bool
    """Whether the target adds it to its own, or takes it instead."""
    round: int


def moves(algorithm: str, hosts: Sequence[int], numel: int, servers: int = 1) -> list[Move]:
    """An all-reduce of `numel` elements as moves, in the order and with the bytes of `trace.hops.hops`.

    Args:
        algorithm: One of `trace.flows.ALGORITHMS`.
        hosts: Host of each rank.
        numel: Elements.
        servers: Of "ps": the first ranks, with a part of the tensor each.

    Raises:
        InputError: An algorithm that is not known, or servers that are no ranks.
    """
    if algorithm not in ALGORITHMS or not 1 <= servers <= len(hosts):
        raise InputError(
            f"got the algorithm {algorithm!r} with {servers} servers; expected one of {', '.join(ALGORITHMS)} and "
            f"1 to {len(hosts)} servers"
        )
    found = hops("all_reduce", hosts, float(numel), algorithm, servers=servers)
    part = {"ring": _in_ring, "ps": _by_servers, "hierarchical": _in_hierarchy}.get(algorithm, _in_tree)
    result = []
    for hop in found:
        number, parts, adds = part(hop, hosts, servers)
        begin, end = numel * number // parts, numel * (number + 1) // parts
        result.append(Move(hop.source, hop.target, begin, end, adds, hop.round))
    return result


_Part = tuple[int, int, bool]
"""Which of how many parts a hop carries, and whether it is added."""


def _in_tree(hop: Hop, hosts: Sequence[int], servers: int) -> _Part:
    """Sums go up to a lower rank, then the whole sum down."""
    return 0, 1, hop.target < hop.source


def _by_servers(hop: Hop, hosts: Sequence[int], servers: int) -> _Part:
    return (hop.target, servers, True) if hop.round == 0 else (hop.source, servers, False)


def _in_ring(hop: Hop, hosts: Sequence[int], servers: int) -> _Part:
    return _of_ring(hop.source, hop.round, len(hosts))


def _in_hierarchy(hop: Hop, hosts: Sequence[int], servers: int) -> _Part:
    """To the first rank of each host, a ring of these, and back."""
    leaders = sorted({list(hosts).index(host) for host in hosts})
    if hop.round == 0:
        return 0, 1, True
    if hop.round > 2 * (len(leaders) - 1):
        return 0, 1, False
    return _of_ring(leaders.index(hop.source), hop.round - 1, len(leaders))


def _of_ring(place: int, step: int, ranks: int) -> _Part:
    """What a place of the ring passes on: first sums that grow, then whole ones."""
    if step < ranks - 1:
        return (place - step) % ranks, ranks, True
    return (place + ranks - step) % ranks, ranks, False


class Program:
    """Sums a flat tensor over all ranks in place, by messages between two ranks each.

    All ranks get the same sum bit by bit, since each element is added up in one place and in a fixed order.
    A message of a rank is sent once those of the round before have come. Programs of one transport run one
    after the other and in the same order on all ranks; `Reducer(collective=program)` sees to that.

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
        self.transport, self.algorithm, self.servers, self.observer = transport, algorithm, servers, observer
        self.hosts = list(range(transport.world_size)) if hosts is None else list(hosts)
        if len(self.hosts) != transport.world_size:
            raise InputError(f"got hosts {self.hosts}; expected one for each of {transport.world_size} ranks")
        moves(algorithm, self.hosts, 1, servers)
        self._rounds: dict[int, list[list[Move]]] = {}

    def __call__(self, flat: Tensor) -> None:
        """Sum `flat`, 1-D and contiguous, over the ranks.

        Raises:
            InputError: Another shape, or not contiguous.
            PeerError: A peer is gone.
        """
        if flat.dim() != 1 or not flat.is_contiguous():
            raise InputError(f"got shape {tuple(flat.shape)}; expected one dimension, contiguous")
        if flat.numel() not in self._rounds:
            self._rounds[flat.numel()] = self._own_rounds(flat.numel())
        # A message comes before the next call begins on its ranks, so the rounds of each call can have the same tags.
        for number, own in enumerate(self._rounds[flat.numel()]):
            self._round(flat, own, number)

    def _own_rounds(self, numel: int) -> list[list[Move]]:
        found = moves(self.algorithm, self.hosts, numel, self.servers)
        rounds: list[list[Move]] = [[] for _ in range(max((m.round for m in found), default=-1) + 1)]
        for move in found:
            if self.transport.rank in (move.source, move.target):
                rounds[move.round].append(move)
        return rounds

    def _round(self, flat: Tensor, own: list[Move], tag: int) -> None:
        rank = self.transport.rank
        out = [m for m in own if m.source == rank]
        into = sorted(m for m in own if m.target == rank)
        buffers = {
            m.source: torch.empty_like(flat[m.begin : m.end]) if m.adds else flat[m.begin : m.end]
            for m in into
        }
        pending = self.transport.open(f"round {tag} of the {self.algorithm} all-reduce", tag, buffers)
        sent_s = time.perf_counter()
        for move in out:
            pending.send(move.target, flat[move.begin : move.end])
        pending.launch()
        for _ in pending.arrivals():
            pass
        for move in into:
            if move.adds:
                flat[move.begin : move.end] += buffers[move.source]
        pending.wait_sends()
        if self.observer is not None:
            width = flat.element_size()
            for move in into:
                end_s = pending.opened_s + pending.arrival_s.get(move.source, 0.0)
                self._tell("recv", move, width, pending.opened_s, end_s)
            for move in out:
                self._tell("send", move, width, sent_s, pending.sent_s.get(move.target, time.perf_counter()))

    def _tell(self, kind: str, move: Move, width: int, start_s: float, end_s: float) -> None:
        size = (move.end - move.begin) * width
        if self.observer is not None and size:
            self.observer(kind, move.source, move.target, size, start_s, end_s)
