"""Dependences between the messages of a program, in arrays of size linear in the number of transfers.

A cell is a chunk at a rank. The writes of one step to a cell form a group: they wait until the previous group has
arrived, and until every read of the cell up to their step has been sent. A read waits for the last group of a lower
step. Gates stand for "the group has arrived" and "earlier reads are sent", so that n reads of m writes cost n + m
entries instead of n times m.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.program import Program
from wirewise.collective.regular import RegularProgram

__all__ = ["Dependences", "Rows", "dependences"]

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """Lists of numbers, concatenated: list i is `items[first[i]:first[i + 1]]`."""

    first: Ints
    items: Ints


class Dependences(NamedTuple):
    """Messages [M], their transfers [T], and gates [G] between them.

    Messages are ordered by step, then by distance round the ranks, so that sending in this order spreads a rank's
    messages over all others.
    """

    place: Ints
    """Index of each message in `Program.messages`, [M]."""

    source: Ints
    """Sender of each message, [M]."""
    target: Ints
    """Receiver of each message, [M]."""
    message: Ints
    """Index of the message of each transfer, ascending, [T]."""
    chunk: Ints
    """Chunk of each transfer, [T]."""
    reduces: NDArray[np.bool_]
    """Whether the receiver reduces the chunk into its own value, for each transfer, [T]."""
    send_waits: Ints
    """Number of gates that block the send of a message, [M]."""
    receive_waits: Ints
    """Number of gates that block the receive of a message, [M]."""
    gate_waits: Ints
    """Number of messages that a gate waits for, [G]."""
    by_send: Rows
    """Gates that count a message when its sending starts, by message."""
    by_receive: Rows
    """Gates that count a message when it is received, by message."""
    sends: Rows
    """Sends released by each gate."""
    receives: Rows
    """Receives released by each gate."""


def dependences(program: Program | RegularProgram, in_rounds: bool = False) -> Dependences:
    """Dependences of sends and receives, without message order and channel capacity.

    Args:
        program: Program to analyse; of a regular one, one message per class, from ranks of the first period, so that
            a cell stands for its class, too.
        in_rounds: Whether all sends of a step also wait until all messages of the previous step are received.
    """
    if isinstance(program, RegularProgram):
        period, turn_chunks, program = program.period, program.turn_chunks, program.by_source()
    else:
        period, turn_chunks = program.ranks, 0
    rows = [
        (t.step, (t.target - t.source) % program.ranks, t.source, t.target, t.chunk, t.reduces)
        for t in program.transfers
    ]
    table = np.array(rows, np.int64).reshape(-1, 6)
    step, _, source, target, chunk, reduces = table[np.lexsort(table[:, 4::-1].T)].T
    first = np.ones(len(step), bool)
    first[1:] = (np.diff(step) != 0) | (np.diff(source) != 0) | (np.diff(target) != 0)
    message = np.cumsum(first) - 1
    steps = program.steps
    reads = (source * program.chunks + chunk) * steps + step
    turns, place = np.divmod(target, period)
    writes = (place * program.chunks + (chunk - turns * turn_chunks) % program.chunks) * steps + step
    groups, group_of = np.unique(writes, return_inverse=True)
    n, g = int(first.sum()), len(groups)
    after = np.searchsorted(groups, reads, "left")
    has_before = _same_cell(groups, after - 1, reads, steps)
    has_after = _same_cell(groups, after, reads, steps)
    follows = _same_cell(groups, group_of - 1, writes, steps)
    read_before = np.bincount(after[has_after], minlength=g) > 0
    waits_for_reads = read_before[group_of]
    sends = (after[has_before] - 1, message[has_before])
    receives = _joined(
        (group_of[follows] - 1, message[follows]),
        (g + group_of[waits_for_reads], message[waits_for_reads]),
    )
    by_send, by_receive = (message[has_after], g + after[has_after]), (message, group_of)
    gates = 2 * g
    if in_rounds:
        _, round_ = np.unique(step[first], return_inverse=True)
        later = np.flatnonzero(round_ > 0)
        sends = _joined(sends, (gates + round_[later] - 1, later))
        by_receive = _joined(by_receive, (np.arange(n), gates + round_))
        gates += round_.max(initial=-1) + 1
    return Dependences(
        place=_places(step[first], source[first], target[first]),
        source=source[first],
        target=target[first],
        message=message,
        chunk=chunk,
        reduces=reduces.astype(bool),
        send_waits=np.bincount(sends[1], minlength=n),
        receive_waits=np.bincount(receives[1], minlength=n),
        gate_waits=np.bincount(np.concatenate((by_send[1], by_receive[1])), minlength=gates),
        by_send=_rows(*by_send, n),
        by_receive=_rows(*by_receive, n),
        sends=_rows(*sends, gates),
        receives=_rows(*receives, gates),
    )


def _places(step: Ints, source: Ints, target: Ints) -> Ints:
    """Where messages stand by step, source and target."""
    places = np.empty(len(step), np.int64)
    places[np.lexsort((target, source, step))] = np.arange(len(step))
    return places


def _joined(a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    return np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1]))


def _same_cell(groups: Ints, place: Ints, use: Ints, steps: int) -> NDArray[np.bool_]:
    """Whether there is a group of writes at a place, and it is of the cell that is used."""
    inside = (place >= 0) & (place < len(groups))
    found = np.zeros(len(place), bool)
    found[inside] = groups[place[inside]] // steps == use[inside] // steps
    return found


def _rows(row: Ints, item: Ints, rows: int) -> Rows:
    first = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows))))
    return Rows(first.astype(np.int64), item[np.argsort(row, kind="stable")].astype(np.int64))
