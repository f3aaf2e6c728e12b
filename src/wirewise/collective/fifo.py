"""Deadlock check for ranks that run a program in a given order over channels of bounded capacity.

A worker, such as a thread block or a thread, runs its acts in order. An act is the send or the receive of a message.
A send waits for its value, then for room in the channel between the two ranks. A receive waits for its message, then
until the rank has sent what it overwrites and received what earlier steps write there.

Workers that run their acts by segment and step, sends before receives, never deadlock: whatever an act waits for
comes before it in that order, so the first remaining act can always run. Other orders must be checked.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from wirewise.collective.dependences import Rows, dependences
from wirewise.collective.program import Message, Program
from wirewise.errors import ProgramError

__all__ = ["SegmentOp", "Worker", "deadlocked_messages"]


class SegmentOp(NamedTuple):
    """Send or receive of one segment of a message."""

    message: int
    """Index in `Program.messages`."""
    sends: bool
    segment: int = 0


Worker = Sequence[SegmentOp]
"""Acts of one rank in the order in which they run."""


def deadlocked_messages(program: Program, workers: Sequence[Worker], capacity: int) -> list[str]:
    """Messages that deadlock if a channel holds `capacity` messages; empty if the program always terminates.

    Acts only enable others, so every execution order reaches the same final state, and one run decides. Time and
    memory are linear in transfers times segments.

    Raises:
        ProgramError: Acts are missing or run twice, two workers serve one end of a channel, or the capacity is 0.
    """
    if capacity < 1:
        raise ProgramError(f"got channels of {capacity} messages; expected at least 1")
    messages = program.messages()
    numbers = [[_number(program, len(messages), act) for act in worker] for worker in workers]
    _check_all_once([n for worker in numbers for n in worker], 2 * len(messages) * program.segments)
    channels = _channels(messages, workers)
    crossed = _crossed(messages, channels)
    if crossed:
        return crossed
    waits, wakes = _data_waits(program, len(messages))
    _order_waits(numbers, channels, len(messages), capacity, waits, wakes)
    done = _run(waits, wakes)
    heads = [next((k for k, n in enumerate(ns) if not done[n]), None) for ns in numbers]
    left = [worker[k] for worker, k in zip(workers, heads, strict=True) if k is not None]
    return [_name(messages[act.message], act, capacity) for act in left[:8]]


def _number(program: Program, messages: int, act: SegmentOp) -> int:
    if not (0 <= act.message < messages and 0 <= act.segment < program.segments):
        raise ProgramError(
            f"got {act}; expected messages below {messages} and segments below {program.segments}"
        )
    return 2 * (act.segment * messages + act.message) + (not act.sends)


def _check_all_once(numbers: list[int], acts: int) -> None:
    counts = np.bincount(np.array(numbers, np.int64), minlength=acts)
    if (counts != 1).any():
        raise ProgramError(
            f"workers leave out {int((counts == 0).sum())} of {acts} acts and run {int((counts > 1).sum())} more "
            "than once; expected each send and each receive of each segment once"
        )


class _Channel(NamedTuple):
    sent: list[SegmentOp]
    received: list[SegmentOp]


def _channels(messages: list[Message], workers: Sequence[Worker]) -> dict[tuple[int, int], _Channel]:
    """Acts at both ends of each channel, in the order of their workers."""
    found: dict[tuple[int, int], _Channel] = defaultdict(lambda: _Channel([], []))
    at_end: dict[tuple[int, int, bool], int] = {}
    for number, worker in enumerate(workers):
        for act in worker:
            pair = (messages[act.message].source, messages[act.message].target)
            if at_end.setdefault((*pair, act.sends), number) != number:
                raise ProgramError(
                    f"two workers {'send' if act.sends else 'receive'} on the channel from rank {pair[0]} to "
                    f"{pair[1]}, so that its order is open; expected one"
                )
            found[pair][not act.sends].append(act)
    return found


def _crossed(messages: list[Message], channels: dict[tuple[int, int], _Channel]) -> list[str]:
    """Receivers that expect another message than the one that comes."""
    found = []
    for (source, target), channel in channels.items():
        for sent, received in zip(*channel, strict=True):
            if (sent.message, sent.segment) != (received.message, received.segment):
                steps = (messages[received.message].step, messages[sent.message].step)
                found.append(
                    f"rank {target} expects the message of step {steps[0]} (segment {received.segment}) from rank "
                    f"{source}, which sends that of step {steps[1]} (segment {sent.segment}) first"
                )
                break
    return found[:8]


Waits = list[int]
"""Number of acts and gates that each act, and each gate after the acts, waits for."""
Wakes = list[list[int]]
"""Acts and gates that each of them wakes."""


def _data_waits(program: Program, messages: int) -> tuple[Waits, Wakes]:
    """Messages that wait for values, by `dependences`, in each segment."""
    found = dependences(program)
    acts, gates = 2 * messages * program.segments, len(found.gate_waits)
    waits: Waits = [0] * (acts + gates * program.segments)
    wakes: Wakes = [[] for _ in waits]
    for segment in range(program.segments):
        first_act, first_gate = 2 * segment * messages, acts + segment * gates
        for rows, receives, to_gate in (
            (found.by_send, 0, True),
            (found.by_receive, 1, True),
            (found.sends, 0, False),
            (found.receives, 1, False),
        ):
            for row, item in _pairs(rows):
                message, gate = (row, item) if to_gate else (item, row)
                act, gate = first_act + 2 * int(found.place[message]) + receives, first_gate + gate
                a, b = (act, gate) if to_gate else (gate, act)
                wakes[a].append(b)
                waits[b] += 1
    return waits, wakes


def _pairs(rows: Rows) -> Iterable[tuple[int, int]]:
    row = np.repeat(np.arange(len(rows.first) - 1), np.diff(rows.first))
    return zip(row.tolist(), rows.items.tolist(), strict=True)


def _order_waits(
    numbers: list[list[int]],
    channels: dict[tuple[int, int], _Channel],
    messages: int,
    capacity: int,
    waits: Waits,
    wakes: Wakes,
) -> None:
    """Add who waits for its worker, for its message and for room."""

    def after(first: int, second: int) -> None:
        wakes[first].append(second)
        waits[second] += 1

    for worker in numbers:
        for first, second in itertools.pairwise(worker):
            after(first, second)
    for channel in channels.values():
        sends = [2 * (act.segment * messages + act.message) for act in channel.sent]
        for send in sends:
            after(send, send + 1)
        for taken, send in zip(sends, sends[capacity:], strict=False):
            after(taken + 1, send)


def _run(waits: Waits, wakes: Wakes) -> list[bool]:
    """Whether each act and gate gets done."""
    ready = deque(n for n, count in enumerate(waits) if count == 0)
    done = [False] * len(waits)
    while ready:
        here = ready.popleft()
        done[here] = True
        for other in wakes[here]:
            waits[other] -= 1
            if waits[other] == 0:
                ready.append(other)
    return done


def _name(message: Message, act: SegmentOp, capacity: int) -> str:
    m, part = message, f"its message of step {message.step} (segment {act.segment})"
    if act.sends:
        return f"rank {m.source} waits for ever to send {part} to rank {m.target}, with channels of {capacity} messages"
    return f"rank {m.target} waits for ever for rank {m.source} to send {part}"
