"""How long a program takes on a network; every figure is simulated, never measured.

A message starts once the values that it takes are there and every edge of its route is free. Where several could
start, the one of the earliest segment goes first, and in it the one of the earliest step, as where ranks work
through segments one after the other. It arrives after the route's latency and its bytes at the rate of the
narrowest edge, and holds each edge for its bytes at that edge's own rate: latencies overlap, and switches pass
bytes on as they come. Then its target adds or stores it, once what it overwrites has been sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.dependences import Dependences, dependences
from wirewise.collective.network import Network
from wirewise.collective.program import Message, Program
from wirewise.errors import ProgramError
from wirewise.sim.messages import Trip, run

__all__ = ["ProgramTimeline", "simulate"]


@dataclass(frozen=True)
class ProgramTimeline:
    """When the messages of a program travel."""

    program: Program
    finish_s: float
    """When the last message is in; 0 without messages."""
    start_s: NDArray[np.float64]
    """When each message starts, [segments, messages]."""
    end_s: NDArray[np.float64]
    """When its target has stored or added it, [segments, messages]."""
    edge_busy_s: NDArray[np.float64]
    """How long each edge of the network is held, [edges]."""
    source: str = "simulated"
    """Kind of the times, which every timeline tells."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole, by the name that all timelines have: `finish_s`."""
        return self.finish_s

    @cached_property
    def messages(self) -> list[Message]:
        """Messages in the order of the arrays."""
        return self.program.messages()


def simulate(
    program: Program,
    network: Network,
    size_bytes: float,
    *,
    reduce_s_per_byte: float = 0.0,
    in_rounds: bool = False,
) -> ProgramTimeline:
    """Run a program on a network.

    Args:
        program: Program to run; it should pass `collective.check`.
        network: Network with the program's ranks.
        size_bytes: Larger buffer of a rank, in or out.
        reduce_s_per_byte: Time to add one byte; a rank adds one message after the other.
        in_rounds: Whether to count as textbooks do: a message holds its route from its start until it is added,
            and a segment's step begins once its step before has ended everywhere.

    Raises:
        ProgramError: Another number of ranks, or a message between ranks without a route.
    """
    if program.ranks != network.ranks:
        raise ProgramError(
            f"program {program.name!r} is for {program.ranks} ranks; expected {network.ranks}, as network "
            f"{network.name!r} has"
        )
    found = dependences(program, in_rounds)
    trip = _trip(program, network, found, size_bytes, reduce_s_per_byte, in_rounds)
    start_s, end_s, busy_s = run(found, trip, program.segments, program.ranks)
    in_order = np.argsort(found.place)
    start_s, end_s = (s.reshape(program.segments, -1)[:, in_order] for s in (start_s, end_s))
    return ProgramTimeline(program, float(end_s.max(initial=0.0)), start_s, end_s, busy_s)


def _trip(
    program: Program,
    network: Network,
    found: Dependences,
    size_bytes: float,
    reduce_s_per_byte: float,
    in_rounds: bool,
) -> Trip:
    messages = len(found.source)
    bytes_of = np.array(program.chunk_bytes(size_bytes))[found.chunk] / program.segments
    sizes = np.bincount(found.message, bytes_of, messages).astype(np.float64)
    added = np.bincount(found.message, bytes_of * found.reduces, messages)
    adding_s = (reduce_s_per_byte * added).astype(np.float64)
    pairs, route = np.unique(found.source * network.ranks + found.target, return_inverse=True)
    ends = [divmod(int(pair), network.ranks) for pair in pairs]
    routes = [_route(program, network, *pair) for pair in ends]
    latency_s = np.array([network.latency(*pair) for pair in ends])
    rate = np.array([network.rate(*pair) for pair in ends])
    travel_s = latency_s[route] + sizes / rate[route]
    return Trip(
        route=route.astype(np.int64),
        first=np.cumsum([0, *map(len, routes)]).astype(np.int64),
        edges=np.array([edge for path in routes for edge in path], np.int64),
        travel_s=travel_s + adding_s if in_rounds else travel_s,
        size_bytes=sizes,
        s_per_byte=np.array([1 / edge.bandwidth_bytes_per_s for edge in network.edges]),
        exclusive=in_rounds,
        target=found.target,
        adding_s=np.zeros(messages) if in_rounds else adding_s,
    )


def _route(program: Program, network: Network, source: int, target: int) -> tuple[int, ...]:
    path = network.route(source, target)
    if path is None:
        raise ProgramError(
            f"program {program.name!r} sends from rank {source} to {target}, which network {network.name!r} joins "
            "only over other ranks; send to a neighbour instead"
        )
    return path
