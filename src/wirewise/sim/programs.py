"""Time of a program on a network; every figure is simulated, never measured.

On Ethernet, messages share links proportionally, as TCP connections do (`sim.fluid`). Elsewhere links are serialised.

A message starts once its values are available and every edge of its route is free. Where several could start, the one
of the earliest segment goes first, and in it the one of the earliest step, as when ranks process segments in sequence.
It arrives after the route's latency and its bytes at the rate of the route, and holds each edge for its bytes there at
that edge's own rate: latencies overlap, and switches pass bytes on as they come. Where a pair has several equal paths,
its bytes spread over them (`collective.routes`). Then its target adds or stores it, once what it overwrites has been
sent. Edges with a burst are token buckets: after a pause, bytes pass at once until the bucket is empty. A message
costs the processor of its source time before it leaves, and that of its target when it is in (LogP's o; Culler et al.
1993); a rank handles one message after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wirewise import work
from wirewise.collective.dependences import Dependences, dependences
from wirewise.collective.network import Network
from wirewise.collective.program import Message, Program
from wirewise.collective.regular import RegularProgram
from wirewise.errors import ProgramError
from wirewise.sim.classes import classes_of_routes
from wirewise.sim.fluid import run_fluid
from wirewise.sim.messages import MessageTransport, run

__all__ = ["ProgramTimeline", "Simulator", "simulate"]

_ITEM_S = 5e-6
"""Work of one segment of a message."""


@dataclass(frozen=True)
class ProgramTimeline:
    """Start and end of the messages of a program."""

    program: Program | RegularProgram
    finish_s: float
    """Time at which the last message has arrived; 0 without messages."""
    start_s: NDArray[np.float64]
    """Start of each message, [segments, messages]; of a regular program, one message of each class."""
    end_s: NDArray[np.float64]
    """Time at which the receiver has stored or reduced each message, [segments, messages]."""
    edge_busy_s: NDArray[np.float64]
    """Busy time of each edge of the network, [edges]."""
    source: str = "simulated"
    """Kind of the times, as in `Timeline.source`."""

    @property
    def seconds(self) -> float:
        """Total time in seconds, under the name common to all timelines: `finish_s`."""
        return self.finish_s

    @cached_property
    def messages(self) -> list[Message]:
        """Messages in the order of the arrays."""
        return self.program.messages()


class Simulator:
    """Program prepared on a network, to be simulated with several numbers of segments.

    Args:
        program: Program, which should pass `collective.check`. A regular one is simulated for one rank of each class,
            on a network that is invariant under the period.
        network: Network with the program's ranks.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        reduce_s_per_byte: Time to reduce one byte, in seconds; a rank reduces one message at a time.
        in_rounds: Whether to count as in textbooks: a message holds its route from its start until it is reduced, and
            a segment's step starts once its previous step has ended everywhere.

    Raises:
        ProgramError: The number of ranks differs, a message is between ranks without a route, or message classes of a
            regular program share a link, which would break the symmetry.
        TopologyError: The network is not invariant under the period of a regular program.
    """

    def __init__(
        self,
        program: Program | RegularProgram,
        network: Network,
        size_bytes: float,
        *,
        reduce_s_per_byte: float = 0.0,
        in_rounds: bool = False,
    ) -> None:
        if program.ranks != network.ranks:
            raise ProgramError(
                f"program {program.name!r} is for {program.ranks} ranks; expected {network.ranks}, as network "
                f"{network.name!r} has"
            )
        self._program, self._network = program, network
        self._reduce_s_per_byte, self._in_rounds = reduce_s_per_byte, in_rounds
        self._found = dependences(program, in_rounds)
        if isinstance(program, RegularProgram):
            if network.processors and network.message_s:
                raise ProgramError(
                    f"regular program {program.name!r}: all ranks of network {network.name!r} share "
                    f"{network.processors} processors, so that their turns differ; simulate what its expand() returns"
                )
            self._table, self._class = classes_of_routes(program, network, self._found)
            rule, self._ranks = program.rule, program.period
        else:
            self._table, self._class = network.table, np.arange(len(network.edges))
            rule, self._ranks = program, program.ranks
        self._route = _routes(program, network, self._table.pair, self._found)
        self._bytes = np.array(rule.chunk_bytes(size_bytes))[self._found.chunk]

    def finish_s(self, segments: int) -> float:
        """Total time with that number of segments, in seconds."""
        return float(self._run(segments)[1].max(initial=0.0))

    def run(self) -> ProgramTimeline:
        """Simulate the program unchanged."""
        segments, in_order = self._program.segments, np.argsort(self._found.place)
        start_s, end_s, busy_s = self._run(segments)
        start_s, end_s = (s.reshape(segments, -1)[:, in_order] for s in (start_s, end_s))
        finish_s = float(end_s.max(initial=0.0))
        return ProgramTimeline(self._program, finish_s, start_s, end_s, busy_s[self._class])

    def _run(self, segments: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        work.charge(segments * len(self._found.source) * _ITEM_S)
        core = run_fluid if self._network.shares and not self._in_rounds else run
        return core(self._found, self._trip(segments), segments, self._ranks)

    def _trip(self, segments: int) -> MessageTransport:
        found, routes, bytes_of = self._found, self._table, self._bytes / segments
        messages = len(found.source)
        sizes = np.bincount(found.message, bytes_of, messages).astype(np.float64)
        added = np.bincount(found.message, bytes_of * found.reduces, messages)
        adding_s = (self._reduce_s_per_byte * added).astype(np.float64)
        message_s = np.array(self._network.message_s or [0.0] * self._network.ranks)
        latency_s = routes.latency_s[self._route]
        travel_s = latency_s + sizes / routes.rate_bytes_per_s[self._route]
        bursts = np.array([edge.burst_bytes / edge.bandwidth_bytes_per_s for edge in self._network.edges])
        return MessageTransport(
            route=self._route,
            first=routes.first,
            edges=routes.edges,
            fraction=routes.fraction,
            travel_s=travel_s + adding_s if self._in_rounds else travel_s,
            size_bytes=sizes,
            s_per_byte=np.array([1 / edge.bandwidth_bytes_per_s for edge in self._network.edges]),
            burst_s=bursts if bursts.any() and not self._in_rounds else np.empty(0),
            latency_s=latency_s,
            exclusive=self._in_rounds,
            source=found.source % self._ranks,
            processors=0
            if self._in_rounds or self._ranks < self._network.ranks
            else self._network.processors,
            target=found.target % self._ranks,
            sending_s=np.zeros(messages) if self._in_rounds else message_s[found.source],
            adding_s=np.zeros(messages) if self._in_rounds else adding_s + message_s[found.target],
        )


def simulate(
    program: Program | RegularProgram,
    network: Network,
    size_bytes: float,
    *,
    reduce_s_per_byte: float = 0.0,
    in_rounds: bool = False,
) -> ProgramTimeline:
    """Simulate a program on a network; arguments and errors as in `Simulator`."""
    simulator = Simulator(
        program, network, size_bytes, reduce_s_per_byte=reduce_s_per_byte, in_rounds=in_rounds
    )
    return simulator.run()


def _routes(
    program: Program | RegularProgram, network: Network, known: NDArray[np.int64], found: Dependences
) -> NDArray[np.int64]:
    """Place of each message's pair of ranks among known ones, [M]."""
    wanted = found.source * network.ranks + found.target
    place = np.searchsorted(known, wanted)
    lost = np.flatnonzero(np.append(known, -1)[place] != wanted)
    if len(lost):
        source, target = divmod(int(wanted[lost[0]]), network.ranks)
        raise ProgramError(
            f"program {program.name!r} sends from rank {source} to {target}, which network {network.name!r} joins "
            "only over other ranks; send to a neighbour instead"
        )
    return place
