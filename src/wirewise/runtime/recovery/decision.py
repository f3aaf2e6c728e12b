"""Decision of every rank after a failure, as a pure function of what the survivors know.

Ranks all-gather their records and each evaluates `decide` on them, so all reach the same decision without further
messages. A step is identified by its resulting state: the initial state is that of step 0, and recomputing steps k to
T needs the messages of the steps [k, T).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from wirewise.errors import PeerError

__all__ = ["NOTHING", "Phase", "RankRecord", "RecoveryAction", "RecoveryDecision", "assign_spares", "decide"]

NOTHING = -1
"""Committed step of a process without state: a spare that has just taken a role, or whose copy was interrupted."""

Kind = Literal["keep", "finish", "restore", "copy", "recompute", "load"]
Edge = tuple[int, int]
Phase = Literal["before", "after"]
"""State of a step: "before" or "after" the script's own code that follows the update."""


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """State of one rank when a failure interrupts it."""

    rank: int
    stage: int = 0
    replica: int = 0
    committed_step: int = NOTHING
    """Last step of which it holds the complete state."""
    versions: tuple[int, ...] = ()
    """Step of each bucket's parameters: the committed one, or the next if its update has begun."""
    reduced: tuple[bool, ...] = ()
    """Whether each bucket's gradient for the next step is available, reduced over all ranks."""
    can_restore: bool = False
    """Whether the last update, begun or complete, can be undone."""
    exact: bool = True
    """Whether undoing it is bit-exact (buffers or a journal; arithmetic undo is not)."""
    digest: str = ""
    """Digest of the committed state; empty if there is none, as during an update."""
    phases: tuple[Phase, ...] = ("after",)
    """States of the committed step that are kept, the current one last."""
    complete: bool = False
    """Whether the script has completely computed the batch of the current step."""
    cut: bool = False
    """Whether a failure interrupted one of the script's own collectives after the block of the committed step."""
    touches: bool = False
    """Whether the script changes parameters after the block, such as by clamping them."""

    @property
    def begun(self) -> bool:
        """Whether an update has begun."""
        return any(version > self.committed_step for version in self.versions)

    def reachable(self) -> dict[int, Kind]:
        """Steps that the rank can reach by its own means, and how."""
        step = self.committed_step
        if step == NOTHING:
            return {}
        found: dict[int, Kind] = {}
        if not self.begun:
            found[step] = "keep"
            if self.can_restore and step > 0:
                found[step - 1] = "restore"
        elif self.can_restore:
            found[step] = "restore"
        there = zip(self.versions, self.reduced, strict=True)
        if self.versions and all(version > step or reduced for version, reduced in there):
            found[step + 1] = "finish"
        return found


class RecoveryAction(msgspec.Struct, frozen=True, kw_only=True):
    """Action of one rank."""

    rank: int
    kind: Kind
    """Kind of action. "keep": none. "finish": complete the update from reduced gradients. "restore": roll back the
    last update. "copy": copy the state from `sources`. "recompute": load the checkpoint of `from_step`, then recompute
    the steps up to the decision's from logged messages. "load": load the checkpoint of `from_step`."""
    sources: tuple[int, ...] = ()
    """Ranks whose state is copied, all of which hold the state of the decision's step after their own actions."""
    from_step: int = NOTHING
    """Step of the checkpoint to load."""


class RecoveryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Actions of all ranks after a failure."""

    step: int
    """Step whose state all ranks have afterwards."""
    actions: tuple[RecoveryAction, ...]
    """Actions in rank order, one for each rank that has a process."""
    vacant: tuple[int, ...] = ()
    """Ranks without a process, whose work the others share."""
    units: tuple[tuple[int, ...], ...] = ()
    """Stages that recompute together; messages between them are sent, those from other stages are read from logs."""

    def of(self, rank: int) -> RecoveryAction:
        """Get the action of a rank."""
        return next(action for action in self.actions if action.rank == rank)

    @property
    def strategy(self) -> Literal["none", "replica", "log", "checkpoint"]:
        """Most expensive recovery strategy that any rank needs."""
        kinds = {action.kind for action in self.actions}
        if "load" in kinds:
            return "checkpoint"
        if "recompute" in kinds:
            return "log"
        return "replica" if "copy" in kinds else "none"


def assign_spares(dead: Mapping[int, int], living: Iterable[int], spares: int) -> tuple[int, ...]:
    """Dead ranks to be replaced by spares: those of stages with the fewest live replicas first.

    Args:
        dead: Stage of each rank without a process.
        living: Stage of each rank with one.
        spares: Number of spares.
    """
    replicas: dict[int, int] = defaultdict(int)
    for stage in living:
        replicas[stage] += 1
    left, taken = dict(dead), list[int]()
    while left and len(taken) < spares:
        rank = min(left, key=lambda one: (replicas[left[one]], one))
        replicas[left.pop(rank)] += 1
        taken.append(rank)
    return tuple(sorted(taken))


def decide(
    records: Iterable[RankRecord],
    dead: Mapping[int, int] | None = None,
    checkpoints: Mapping[int, Sequence[int]] | None = None,
    logs: Mapping[Edge, tuple[int, int]] | None = None,
    spares: int = 0,
) -> RecoveryDecision:
    """Decide the step from which all ranks resume, and each rank's action to get there.

    The step is the highest among those with the fewest stages to recompute. Without rolling all back to a checkpoint,
    it is never below the last step committed by all ranks. Replicas are preferred to logs, and logs to a checkpoint
    of all stages.

    Args:
        records: Records of all ranks that have a process, including spares that have taken a role.
        dead: Stage of each rank that has no process.
        checkpoints: Steps of the durable checkpoints of each stage.
        logs: Logged steps [low, high) of each edge, from the sending stage to the receiving one; (0, 0) if not
            logged.
        spares: Number of processes available for the roles of dead ranks.

    Raises:
        PeerError: A stage has no process and no spare, replicas of a stage differ, or no state is left to resume
            from.
    """
    known = sorted(records, key=lambda record: record.rank)
    checkpoints, logs, dead = checkpoints or {}, logs or {}, dead or {}
    _check_replicas(known)
    taken = assign_spares(dead, [record.stage for record in known], spares)
    known += [RankRecord(rank=rank, stage=dead[rank]) for rank in taken]
    vacant = tuple(sorted(set(dead) - set(taken)))
    known.sort(key=lambda record: record.rank)
    stages = sorted({record.stage for record in known})
    if missing := sorted(set(dead.values()) - set(stages)):
        raise PeerError(
            f"stage {missing[0]} has no process left and there are {spares} spares for ranks {sorted(dead)}; "
            "expected one at least: start another host or more spares"
        )
    ways = {record.rank: record.reachable() for record in known}
    steps = {stage: {s for r in known if r.stage == stage for s in ways[r.rank]} for stage in stages}
    lost = {step: {s for s in stages if step not in steps[s]} for step in set().union(*steps.values())}
    for step in sorted(lost, key=lambda one: (len(lost[one]), -one)):
        units = _units(lost[step], step, checkpoints, logs)
        if units is not None and sum(map(len, units)) < len(stages):
            starts = {stage: _start(unit, step, checkpoints) for unit in units for stage in unit}
            actions = tuple(_action(record, step, known, starts) for record in known)
            return RecoveryDecision(step=step, actions=actions, vacant=vacant, units=units)
    start = _start(tuple(stages), max(lost, default=None), checkpoints)
    if start == NOTHING:
        gone = [stage for stage in stages if not steps[stage]] or stages
        raise PeerError(
            f"the state of stages {gone} is lost and no checkpoint "
            f"is whole for stages {stages} (found {dict(checkpoints)}); start the training again, with checkpoints"
        )
    loads = tuple(RecoveryAction(rank=record.rank, kind="load", from_step=start) for record in known)
    return RecoveryDecision(step=start, actions=loads, vacant=vacant)


def _check_replicas(records: Iterable[RankRecord]) -> None:
    seen: dict[tuple[int, int, Phase], RankRecord] = {}
    for record in records:
        if record.digest and not record.begun:
            # A script may change parameters itself, such as to clamp them, so replicas are alike in one phase.
            first = seen.setdefault((record.stage, record.committed_step, record.phases[-1]), record)
            if first.digest != record.digest:
                raise PeerError(
                    f"ranks {first.rank} and {record.rank} hold different states of step {record.committed_step} "
                    f"(digests {first.digest} and {record.digest}); replicas must be equal: look for an operation that "
                    "is not deterministic, and start again from a checkpoint"
                )


def _start(unit: Sequence[int], step: int | None, checkpoints: Mapping[int, Sequence[int]]) -> int:
    """Newest checkpoint up to a step that all stages of a unit have."""
    common = set.intersection(*(set(checkpoints.get(stage, ())) for stage in unit))
    return max((k for k in common if step is None or k <= step), default=NOTHING)


def _units(
    lost: set[int], step: int, checkpoints: Mapping[int, Sequence[int]], logs: Mapping[Edge, tuple[int, int]]
) -> tuple[tuple[int, ...], ...] | None:
    """Stages that recompute together up to a step; None where a checkpoint is missing.

    Lost stages that are neighbours are one unit. One whose incoming messages are not logged takes the sender in.
    """
    again = set(lost)
    while True:
        units = _components(again, logs)
        for unit in units:
            start = _start(unit, step, checkpoints)
            if start == NOTHING:
                return None
            needed = {
                source
                for (source, target), (low, high) in logs.items()
                if target in unit and source not in unit and start < step and not low <= start < step <= high
            }
            if needed:
                again |= needed
                break
        else:
            return units


def _components(stages: set[int], edges: Iterable[Edge]) -> tuple[tuple[int, ...], ...]:
    group = {stage: {stage} for stage in stages}
    for one, other in edges:
        if one in group and other in group and group[one] is not group[other]:
            joined = group[one] | group[other]
            for stage in joined:
                group[stage] = joined
    return tuple(sorted({tuple(sorted(unit)) for unit in group.values()}))


def _action(
    record: RankRecord, step: int, records: Sequence[RankRecord], starts: Mapping[int, int]
) -> RecoveryAction:
    if record.stage in starts:
        return RecoveryAction(rank=record.rank, kind="recompute", from_step=starts[record.stage])
    sources = _sources([other for other in records if other.stage == record.stage], step)
    if record.rank in sources:
        return RecoveryAction(rank=record.rank, kind=record.reachable()[step])
    return RecoveryAction(rank=record.rank, kind="copy", sources=sources)


def _sources(replicas: Sequence[RankRecord], step: int) -> tuple[int, ...]:
    """Replicas that come to a step out of themselves, with the same bits on all.

    Where all would have to undo inexactly, the one with the least to undo does it and the others copy from it.
    """
    able = [record for record in replicas if step in record.reachable()]
    exact = [r.rank for r in able if r.exact or r.reachable()[step] != "restore"]
    if exact:
        return tuple(exact)
    least = min(able, key=lambda r: (sum(v > step for v in r.versions), r.rank))
    return (least.rank,)
