"""Choice of the number of segments: more segments overlap more, but each adds message latency."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec

from wirewise import work
from wirewise.collective import Network, Program
from wirewise.collective.network import Hashing
from wirewise.collective.regular import RegularProgram
from wirewise.sim.programs import Simulator

__all__ = ["HASHES", "LEAST_BYTES", "LEAST_TIME_S", "hashed_s", "messages_of", "with_best_segments"]

P = TypeVar("P", Program, RegularProgram)

LEAST_TIME_S = 1.0
"""Time for the choice of segments even after the time limit of a search, as it can change the time by a factor."""
_MOST = 256
LEAST_BYTES = 32 * 1024
"""Smallest message worth a segment: smaller ones cost more handling, which the simulation leaves out, than they
gain."""
_MOST_MESSAGES = 800_000
HASHES = 8
"""Number of hash seeds, of which the worst counts."""
_MOST_HASHED = 100_000
"""Messages above which a program is not simulated once for each hash."""
_ALIKE = 0.01
"""The fewest segments within this part of the best time are taken."""


def messages_of(program: Program | RegularProgram) -> int:
    """Number of messages per segment, over all ranks."""
    classes = len(program.messages())
    return classes * (program.ranks // program.period) if isinstance(program, RegularProgram) else classes


def with_best_segments(
    program: P, network: Network, size_bytes: float, *, time_limit_s: float = math.inf
) -> tuple[P, float]:
    """Find the number of segments, a power of two, that is fastest in simulation; returns the program and its seconds.

    The search stops after two doublings without gain: the time of a pipeline has one minimum in the number of its
    segments. After the time limit no further number is simulated, but one segment always is.
    """
    ends = work.spent_s() + time_limit_s
    rule = program.rule if isinstance(program, RegularProgram) else program
    messages, smallest = messages_of(program), min(rule.chunk_bytes(size_bytes))
    simulator, found = Simulator(program, network, size_bytes), list[tuple[int, float]]()
    count = 1
    while count == 1 or (
        count <= _MOST
        and smallest / count >= LEAST_BYTES
        and messages * count <= _MOST_MESSAGES
        and work.spent_s() < ends
    ):
        found.append((count, simulator.finish_s(count)))
        if len(found) > 2 and found[-1][1] >= found[-3][1] <= found[-2][1]:
            break
        count *= 2
    best_s = min(seconds for _, seconds in found)
    count, seconds = next(one for one in found if one[1] <= (1 + _ALIKE) * best_s)
    cut = {"segments": count}
    regular = isinstance(program, RegularProgram)
    fields = {"rule": msgspec.structs.replace(rule, **cut)} if regular else cut
    return msgspec.structs.replace(program, **fields), seconds


def hashed_s(program: Program, network: Network, size_bytes: float) -> float | None:
    """Predicted time if switches hash each pair's connection to one equal-cost path: the worst of `HASHES`, in seconds.

    Returns:
        None if switches have no choice, or the program has too many messages for repeated simulation.
    """
    if messages_of(program) * program.segments > _MOST_HASHED or not network.has_choice:
        return None
    hashed = (msgspec.structs.replace(network, hashing=Hashing(seed)) for seed in range(HASHES))
    return max(Simulator(program, one, size_bytes).finish_s(program.segments) for one in hashed)
