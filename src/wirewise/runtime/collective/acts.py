"""One rank's part in a program: its sends and receives, and their dependences.

Only the dependences of the program's semantics (`wirewise.collective.program`) are kept: a chunk is sent when the
writes of earlier steps have arrived, and written when the value it replaces has been sent. Reductions into a chunk
may run in any order, unless they must be deterministic.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from wirewise.collective import Program

__all__ = ["Acts", "MessageAct", "acts_of"]


class MessageAct(NamedTuple):
    """Send or receive of one message."""

    message: int
    """Index of the message in `Program.messages`, the same at both ends."""
    peer: int
    sends: bool
    chunks: tuple[int, ...]
    reduces: tuple[bool, ...]


class Acts(NamedTuple):
    """All acts of a rank; those of a segment depend only on others of it."""

    acts: tuple[MessageAct, ...]
    waits: tuple[int, ...]
    """Number of acts that each act depends on."""
    wakes: tuple[tuple[int, ...], ...]
    """Acts that depend on each act."""
    receiving: dict[int, int]
    """Act that receives a message, by the message's number."""
    written: frozenset[int]
    """Chunks received by this rank."""


class _Use(NamedTuple):
    """A chunk is read (sent) or written (received) by an act."""

    step: int
    writes: bool
    peer: int
    act: int
    reduces: bool


def acts_of(program: Program, rank: int, *, deterministic: bool = False) -> Acts:
    """Derive the acts of a rank.

    Args:
        program: Program to execute.
        rank: Rank that executes the acts.
        deterministic: Reduce in the order of steps and ranks, regardless of arrival order.
    """
    acts: list[MessageAct] = []
    uses: dict[int, list[_Use]] = defaultdict(list)
    for number, message in enumerate(program.messages()):
        if rank not in (message.source, message.target):
            continue
        sends = message.source == rank
        peer = message.target if sends else message.source
        for t in message.transfers:
            uses[t.chunk].append(_Use(t.step, not sends, peer, len(acts), t.reduces))
        chunks, reduces = zip(*((t.chunk, t.reduces) for t in message.transfers), strict=True)
        acts.append(MessageAct(number, peer, sends, chunks, reduces))
    befores: list[set[int]] = [set() for _ in acts]
    for found in uses.values():
        _order(sorted(found), befores, deterministic)
    wakes: list[list[int]] = [[] for _ in acts]
    for act, before in enumerate(befores):
        for other in before:
            wakes[other].append(act)
    return Acts(
        tuple(acts),
        tuple(len(before) for before in befores),
        tuple(map(tuple, wakes)),
        {act.message: number for number, act in enumerate(acts) if not act.sends},
        frozenset(chunk for act in acts if not act.sends for chunk in act.chunks),
    )


def _order(uses: Sequence[_Use], befores: list[set[int]], deterministic: bool) -> None:
    """Order the uses of one chunk: reads of a step come before its writes."""
    reads: list[int] = []
    additions: list[int] = []
    copy: list[int] = []
    for _, found in itertools.groupby(uses, key=lambda use: use.step):
        now = list(found)
        for use in now:
            if not use.writes:
                befores[use.act].update(copy, additions)
        reads += [use.act for use in now if not use.writes]
        for use in now:
            if use.writes and use.reduces:
                befores[use.act].update(reads, copy, additions[-1:] if deterministic else ())
                additions.append(use.act)
            elif use.writes:
                befores[use.act].update(reads, copy, additions)
                reads, additions, copy = [], [], [use.act]
