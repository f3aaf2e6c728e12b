"""Position in the script's loop from which each rank resumes, as a pure function of the ranks' records.

The code of a script after the update, such as that of an average of the weights, runs once for each step on every rank,
in one of three ways:

- A rank that has run it already continues at the top of the loop; so does one that copies the state after it.
- A rank that has computed the batch of the step, and takes the state before that code, returns from the block and runs
    it.
- Where nobody has run it yet and a rank has not computed the batch, as a spare, all ranks compute the batch once more
    without an update ("pass"). So they do where a failure has cut short what they do together in that code, such as an
    evaluation: it then meets on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from wirewise.runtime.recovery.decision import NOTHING, Phase, RankRecord, RecoveryDecision

__all__ = ["Continuation", "continuations"]


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """Resumption of one rank."""

    phase: Phase
    """State of the step that the rank holds."""
    sources: tuple[int, ...] = ()
    """Ranks to copy this state from, except parameters and their averages; empty to keep its own."""
    weights: tuple[int, ...] = ()
    """Ranks to copy parameters and their averages from; empty to keep its own."""
    then: Literal["top", "return", "pass"]
    """Point at which the script continues: the top of the loop, the code after the block, or a pass over the batch
    without an update."""


def continuations(records: Sequence[RankRecord], decision: RecoveryDecision) -> Mapping[int, Continuation]:
    """Continuation of each rank from the step of a decision.

    Args:
        records: Records of all ranks, as passed to `decide`.
        decision: Decision on them.
    """
    if any(action.kind == "load" for action in decision.actions):
        return {one.rank: Continuation(phase="after", then="top") for one in records}
    known = _Known(records, decision)
    cut = known.is_cut()
    if cut or not known.holders("after"):
        whole = not cut and all(map(known.has_computed, records))
        then: Literal["return", "pass"] = "return" if whole else "pass"
        return {one.rank: known.going_on(one, "before", then) for one in records}
    return {
        one.rank: known.going_on(one, "before", "return")
        if known.can_return(one)
        else known.going_on(one, "after", "top")
        for one in records
    }


class _Known:
    """State of ranks once they have acted on a decision."""

    def __init__(self, records: Sequence[RankRecord], decision: RecoveryDecision) -> None:
        self._records, self._decision = {one.rank: one for one in records}, decision
        self._held = {one.rank: _held(one, decision) for one in records}

    def holders(self, phase: Phase) -> tuple[int, ...]:
        """Ranks that have kept a phase of the step."""
        return tuple(rank for rank, phases in self._held.items() if phase in phases)

    def has_computed(self, record: RankRecord) -> bool:
        """Whether the script of a rank is at the end of the batch whose update leads to the step."""
        if record.committed_step == NOTHING or not record.complete:
            return False
        under_way = record.committed_step + ("after" in record.phases)
        return under_way == self._decision.step

    def is_cut(self) -> bool:
        """Whether a failure has cut short a collective in the code after the block, so that all repeat it."""
        cut = any(one.cut and self._live(one.rank) == "before" for one in self._records.values())
        return cut and all(
            self._live(one.rank) != "after" or not self._touched or self._weights(one, "before")
            for one in self._records.values()
        )

    def can_return(self, record: RankRecord) -> bool:
        """Whether a rank can run the code after the block although others have run it already."""
        held = self._held[record.rank]
        if "after" in held or not self.has_computed(record) or not self.holders("before"):
            return False
        # Weights that the code has changed would be changed by it once more.
        if not self._touched or self._live(record.rank) == "before":
            return True
        return "before" in self._replicas(record).values()

    def going_on(
        self, record: RankRecord, phase: Phase, then: Literal["top", "return", "pass"]
    ) -> Continuation:
        """Continuation of a rank in a phase."""
        sources = () if phase in self._held[record.rank] else self.holders(phase)
        return Continuation(phase=phase, sources=sources, weights=self._weights(record, phase), then=then)

    def _live(self, rank: int) -> Phase | None:
        """Phase of the parameters of a rank; none: it does not have them."""
        held = self._held[rank]
        return None if not held else "after" if "after" in held else "before"

    @property
    def _touched(self) -> bool:
        """Whether parameters differ between the phases."""
        return any(one.touches for one in self._records.values())

    def _replicas(self, record: RankRecord) -> dict[int, Phase]:
        """Other ranks with the parameters of a rank, and the phase of these."""
        return {
            rank: live
            for rank, one in self._records.items()
            if one.stage == record.stage and rank != record.rank and (live := self._live(rank)) is not None
        }

    def _weights(self, record: RankRecord, phase: Phase) -> tuple[int, ...]:
        own = self._live(record.rank)
        if own == phase or (own is not None and not self._touched):
            return ()
        replicas = self._replicas(record)
        same = tuple(rank for rank, live in replicas.items() if live == phase)
        return same if same or own is not None else tuple(replicas)


def _held(record: RankRecord, decision: RecoveryDecision) -> tuple[Phase, ...]:
    """Phases of the decision's step that a rank has once it has acted."""
    kind = decision.of(record.rank).kind
    if kind == "finish":
        return ("before",)
    if kind == "restore" and record.committed_step > decision.step:
        # What is taken back was begun at the top of the loop.
        return ("after",)
    return record.phases if kind in ("keep", "restore") else ()
