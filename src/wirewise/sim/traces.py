"""Replay of a trace, its links and its interference fitted from the trace itself."""

from __future__ import annotations

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
from wirewise.trace.records import Trace
from wirewise.trace.split import split

__all__ = ["Recording", "record", "recorded_steps", "replay_trace"]

Build = Callable[[Trace, int], Dataflow]


class Recording(NamedTuple):
    """What a replay of a trace needs, to replay it with many changes."""

    steps: list[RecordedStep]
    links: Links
    interference: float


def recorded_steps(trace: Trace, build: Build | None = None) -> list[RecordedStep]:
    """Graph and measured times of every step that all ranks have.

    Args:
        trace: On aligned clocks.
        build: Makes the graph of a step; none: `trace.dataflow.build`.

    Raises:
        InputError: No such step.
    """
    matches = [] if build else match(trace)
    found = []
    for number, part in split(trace).items():
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
) -> Recording:
    """Steps, links and interference of a trace; arguments as of `replay_trace`."""
    factor = interference if interference is not None else interference_of(trace)
    return Recording(
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
        trace: On aligned clocks.
        build: Makes the graph of a step; none: `trace.dataflow.build`.
        links: Links of the hosts; none: fitted from the trace.
        what_if: Changes, as text (`whatif.parse`) or parsed.
        interference: Factor by which compute slows down beside communication; none: fitted from the trace, 1
            where it cannot be told.

    Raises:
        InputError: No step that all ranks have, a change that is not understood or does not fit the job, or
            clocks that are not aligned.
    """
    changes = parse(what_if) if isinstance(what_if, str) else what_if
    found = record(trace, build, links, interference=interference)
    return replay_steps(found.steps, found.links, interference=found.interference, what_if=changes)
