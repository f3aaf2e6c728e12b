"""Replay of a trace, its links and its interference fitted from the trace itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from wirewise.cost.interfaces import Links
from wirewise.cost.traces import fit_links, interference_of
from wirewise.errors import InputError
from wirewise.sim.steps import RecordedStep, ReplayReport, replay_steps
from wirewise.sim.whatif import Change, parse
from wirewise.trace.arrays import Dataflow
from wirewise.trace.records import Trace

__all__ = ["recorded_steps", "replay_trace"]


def recorded_steps(trace: Trace, build: Callable[[Trace, int], Dataflow]) -> list[RecordedStep]:
    """Graph and measured times of every step that all ranks have.

    Args:
        trace: On aligned clocks.
        build: Makes the graph of a step.

    Raises:
        InputError: No such step.
    """
    found = []
    for number in trace.steps():
        begin, end = [], []
        for rank in range(trace.world_size):
            ops = trace.of(rank, number)
            own = [op for op in ops if op.kind == "step"] or ops
            begin.append(min(op.start_s for op in own))
            end.append(max(op.end_s for op in own))
        found.append(RecordedStep(number, build(trace, number), np.array(begin), np.array(end)))
    if not found:
        raise InputError("got a trace without a step that all ranks have; record at least one whole step")
    return found


def replay_trace(
    trace: Trace,
    build: Callable[[Trace, int], Dataflow],
    links: Links | None = None,
    *,
    what_if: str | Sequence[Change] = (),
    interference: float | None = None,
) -> ReplayReport:
    """Replay every recorded step (`replay_steps`).

    Args:
        trace: On aligned clocks.
        build: Makes the graph of a step.
        links: Of the hosts; none: fitted from the trace.
        what_if: Changes, as text (`whatif.parse`) or parsed.
        interference: Factor by which compute slows down beside communication; none: fitted from the trace, 1
            where it cannot be told.
    """
    changes = parse(what_if) if isinstance(what_if, str) else what_if
    factor = interference if interference is not None else interference_of(trace)
    return replay_steps(
        recorded_steps(trace, build),
        fit_links(trace) if links is None else links,
        interference=factor or 1.0,
        what_if=changes,
    )
