"""Comparison of a program with torch's own collective, interleaved, on the ranks of a running job."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.collective import Program
from wirewise.errors import PeerError, ProgramError
from wirewise.runtime.collective.group import CollectiveGroup, connect
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["call_of", "check_members", "compare", "program_seconds", "shared_processors"]


def compare(
    program: Program,
    size_bytes: int,
    *,
    repeats: int = 5,
    deterministic: bool = False,
    timeout_s: float = 120.0,
) -> dict[str, Any] | None:
    """Time a program and torch's own collective, in seconds of the slowest rank.

    Args:
        program: Program with all ranks of the default process group as members.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        repeats: Number of calls of each.
        deterministic: Reduce in the same order in every run.
        timeout_s: Timeout in seconds, as in `connect`.

    Returns:
        Record at rank 0 with medians (`measured_s`, `builtin_s`), all times and edges; None at the others.

    Raises:
        ProgramError: Some ranks only relay, which torch's collective cannot do.
        PeerError: The program's result differs from torch's.
    """
    check_members(program)
    options = {"program": program, "deterministic": deterministic}
    with connect(timeout_s=timeout_s) as group:
        ways = call_of(program, size_bytes, group, options), call_of(program, size_bytes, None, {})
        for call, _ in ways:
            call()
        if not torch.equal(ways[0][1], ways[1][1]):
            raise PeerError(
                f"the result of {program.name!r} differs from torch's at rank {group.rank}; prove it with "
                "`wirewise check`, and look for ranks with other versions"
            )
        transport = transport_of(timeout_s=timeout_s)
        seconds = [[_timed(call, transport) for call, _ in ways] for _ in range(repeats)]
        edges = msgspec.to_builtins(group.statistics())
        transport.barrier("the end of the comparison")
    if group.rank:
        return None
    own, builtin = ([row[way] for row in seconds] for way in (0, 1))
    return {
        "algorithm": program.name, "collective": program.collective, "ranks": program.ranks, "rank": 0,
        "size_bytes": size_bytes, "repeats": repeats, "measured_s": statistics.median(own),
        "builtin_s": statistics.median(builtin), "measured": own, "builtin": builtin, "edges": edges,
    }  # fmt: skip


def check_members(program: Program) -> None:
    """Raise unless every rank is a member of the program's group.

    Raises:
        ProgramError: Some ranks only relay.
    """
    if program.members:
        raise ProgramError(
            f"program {program.name!r} has ranks that only relay; expected all ranks in its group"
        )


def _timed(call: Callable[[], object], transport: Transport) -> float:
    transport.barrier("the start of a call")
    start = time.perf_counter()
    call()
    return float(transport.slowest(time.perf_counter() - start))


def call_of(
    program: Program, size_bytes: int, group: CollectiveGroup | None, options: dict[str, Any]
) -> tuple[Callable[[], object], Tensor]:
    """Callable of a program's collective on new tensors, and the tensor of its result.

    Args:
        program: Program with all ranks as members.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        group: Group that calls. Defaults to the default process group with torch's own collective.
        options: Options of the group's method.
    """
    rank, ranks, root = group.rank if group else dist.get_rank(), program.ranks, program.root
    count = max(size_bytes // 4 // ranks, 1)
    whole = (torch.arange(count * ranks) % 1021 + rank).float()
    part, result = whole[:count].clone(), torch.zeros(count * ranks)
    here = rank == root
    listed = list(result.split(count)) if here else None
    given = list(whole.split(count)) if here else None
    target = {
        "all_reduce": whole, "broadcast": whole, "reduce": whole if here else part,
        "reduce_scatter": part, "scatter": part,
    }.get(program.collective, result)  # fmt: skip
    arguments: dict[str, tuple[Any, ...]] = {
        "all_reduce": (whole,), "broadcast": (whole, root), "reduce": (whole, root), "all_gather": (result, part),
        "gather": (listed, part, root) if group else (part, listed, root), "reduce_scatter": (part, whole),
        "scatter": (part, given, root), "all_to_all": (result, whole),
    }  # fmt: skip
    names = {
        "all_gather": "all_gather_into_tensor",
        "reduce_scatter": "reduce_scatter_tensor",
        "all_to_all": "all_to_all_single",
    }
    name = program.collective if group else names.get(program.collective, program.collective)
    function = getattr(group or dist, name)
    return lambda: function(*arguments[program.collective], **options), target


def program_seconds(
    programs: Mapping[str, Program],
    size_bytes: int,
    *,
    repeats: int = 15,
    times: int = 4,
    timeout_s: float = 120.0,
) -> dict[str, float]:
    """Median time of each program, interleaved, in seconds of the slowest rank; the same on all ranks.

    Args:
        programs: Programs by name, for all ranks of the default process group.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        repeats: Number of rounds, each with every program once.
        times: Consecutive calls of a program, of which the mean counts.
        timeout_s: Timeout in seconds, as in `connect`.

    Raises:
        PeerError: A rank is gone.
    """
    found: dict[str, list[float]] = {name: [] for name in programs}
    with connect(timeout_s=timeout_s) as group:
        calls = {name: call_of(p, size_bytes, group, {"program": p})[0] for name, p in programs.items()}
        transport = transport_of(timeout_s=timeout_s)
        for call in calls.values():
            call()
        for _ in range(repeats):
            for name, call in calls.items():
                found[name].append(_timed(partial(_often, call, times), transport) / times)
        transport.barrier("the end of the measurement")
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _often(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def shared_processors() -> int:
    """Number of CPUs of the machine if all ranks run on it, else 0; a collective call."""
    own = (Path("/proc/sys/kernel/random/boot_id").read_text(), len(os.sched_getaffinity(0)))
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, own)
    return max(count for _, count in seen) if len({boot for boot, _ in seen}) == 1 else 0
