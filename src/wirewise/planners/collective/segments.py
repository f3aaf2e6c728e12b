"""How finely a program is pipelined: more segments overlap more, and each costs the latency of its messages."""

from __future__ import annotations

import msgspec

from wirewise.collective import Network, Program
from wirewise.sim.programs import simulate

__all__ = ["with_best_segments"]

_MOST = 256
_LEAST_BYTES = 4096
"""Smaller messages cost their latency and little else."""
_MOST_MESSAGES = 400_000


def with_best_segments(program: Program, network: Network, size_bytes: float) -> tuple[Program, float]:
    """The program in the number of segments that is quickest in simulation, among powers of two, and its seconds.

    The search stops after two doublings without gain: the time of a pipeline has one minimum in the number of its
    segments.
    """
    best, best_s = program, simulate(program, network, size_bytes).finish_s
    messages, smallest = len(program.messages()), min(program.chunk_bytes(size_bytes))
    count, worse = 1, 0
    while (
        worse < 2 and count < _MOST and smallest / count >= _LEAST_BYTES and messages * count < _MOST_MESSAGES
    ):
        count *= 2
        tried = msgspec.structs.replace(program, segments=count)
        seconds = simulate(tried, network, size_bytes).finish_s
        worse = 0 if seconds < best_s else worse + 1
        if seconds < best_s:
            best, best_s = tried, seconds
    return best, best_s
