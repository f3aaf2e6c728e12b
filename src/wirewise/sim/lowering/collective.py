"""Lowering of collective plans: the program on a network."""

from __future__ import annotations

from typing import Any

import numpy as np

from wirewise.collective.network import Network, network
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.plans.collective import CollectivePlan
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.programs import simulate
from wirewise.sim.timeline import Span, Timeline
from wirewise.topology import Topology

__all__ = ["lower_collective", "network_of"]


def lower_collective(plan: CollectivePlan, job: Any, links: Any) -> Prediction:
    """Simulate the plan's program with its size; see `predict`."""
    if job is not None:
        raise InputError(
            f"got a {type(job).__name__} as the job; a collective plan holds its size itself, expected none"
        )
    graph = network_of(links)
    found = simulate(plan.program, graph, plan.size_bytes)
    spans = [
        Span(
            rank=message.source,
            phase="message",
            exchange=f"to rank {message.target}, step {message.step}, segment {segment}",
            start_s=float(found.start_s[segment, number]),
            end_s=float(found.end_s[segment, number]),
        )
        for segment in range(plan.program.segments)
        for number, message in enumerate(found.messages)
    ]
    spans.sort(key=lambda span: (span.rank, span.start_s, span.end_s))
    timeline = Timeline(spans=tuple(spans), world_size=plan.world_size)
    return prediction_of(plan, plan.collective, timeline, float(np.max(found.end_s, initial=0.0)))


def network_of(links: Any) -> Network:
    """Capacity graph of a topology, of its links, or of a network.

    Raises:
        InputError: The argument is of another type, or the links were not built from a topology.
    """
    if isinstance(links, Topology):
        return network(links)
    if isinstance(links, Links):
        if links.network is None:
            raise InputError(
                "these links say nothing of the graph between ranks; make them with Links.of(topology)"
            )
        return links.network
    if isinstance(links, Network):
        return links
    got = "none" if links is None else f"a {type(links).__name__}"
    raise InputError(
        f"got {got} as the links of a collective; expected a Network, a Topology or Links.of(topology)"
    )
