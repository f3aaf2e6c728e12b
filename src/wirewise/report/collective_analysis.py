"""Cost of a collective program on a network: counts, textbook times, simulation, lower bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

from wirewise.collective import Network, Program
from wirewise.collective.bounds import Bound, BoundPair, bound_pair
from wirewise.cost.collectives import CLOSED_FORMS, ClosedForm, closed_form, count
from wirewise.errors import TopologyError
from wirewise.sim.programs import ProgramTimeline, simulate

__all__ = ["Analysis", "analyse", "analysis_object", "edge_name"]


@dataclass(frozen=True)
class Analysis:
    """Cost of a program on a network with a buffer size, as shown on its page."""

    program: Program
    network: Network
    size_bytes: float
    reduce_s_per_byte: float
    timeline: ProgramTimeline
    bounds: BoundPair

    @property
    def rounds(self) -> int:
        """Number of steps with a transfer."""
        return len({transfer.step for transfer in self.program.transfers})

    @property
    def messages(self) -> int:
        """Number of messages of all segments."""
        return len(self.timeline.messages) * self.program.segments

    @cached_property
    def message_bytes(self) -> list[float]:
        """Bytes of one segment for each message of the timeline."""
        sizes = self.program.chunk_bytes(self.size_bytes)
        return [
            sum(sizes[t.chunk] for t in message.transfers) / self.program.segments
            for message in self.timeline.messages
        ]

    @cached_property
    def sent_bytes(self) -> list[float]:
        """Bytes sent by each rank."""
        return self._by_rank("source")

    @cached_property
    def received_bytes(self) -> list[float]:
        """Bytes received by each rank."""
        return self._by_rank("target")

    @cached_property
    def edge_bytes(self) -> list[float]:
        """Bytes on each edge of the network."""
        found = [0.0] * len(self.network.edges)
        for message, size in zip(self.timeline.messages, self.message_bytes, strict=True):
            for edge, fraction in self.network.route(message.source, message.target) or ():
                found[edge] += fraction * size * self.program.segments
        return found

    @property
    def busiest_edge(self) -> int | None:
        """Edge with the longest busy time. None if nothing is sent."""
        busy = list(self.timeline.edge_busy_s)
        return max(range(len(busy)), key=busy.__getitem__) if self.messages else None

    @property
    def bound(self) -> Bound:
        """Lower bound of any algorithm on the network, over all paths."""
        return self.bounds.network

    @property
    def cut_edges(self) -> list[int]:
        """Edges that leave the tightest cut; without a cut, those that enter ranks."""
        inside = set(self.bound.vertices or self.bound.cut)
        edges = enumerate(self.network.edges)
        if not inside:
            return [number for number, edge in edges if edge.target < self.network.ranks]
        return [n for n, edge in edges if edge.source in inside and edge.target not in inside]

    @cached_property
    def in_rounds_s(self) -> float:
        """Time with a barrier between steps and without overlap of latencies, as in textbooks, in seconds."""
        return simulate(
            self.program,
            self.network,
            self.size_bytes,
            reduce_s_per_byte=self.reduce_s_per_byte,
            in_rounds=True,
        ).finish_s

    @cached_property
    def textbook(self) -> ClosedForm | None:
        """Closed form of the algorithm, if the program has its name and counts."""
        own = self.program
        known = (own.collective, own.name) in CLOSED_FORMS and own.ranks > 1 and not own.members
        form = closed_form(own.collective, own.name, own.ranks, own.segments) if known else None
        return form if form is not None and count(own) == form.counts else None

    @property
    def textbook_s(self) -> float | None:
        """Time of the closed form, in seconds. None if there is none, or rank pairs differ in latency or bandwidth."""
        pairs = {
            (self.network.latency(s, t), self.network.rate(s, t))
            for s, t in permutations(range(self.network.ranks), 2)
        }
        if self.textbook is None or len(pairs) != 1:
            return None
        ((latency_s, rate),) = pairs
        return self.textbook.seconds(self.size_bytes, latency_s, 1 / rate, self.reduce_s_per_byte)

    @property
    def over_bound(self) -> float | None:
        """Simulated time relative to the lower bound. None if the bound is 0."""
        return self.timeline.finish_s / self.bound.seconds if self.bound.seconds > 0 else None

    def _by_rank(self, end: str) -> list[float]:
        found = [0.0] * self.program.ranks
        for message, size in zip(self.timeline.messages, self.message_bytes, strict=True):
            found[getattr(message, end)] += size * self.program.segments
        return found


def analyse(
    program: Program, network: Network, size_bytes: float, reduce_s_per_byte: float = 0.0
) -> Analysis:
    """Count, simulate and bound a program.

    Args:
        program: Program, checked or not; its messages must have a route.
        network: Network with the same number of ranks.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        reduce_s_per_byte: Time to reduce a received byte, in seconds.

    Raises:
        TopologyError: The network has another number of ranks.
        ProgramError: A message has no route.
    """
    if network.ranks != program.ranks:
        raise TopologyError(
            f"program {program.name!r} is for {program.ranks} ranks and {network.name!r} has {network.ranks}; "
            "choose a topology with as many"
        )
    return Analysis(
        program,
        network,
        size_bytes,
        reduce_s_per_byte,
        simulate(program, network, size_bytes, reduce_s_per_byte=reduce_s_per_byte),
        bound_pair(network, program.collective, size_bytes, root=program.root, members=program.members),
    )


def edge_name(network: Network, number: int) -> str:
    """Endpoints of an edge, such as "gpu0 to gpu3"."""
    edge = network.edges[number]
    return f"{network.vertices[edge.source]} to {network.vertices[edge.target]}"


def analysis_object(analysis: Analysis) -> dict[str, Any]:
    """Figures of a program, as written by `wirewise show --json`."""
    busiest = analysis.busiest_edge
    return {
        "name": analysis.program.name,
        "collective": analysis.program.collective,
        "ranks": analysis.program.ranks,
        "size_bytes": analysis.size_bytes,
        "network": analysis.network.name,
        "rounds": analysis.rounds,
        "messages": analysis.messages,
        "sent_bytes": analysis.sent_bytes,
        "received_bytes": analysis.received_bytes,
        "busiest_edge": None if busiest is None else edge_name(analysis.network, busiest),
        "busiest_edge_bytes": None if busiest is None else analysis.edge_bytes[busiest],
        "textbook_s": analysis.textbook_s,
        "in_rounds_s": analysis.in_rounds_s,
        "simulated_s": analysis.timeline.finish_s,
        "bound_s": analysis.bound.seconds,
        "bound_routes_s": analysis.bounds.routes.seconds if analysis.bounds.routes else None,
        "over_bound": analysis.over_bound,
        "cut": list(analysis.bound.cut),
    }
