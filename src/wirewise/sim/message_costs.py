"""Per-message CPU cost of ranks, fitted so that the simulation reproduces measured small collectives."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.collective.builders import algorithms, build
from wirewise.collective.network import network
from wirewise.collective.program import Program
from wirewise.errors import InputError, ProgramError
from wirewise.sim.programs import simulate
from wirewise.topology import Topology

__all__ = ["PROBE_BYTES", "fit_messages", "probe_programs"]

PROBE_BYTES = 64
"""Buffer sizes of the probes, in bytes: so small that no link takes time for the bytes."""
End = TypeVar("End", bound=msgspec.Struct)

_MOST_TRANSFERS = 4_000
_LATENCIES = np.geomspace(0.125, 2.0, 9)
"""Latency of a link over that of half a round trip, which has the processors' time in it too."""
_MESSAGES = np.geomspace(1e-6, 1e-3, 31)
"""Seconds of a message that are tried."""


def probe_programs(ranks: int) -> dict[str, Program]:
    """All-reduces whose times separate latency from CPU time: few rounds or few messages, or many of either."""
    found = {}
    for name in algorithms("all_reduce"):
        try:
            program = build("all_reduce", name, ranks)
        except ProgramError:  # Some want a power of two, or hosts.
            continue
        if len(program.transfers) <= _MOST_TRANSFERS:
            found[name] = program
    return found


def fit_messages(
    topology: Topology,
    programs: Mapping[str, Program],
    seconds: Mapping[str, float],
    *,
    processors: Sequence[int] = (0,),
    size_bytes: float = PROBE_BYTES,
) -> Topology:
    """Fit `message_s` of the ranks, one factor for all latencies, and the number of CPUs that ranks share.

    Grid search for the least sum of squared relative errors, after removing a constant cost per call.

    Args:
        topology: Ranks and links, with latencies of half a round trip.
        programs: Measured programs, by name.
        seconds: Measured times of the programs, by name.
        processors: Numbers of shared CPUs to try; see `Topology.processors`.
        size_bytes: Larger buffer of a rank, in bytes.

    Returns:
        Topology with the fitted figures.

    Raises:
        InputError: There are no measurements, or a time is not positive.
    """
    names = sorted(programs)
    measured = np.array([seconds.get(name, 0.0) for name in names])
    if not len(names) or not (measured > 0).all():
        raise InputError(
            f"got the times {dict(seconds)}; expected seconds above 0 for each of {', '.join(names)}"
        )
    tried = (
        _with_costs(topology, *figures) for figures in itertools.product(_LATENCIES, _MESSAGES, processors)
    )
    return min(tried, key=lambda one: _error(one, [programs[name] for name in names], measured, size_bytes))


def _with_costs(topology: Topology, latencies: float, message_s: float, processors: int) -> Topology:
    ranks = set(topology.ranks)
    return msgspec.structs.replace(
        topology,
        hosts=_costing(topology.hosts, ranks, message_s),
        devices=_costing(topology.devices, ranks, message_s),
        links=tuple(
            msgspec.structs.replace(link, latency_s=link.latency_s * float(latencies))
            for link in topology.links
        ),
        processors=processors,
    )


def _costing(ends: Iterable[End], ranks: set[str], message_s: float) -> tuple[End, ...]:
    return tuple(
        msgspec.structs.replace(end, message_s=float(message_s)) if getattr(end, "name", "") in ranks else end
        for end in ends
    )


def _error(
    topology: Topology, programs: Sequence[Program], measured: NDArray[np.float64], size_bytes: float
) -> float:
    graph = network(topology)
    told = np.array([simulate(program, graph, size_bytes).finish_s for program in programs])
    weight = measured**-2
    call_s = max(float((weight * (measured - told)).sum() / weight.sum()), 0.0)
    return float((((told + call_s) / measured - 1) ** 2).sum())
