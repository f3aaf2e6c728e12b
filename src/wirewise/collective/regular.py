"""Programs as a rule: the transfers of a few ranks, which all others repeat, rotated.

A ring of 4,096 ranks has 33 million transfers, all alike. Rotation by a period maps each rank, block and message of a
regular program to another one of it; one message therefore stands for its whole class, and a proof for the ranks of
one period, step by step, holds for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from wirewise.collective.builders import BUILDERS
from wirewise.collective.builders.draft import RankGroup
from wirewise.collective.program import Message, Program, Transfer
from wirewise.collective.relations import Collective
from wirewise.decoding import decode_json
from wirewise.errors import ProgramError

__all__ = ["REGULAR", "RegularProgram", "loads", "regular"]

REGULAR: tuple[tuple[Collective, str], ...] = tuple(
    (of, name)
    for of, name in BUILDERS
    if of in ("all_gather", "reduce_scatter", "all_reduce")
    and name in ("ring", "bruck", "hierarchical", "hierarchical_bruck")
)
"""Collectives and algorithms that a rule can express."""


class RegularProgram(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="regular_program",
    tag_field="kind",
):
    """Program in which rank r + `period` repeats rank r, with blocks `period` ranks further on.

    Raises:
        ProgramError: A collective, group, number of chunks or period cannot be rotated; the message names it.
    """

    rule: Program
    """Program with a single transfer of each class."""
    period: int
    """Number of ranks after which transfers repeat, such as those of a host; it divides the number of ranks."""

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise ProgramError(f"regular program {self.rule.name!r}: {fault}")

    def _faults(self) -> Iterator[str]:
        rule = self.rule
        if rule.collective not in {of for of, _ in REGULAR}:
            yield f"got {rule.collective}; expected all_gather, reduce_scatter or all_reduce"
        if rule.members or rule.shares:
            yield "got members or shares; expected all ranks and equal chunks"
        if self.period < 1 or rule.ranks % self.period:
            yield f"got a period of {self.period} ranks; expected a divisor of {rule.ranks}"
        if rule.chunks % rule.ranks:
            yield f"got {rule.chunks} chunks; expected a multiple of the {rule.ranks} ranks"

    @property
    def name(self) -> str:
        """Name of the algorithm."""
        return self.rule.name

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.rule.ranks

    @property
    def segments(self) -> int:
        """Pipelined parts of each chunk."""
        return self.rule.segments

    @property
    def turn_chunks(self) -> int:
        """Chunks by which a rotation of one period shifts each chunk."""
        return self.rule.chunks // self.rule.ranks * self.period

    def rotate(self, t: Transfer, turns: int) -> Transfer:
        """Transfer of the same class, `turns` periods further on."""
        ranks, by = self.ranks, turns * self.period
        chunk = (t.chunk + turns * self.turn_chunks) % self.rule.chunks
        return Transfer(chunk, (t.source + by) % ranks, (t.target + by) % ranks, t.step, t.reduces)

    def by_source(self) -> Program:
        """One transfer of each class, from a rank of the first period."""
        own = tuple(self.rotate(t, -(t.source // self.period)) for t in self.rule.transfers)
        return msgspec.structs.replace(self.rule, transfers=own)

    def by_target(self) -> Program:
        """One transfer of each class, to a rank of the first period."""
        own = tuple(self.rotate(t, -(t.target // self.period)) for t in self.rule.transfers)
        return msgspec.structs.replace(self.rule, transfers=own)

    def changed(self, **fields: Any) -> RegularProgram:
        """Rule with another name or another number of segments."""
        return msgspec.structs.replace(self, rule=msgspec.structs.replace(self.rule, **fields))

    def expand(self) -> Program:
        """Program with all transfers expanded."""
        turns = range(self.ranks // self.period)
        found = tuple(self.rotate(t, turn) for t in self.rule.transfers for turn in turns)
        return msgspec.structs.replace(self.rule, transfers=found)

    def messages(self) -> list[Message]:
        """One message of each class, from the ranks of the first period, by step, source and target."""
        return self.by_source().messages()

    def messages_of(self, rank: int) -> list[tuple[int, Message]]:
        """Messages of a rank in the order of steps, each with the index of its class in `messages`."""
        found = []
        for number, message in enumerate(self.messages()):
            # A message within one period can be both what the rank sends and, turned, what it receives.
            for end in {message.source, message.target}:
                turns, rest = divmod(rank - end, self.period)
                if not rest:
                    own = tuple(self.rotate(t, turns) for t in message.transfers)
                    found.append((number, Message(message.step, own[0].source, own[0].target, own)))
        return sorted(found, key=lambda one: one[1][:3])

    def to_json(self) -> str:
        """The rule as JSON text; `loads` reads it back equal."""
        return msgspec.json.encode(self).decode()


def loads(text: str | bytes) -> RegularProgram:
    """Read a regular program from JSON.

    Raises:
        ProgramError: The text is not JSON, another kind of record, or has a value out of range; the message names the
            path.
    """
    try:
        return decode_json(text, RegularProgram)
    except msgspec.DecodeError as error:
        raise ProgramError(
            f"cannot read a regular program: {error}; expected JSON written by `RegularProgram.to_json`"
        ) from error


def regular(
    collective: Collective, algorithm: str, ranks: int, *, period: int = 1, segments: int = 1
) -> RegularProgram:
    """Build the rule of a known algorithm.

    Args:
        collective: Name of the collective.
        algorithm: Algorithm in `REGULAR` for the collective.
        ranks: Number of ranks.
        period: Ranks per host, which are consecutive; for hierarchical algorithms, and for networks that look the
            same only from each host.
        segments: Pipelined parts of each chunk.

    Raises:
        ProgramError: The algorithm has no rule, or the period does not divide the ranks.
    """
    if (collective, algorithm) not in REGULAR:
        known = ", ".join(f"{name} of {of}" for of, name in REGULAR)
        raise ProgramError(
            f"got the algorithm {algorithm!r} of {collective}; expected one with a rule: {known}"
        )
    if ranks < 1 or period < 1 or ranks % period:
        raise ProgramError(f"got {ranks} ranks with a period of {period}; expected a divisor of the ranks")
    hosts = tuple(tuple(range(first, first + period)) for first in range(0, ranks, period))
    draft = BUILDERS[collective, algorithm](RankGroup(ranks, hosts=hosts, repeats=period))
    rule = Program(
        name=algorithm,
        collective=collective,
        ranks=ranks,
        chunks=draft.chunks,
        transfers=tuple(draft.transfers),
        segments=segments,
    )
    return RegularProgram(rule=rule, period=period)
