"""Agreement of the ranks of a new generation on a step and on actions, from the states that each holds."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

import msgspec

from wirewise.errors import InputError, PeerError
from wirewise.runtime.recovery.decision import NOTHING, RankRecord, RecoveryDecision, decide
from wirewise.runtime.recovery.generations import Generation
from wirewise.runtime.recovery.phases import continuations

__all__ = ["decide_generation"]


def decide_generation(
    records: Sequence[RankRecord], saved: Sequence[int], generation: Generation, built: Collection[str]
) -> tuple[Sequence[RankRecord], RecoveryDecision]:
    """Decide from the rank records, after treating the initial state as step 0; returns both."""
    shards = sorted({record.stage for record in records})
    held = {record.stage for record in records if record.committed_step != NOTHING}
    if gone := set(shards) - held:
        trained = max(generation.committed_step, *(record.committed_step for record in records))
        if not saved and trained > 0:
            raise PeerError(
                f"all replicas of the state were lost, after step {trained} at least, and there is no checkpoint that "
                "all ranks have; all is lost: start again, with protect(checkpoints=FOLDER)"
            )
        if not saved and len(built) > 1:
            raise InputError(
                "ranks have built models of other values, of which each would keep its shards; expected one model: "
                "seed torch alike before it is built"
            )
        if not saved:
            firsts = {min(one.rank for one in records if one.stage == stage) for stage in gone}
            records = [
                msgspec.structs.replace(one, committed_step=0) if one.rank in firsts else one
                for one in records
            ]
        elif trained > max(saved):
            warnings.warn(
                f"all replicas of the state were lost; training resumes from the checkpoint of step {max(saved)}, what "
                f"was computed after it, up to step {trained} at least, is computed again",
                RuntimeWarning,
                stacklevel=2,
            )
        if saved:
            # What is left of other shards is of no use without these.
            records = [RankRecord(rank=one.rank, stage=one.stage) for one in records]
    vacant = {rank: 0 for rank in range(generation.world_size) if rank not in generation.workers}
    decision = decide(records, dead=vacant, checkpoints=dict.fromkeys(shards, saved))
    if not any(one.cut for one in records) and _needs_pass(records, decision):
        # Gradients that are there are given up: nobody has begun the update, and its batch comes again for all.
        earlier = [msgspec.structs.replace(one, reduced=(False,) * len(one.reduced)) for one in records]
        before = decide(earlier, dead=vacant, checkpoints=dict.fromkeys(shards, saved))
        if before.step == decision.step - 1 and not before.units and not _needs_pass(earlier, before):
            return earlier, before
    return records, decision


def _needs_pass(records: Sequence[RankRecord], decision: RecoveryDecision) -> bool:
    return any(one.then == "pass" for one in continuations(records, decision).values())
