"""Durations of steps, phases and collectives as recorded by ranks, without replay and common clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.trace.match import ENDS_TOGETHER
from wirewise.trace.records import Op, RankTrace, Trace
from wirewise.trace.segments import pieces

__all__ = ["PHASES", "collective_seconds", "phase_seconds", "step_seconds"]

Times = NDArray[np.float64]

PHASES = ("data", "forward", "backward", "optimizer", "encode", "decode", "wait", "other")
"""Kinds of ops whose time the thread of the script spends; a wait is exposed communication."""


def step_seconds(trace: Trace) -> Times:
    """Duration of each step common to all ranks, on each rank, in seconds, [ranks, steps].

    Raises:
        InputError: A rank has no mark of such a step.
    """
    numbers = trace.steps()
    rows = []
    for rank in trace.ranks:
        marks = {op.step: op.end_s - op.start_s for op in rank.ops if op.kind == "step"}
        if missing := [number for number in numbers if number not in marks]:
            raise InputError(
                f"rank {rank.header.rank} has no mark of step {missing[0]}; record it with `wirewise profile trace`, "
                "or call the profiler's step()"
            )
        rows.append([marks[number] for number in numbers])
    return np.array(rows)


def phase_seconds(trace: Trace) -> dict[str, Times]:
    """Time that each rank's script thread spends in each phase of each step, in seconds, [ranks, steps]."""
    place = {number: column for column, number in enumerate(trace.steps())}
    found = {phase: np.zeros((len(trace.ranks), len(place))) for phase in PHASES}
    for row, rank in enumerate(trace.ranks):
        for op, seconds in _main_thread(rank):
            if op.step in place and op.kind in found:
                found[op.kind][row, place[op.step]] += seconds
    return {phase: seconds for phase, seconds in found.items() if seconds.any()}


def _main_thread(rank: RankTrace) -> Iterator[tuple[Op, float]]:
    steps: dict[int, list[Op]] = defaultdict(list)
    for op in rank.ops:
        if (
            op.thread == "main"
            and not op.stream
            and op.kind not in ("communication", "step")
            and op.step >= 0
        ):
            steps[op.step].append(op)
    for own in steps.values():
        yield from ((piece.op, piece.end_s - piece.start_s) for piece in pieces(own))


def collective_seconds(trace: Trace) -> dict[str, Times]:
    """Duration of each collective by name, without the wait for stragglers, in seconds, one value per call.

    A rank is in a collective from its arrival until the end, so the shortest duration is that of the last rank to
    arrive.
    """
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    names: dict[tuple[str, int], str] = {}
    for rank in trace.ranks:
        for op in rank.ops:
            if op.kind == "communication" and op.seq >= 0 and op.collective in ENDS_TOGETHER:
                times[op.group, op.seq].append(op.end_s - op.start_s)
                names[op.group, op.seq] = op.name
    found: dict[str, list[float]] = defaultdict(list)
    for key, own in times.items():
        found[names[key]].append(min(own))
    return {name: np.array(values) for name, values in found.items()}
