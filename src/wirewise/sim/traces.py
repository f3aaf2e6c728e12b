"""Replay of a trace, with links and interference fitted from the trace itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wirewise.cost.links import Links
from wirewise.cost.traces import interference_of
from wirewise.errors import InputError
from wirewise.sim.steps import RecordedStep, ReplayReport, replay_steps
from wirewise.sim.whatif import Change, parse
from wirewise.trace import dataflow
from wirewise.trace.arrays import Dataflow
from wirewise.trace.match import match
from wirewise.trace.records import Op, RankTrace, Trace

__all__ = ["TraceRecording", "by_step", "record", "recorded_steps", "replay_trace"]

Build = Callable[[Trace, int], Dataflow]


class TraceRecording(NamedTuple):
    """Prepared steps and links of a trace, for replays with many changes."""

    steps: list[RecordedStep]
    links: Links
    interference: float


def recorded_steps(trace: Trace, build: Build | None = None) -> list[RecordedStep]:
    """Graph and measured times of every step common to all ranks.

    Args:
        trace: Trace on aligned clocks.
        build: Function that builds the graph of a step. Defaults to `trace.dataflow.build`.

    Raises:
        InputError: There is no such step.
    """
    matches = [] if build else match(trace)
    found = []
    for number, part in by_step(trace).items():
        begin, end = [], []
        for rank in range(trace.world_size):
            ops = part.of(rank, number)
            own = [op for op in ops if op.kind == "step"] or ops
            begin.append(min(op.start_s for op in own))
            end.append(max(op.end_s for op in own))
        graph = build(trace, number) if build else dataflow.build(part, number, matches=matches)
        found.append(RecordedStep(number, graph, np.array(begin), np.array(end)))
    if not found:
        raise InputError("got a trace without a step that all ranks have; record at least one whole step")
    return found


def record(
    trace: Trace,
    build: Build | None = None,
    links: Links | None = None,
    *,
    interference: float | None = None,
) -> TraceRecording:
    """Prepare steps, links and interference of a trace; arguments as in `replay_trace`."""
    factor = interference if interference is not None else interference_of(trace)
    return TraceRecording(
        recorded_steps(trace, build), Links.fit(trace) if links is None else links, factor or 1.0
    )


def replay_trace(
    trace: Trace,
    build: Build | None = None,
    links: Links | None = None,
    *,
    what_if: str | Sequence[Change] = (),
    interference: float | None = None,
) -> ReplayReport:
    """Replay every recorded step (`replay_steps`).

    Args:
        trace: Trace on aligned clocks.
        build: Function that builds the graph of a step. Defaults to `trace.dataflow.build`.
        links: Links of the hosts. Defaults to fitted ones.
        what_if: Changes, as text (`whatif.parse`) or parsed.
        interference: Slowdown factor of compute that overlaps with communication. Defaults to a fitted one, 1 if
            unknown.

    Raises:
        InputError: There is no common step, a change is not understood or does not fit the job, or clocks are not
            aligned.
    """
    changes = parse(what_if) if isinstance(what_if, str) else what_if
    found = record(trace, build, links, interference=interference)
    return replay_steps(found.steps, found.links, interference=found.interference, what_if=changes)


def by_step(trace: Trace) -> dict[int, Trace]:
    """Split a trace by common step: its ops, and other steps' waits for its collectives."""
    numbers = trace.steps()
    found: dict[int, list[RankTrace]] = {number: [] for number in numbers}
    for rank in trace.ranks:
        ops: dict[int, list[Op]] = defaultdict(list)
        waits: dict[tuple[str, int], list[Op]] = defaultdict(list)
        for op in rank.ops:
            ops[op.step].append(op)
            if op.kind == "wait" and op.seq >= 0:
                waits[op.group, op.seq].append(op)
        for number in numbers:
            own = ops[number]
            keys = dict.fromkeys((op.group, op.seq) for op in own if op.kind == "communication")
            later = [op for key in keys for op in waits.get(key, []) if op.step != number]
            found[number].append(RankTrace(rank.header, own + later, rank.complete))
    return {number: Trace(ranks=ranks, aligned=trace.aligned) for number, ranks in found.items()}
