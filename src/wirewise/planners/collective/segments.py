"""How finely a program is pipelined: more segments overlap more, and each costs the latency of its messages."""

from __future__ import annotations

import math
import time

import msgspec

from wirewise.collective import Network, Program
from wirewise.sim.programs import simulate

__all__ = ["LEAST_TIME_S", "with_best_segments"]

LEAST_TIME_S = 1.0
"""What the choice of segments, which is worth a factor, may take even where the time limit of a search has passed."""
_MOST = 256
_LEAST_BYTES = 32 * 1024
"""Smaller messages cost their handling, which the simulation leaves out, more than they gain."""
_MOST_MESSAGES = 400_000
_ALIKE = 0.01
"""The fewest segments within this part of the best time are taken."""


def with_best_segments(
    program: Program, network: Network, size_bytes: float, *, time_limit_s: float = math.inf
) -> tuple[Program, float]:
    """The program in the number of segments, a power of two, that is quickest in simulation, and its seconds.

    The search stops after two doublings without gain: the time of a pipeline has one minimum in the number of its
    segments. After the time limit no further number is simulated; one segment always is.
    """
    ends = time.monotonic() + time_limit_s
    messages, smallest = len(program.messages()), min(program.chunk_bytes(size_bytes))
    found: list[tuple[Program, float]] = []
    count = 1
    while count == 1 or (
        count <= _MOST
        and smallest / count >= _LEAST_BYTES
        and messages * count <= _MOST_MESSAGES
        and time.monotonic() < ends
    ):
        tried = msgspec.structs.replace(program, segments=count)
        found.append((tried, simulate(tried, network, size_bytes).finish_s))
        if len(found) > 2 and found[-1][1] >= found[-3][1] <= found[-2][1]:
            break
        count *= 2
    best_s = min(seconds for _, seconds in found)
    return next(one for one in found if one[1] <= (1 + _ALIKE) * best_s)
