"""How finely a program is pipelined: more segments overlap more, and each costs the latency of its messages."""

from __future__ import annotations

import msgspec

from wirewise.collective import Network, Program
from wirewise.sim.programs import simulate

__all__ = ["with_best_segments"]

_MOST = 256
_LEAST_BYTES = 32 * 1024
"""Smaller messages cost their handling, which the simulation leaves out, more than they gain."""
_MOST_MESSAGES = 400_000
_ALIKE = 0.01
"""The fewest segments within this part of the best time are taken."""


def with_best_segments(program: Program, network: Network, size_bytes: float) -> tuple[Program, float]:
    """The program in the number of segments, a power of two, that is quickest in simulation, and its seconds.

    The search stops after two doublings without gain: the time of a pipeline has one minimum in the number of its
    segments.
    """
    messages, smallest = len(program.messages()), min(program.chunk_bytes(size_bytes))
    found: list[tuple[Program, float]] = []
    count = 1
    while count == 1 or (
        count <= _MOST and smallest / count >= _LEAST_BYTES and messages * count <= _MOST_MESSAGES
    ):
        tried = msgspec.structs.replace(program, segments=count)
        found.append((tried, simulate(tried, network, size_bytes).finish_s))
        if len(found) > 2 and found[-1][1] >= found[-3][1] <= found[-2][1]:
            break
        count *= 2
    best_s = min(seconds for _, seconds in found)
    return next(one for one in found if one[1] <= (1 + _ALIKE) * best_s)
