"""Chunk size of a program, tuned by running it on the actual links, CPUs and size.

Blink (Wang et al., MLSys 2020) doubles the chunks of a pipeline during the first iterations of training as long as
that helps, and then reduces them in equal steps; `planners.collective.blink.ChunkSize` holds the rule. Here each
probe runs the program on all ranks of a group, which agree on its time and so on the next size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import torch

from wirewise.collective import Program
from wirewise.errors import InputError
from wirewise.runtime.collective.group import CollectiveGroup
from wirewise.runtime.collective.measure import call_of, check_members
from wirewise.runtime.collective.memory import LEAST_SEGMENT_BYTES

__all__ = ["ChunkProbe", "TunedChunks", "segments_of", "tune_chunk_size"]

_FIRST_BYTES = 1 << 20


class ChunkProbe(NamedTuple):
    """Chunk size that was tried, and its time."""

    chunk_bytes: int
    segments: int
    seconds: float
    """Seconds of the fastest call, on its slowest rank."""


class TunedChunks(NamedTuple):
    """Tuned program; the same on all ranks."""

    program: Program
    """Program with the fastest number of segments."""
    probes: tuple[ChunkProbe, ...]
    """Probes in the order in which they ran."""


def tune_chunk_size(
    group: CollectiveGroup, program: Program, size_bytes: int, *, probes: int = 12, calls: int = 3
) -> TunedChunks:
    """Run a program with different chunk sizes and keep the best; a collective operation of all ranks.

    Apply the result by `group.use(tuned.program, from_bytes)`. The program runs on its own tensors, of at most twice
    `size_bytes`.

    Args:
        group: Group whose ranks all call this at the same time, with the same arguments.
        program: Program of all ranks of the group; its segments are ignored.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        probes: Maximum number of sizes to try.
        calls: Calls per size, after a warm-up call.

    Raises:
        InputError: No probes or calls.
        ProgramError: The program is for another number of ranks, or has ranks that only relay.
        PeerError: A peer is dead, hung or inconsistent.
    """
    from wirewise.planners.collective.blink import ChunkSize  # compiles kernels

    if probes < 1 or calls < 1:
        raise InputError(f"got {probes} probes of {calls} calls; expected at least 1 of each")
    check_members(program)
    longest = max(int(max(program.chunk_bytes(size_bytes))), 1)
    least = min(LEAST_SEGMENT_BYTES, longest)
    control = ChunkSize(min(_FIRST_BYTES, longest), least_bytes=least, most_bytes=longest)
    found: dict[int, ChunkProbe] = {}
    while not control.done:
        chunk_bytes = control.size_bytes
        segments = segments_of(program, size_bytes, chunk_bytes)
        if segments not in found:
            if len(found) == probes:
                break
            call, _ = call_of(program, size_bytes, group, {"program": program, "segments": segments})
            found[segments] = ChunkProbe(chunk_bytes, segments, _least_s(group, call, calls))
        control.report(size_bytes / found[segments].seconds)
    best = min(found.values(), key=lambda probe: probe.seconds)
    return TunedChunks(msgspec.structs.replace(program, segments=best.segments), tuple(found.values()))


def segments_of(program: Program, size_bytes: int, chunk_bytes: int) -> int:
    """Number of segments that splits the longest chunk of a program into pieces of about `chunk_bytes`."""
    return max(1, round(max(program.chunk_bytes(size_bytes)) / chunk_bytes))


def _least_s(group: CollectiveGroup, call: Callable[[], object], calls: int) -> float:
    """Seconds of the quickest of some calls, the same number on all ranks.

    Other work on the machines only ever makes a call slower, so of few calls the least says more than the median.
    """
    call()  # The kernel learns the sizes of its buffers, and the group prepares the program.
    took = []
    for _ in range(calls):
        group.barrier()
        start = time.perf_counter()
        call()
        seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        group.all_reduce(seconds, op="max")
        took.append(seconds.item())
    return min(took)
