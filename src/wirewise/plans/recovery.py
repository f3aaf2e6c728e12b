"""Recovery of a job from the loss of a rank: sources of lost state, and data kept for it during training."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from math import isfinite
from typing import ClassVar, Literal, get_args

import msgspec

from wirewise.errors import PlanError
from wirewise.plans.base import Plan

__all__ = [
    "CONSISTENCIES",
    "FrontPoint",
    "LogTier",
    "MessageLog",
    "PricedPolicy",
    "RecoveryPhases",
    "RecoveryPlan",
    "RecoveryStrategy",
    "StageRecovery",
]

RecoveryStrategy = Literal["replica", "log", "checkpoint"]
"""Source of a lost stage's state: a surviving replica; the last checkpoint with logged messages, from which the steps
since then are recomputed while survivors wait; or the last checkpoint alone, to which all ranks roll back."""

LogTier = Literal["memory", "disk"]
"""Storage of logged messages: shared memory, which outlives a process but not its host, or disk."""

Consistency = Literal["auto", "roll-forward", "ping-pong", "undo", "journal"]
CONSISTENCIES: tuple[str, ...] = get_args(Consistency)
"""Methods to restore one step for all parameters after a failure during an update, those of the runtime."""

_MOST_SHOWN = 6


class StageRecovery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recovery of one stage."""

    ranks: tuple[int, ...]
    """Ranks of the stage, one per replica."""
    strategy: RecoveryStrategy
    """Source of the state."""
    group: int
    """Index of the group of adjacent stages that roll back to the checkpoint together if one of them fails."""


class MessageLog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages kept by their sender until the next checkpoint is durable."""

    source: int
    """Index of the sending stage."""
    target: int
    """Index of the receiving stage, which replays the log after a failure."""
    tier: LogTier
    """Place of the log."""
    bytes_per_step: float
    """Bytes logged per step."""


class RecoveryPhases(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of the phases of a recovery from a failure halfway between two checkpoints, in seconds."""

    detect_s: float
    fence_s: float
    regroup_s: float
    restore_s: float
    recompute_s: float
    """Seconds to recompute lost steps, including the interrupted one."""
    resume_s: float

    @property
    def total_s(self) -> float:
        """Seconds from the failure until the step after the last one before it is computed."""
        return float(sum(getattr(self, name) for name in self.__struct_fields__))


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Pareto point of log storage and cost of a failure."""

    price_bytes: float
    """Bytes of logs per step, weighted by the price of their tier."""
    cost_s: float
    """Mean seconds to recompute a lost step, over failures."""


class PricedPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cost of another recovery policy."""

    name: str
    """Name of the policy."""
    interval_steps: int
    """Steps between two copies of the state."""
    overhead: float
    """Failure-free overhead, as a fraction of step time."""
    lost_s: float
    """Mean cost of a failure, in seconds."""
    goodput: float
    """Fraction of the time in which steps are computed for the first time."""


class RecoveryPlan(Plan, frozen=True, kw_only=True, tag="recovery"):
    """Sources of lost state, logs, checkpoints and spares."""

    family: ClassVar[str] = "recovery"

    stages: tuple[StageRecovery, ...]
    """Stages in the order of the forward pass."""
    logs: tuple[MessageLog, ...] = ()
    """Messages between groups that are logged."""
    interval_steps: int
    """Steps from one checkpoint to the next."""
    consistency: Consistency = "auto"
    """Method to restore a consistent step after a failure during an update."""
    helpers: int = 0
    """Survivors that share the recomputation of a lost stage's microbatches."""
    parallel_mode: Literal["exact", "fast"] = "exact"
    """Whether helpers' gradients are summed in the order of microbatches (bit for bit) or in order of arrival."""
    spares: int = 1
    """Number of warm standby processes."""
    heartbeat_s: float = 0.1
    """Interval of a rank's heartbeats, in seconds."""
    silence_limit_s: float = 0.5
    """Seconds without a heartbeat after which a rank is fenced and counts as dead."""
    mtbf_s: float
    """Assumed mean training time between failures, in seconds."""
    predicted_s: float = 0.0
    """Seconds, with failures, for the steps that would fit into `mtbf_s` without any; 0 if not simulated."""
    goodput: float = 0.0
    """Fraction of that time in which steps are computed for the first time; 0 if not simulated."""
    overhead: float = 0.0
    """Failure-free overhead of logs, checkpoints and consistency, as a fraction of step time."""
    recoveries: tuple[RecoveryPhases, ...] = ()
    """Simulated recovery of each stage, [stages]; empty if not simulated."""
    front: tuple[FrontPoint, ...] = ()
    """Pareto front of the logs, from none to all; empty if not compared."""
    chosen: int = -1
    """Index of the plan's own point in `front`, or -1 if nothing is logged."""
    others: tuple[PricedPolicy, ...] = ()
    """Other policies under the same failures."""
    notes: tuple[str, ...] = ()
    """Notes of the planner, such as why a stage is not logged."""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Stage indices of each group."""
        numbered = itertools.groupby(range(len(self.stages)), lambda number: self.stages[number].group)
        return tuple(tuple(own) for _, own in numbered)

    def tier_of(self, group: Collection[int]) -> LogTier:
        """Storage tier of the logs that a group of stages reads; shared memory if it reads none."""
        for log in self.logs:
            if log.target in group:
                return log.tier
        return "memory"

    @property
    def policies(self) -> tuple[PricedPolicy, ...]:
        """The plan itself and other policies, by descending goodput; empty if nothing was simulated."""
        if not self.goodput > 0:
            return ()
        own = PricedPolicy(
            name="this plan",
            interval_steps=self.interval_steps,
            overhead=self.overhead,
            lost_s=self.mtbf_s * (1.0 / (self.goodput * (1.0 + self.overhead)) - 1.0),
            goodput=self.goodput,
        )
        return tuple(sorted((own, *self.others), key=lambda one: -one.goodput))

    @property
    def headline(self) -> str:
        """Strategies, checkpoints, and the simulated goodput."""
        used = [stage.strategy for stage in self.stages]
        said = ", ".join(f"{used.count(name)} by {name}" for name in dict.fromkeys(used))
        found = (
            f"recovery plan by {self.planner!r} for {self.world_size} ranks: stages recovered {said}, a checkpoint "
            f"every {self.interval_steps} steps"
        )
        return found + (f", goodput {self.goodput:.1%} simulated" if self.goodput > 0 else "")

    def check_itself(self) -> None:
        """Raise if groups, strategies, logs or times are inconsistent; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in (*self._stage_faults(), *self._log_faults(), *self._value_faults()):
            raise PlanError(fault)

    def _stage_faults(self) -> Iterator[str]:
        used = sorted(rank for stage in self.stages for rank in stage.ranks)
        if len(used) != self.world_size or used != list(range(self.world_size)):
            yield (
                f"stages have the ranks {used[:16]} - at `$.stages`; expected each of 0 to {self.world_size - 1} once"
            )
        last = 0
        kinds = {stage.strategy for stage in self.stages}
        for number, stage in enumerate(self.stages):
            where = f"stage {number} - at `$.stages[{number}]`"
            if stage.group not in (last, last + 1) or (number == 0 and stage.group):
                yield f"{where}: group is {stage.group}; expected {last} or, from the second stage on, {last + 1}"
            last = stage.group
            if stage.strategy == "replica" and len(stage.ranks) < 2:
                yield f"{where}: recovered by replica with the ranks {list(stage.ranks)}; expected two or more"
        if kinds >= {"log", "checkpoint"}:
            yield (
                "some stages are recovered by log and some by checkpoint - at `$.stages`; a checkpoint takes all ranks "
                "back, expected one of both"
            )
        if "checkpoint" in kinds and last:
            yield f"there are {last + 1} groups - at `$.stages`; expected one where stages are recovered by checkpoint"

    def _log_faults(self) -> Iterator[str]:
        pairs = [(log.source, log.target) for log in self.logs]
        by_log = {stage.group for stage in self.stages if stage.strategy == "log"}
        tiers: dict[int, LogTier] = {}
        for number, (log, pair) in enumerate(zip(self.logs, pairs, strict=True)):
            where = f"log {log.source} -> {log.target} - at `$.logs[{number}]`"
            if not {*pair} <= {*range(len(self.stages))}:
                yield f"{where}: expected stages of 0 to {len(self.stages) - 1}"
                return
            source, target = (self.stages[stage].group for stage in pair)
            if source == target or target not in by_log:
                yield f"{where}: expected two groups, of which the receiving one is recovered by log"
            if pair in pairs[:number]:
                yield f"{where}: stands twice; expected each pair of stages once"
            if tiers.setdefault(target, log.tier) != log.tier:
                yield f"{where}: tier is {log.tier}, others of its group's are {tiers[target]}; expected one tier"
            if not isfinite(log.bytes_per_step) or log.bytes_per_step < 0:
                yield f"{where}: bytes_per_step is {log.bytes_per_step}; expected a finite figure of at least 0"

    def _value_faults(self) -> Iterator[str]:
        for name, least in (("interval_steps", 1), ("helpers", 0), ("spares", 0)):
            if getattr(self, name) < least:
                yield f"{name} is {getattr(self, name)} - at `$.{name}`; expected at least {least}"
        for name in ("heartbeat_s", "silence_limit_s", "mtbf_s"):
            if not isfinite(getattr(self, name)) or getattr(self, name) <= 0:
                yield f"{name} is {getattr(self, name)} - at `$.{name}`; expected a finite figure above 0"
        if self.silence_limit_s < 2 * self.heartbeat_s:
            yield (
                f"silence_limit_s is {self.silence_limit_s} - at `$.silence_limit_s`; expected at least two heartbeats "
                f"of {self.heartbeat_s} s"
            )
        if self.recoveries and len(self.recoveries) != len(self.stages):
            yield f"there are {len(self.recoveries)} recoveries - at `$.recoveries`; expected one for each stage"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per stage: ranks, state source, group, logs that it reads, recovery."""
        rows = []
        for number, stage in enumerate(self.stages):
            read = [log for log in self.logs if log.target == number]
            shown = [f"{log.source} ({log.tier})" for log in read[:_MOST_SHOWN]]
            rows.append(
                [
                    str(number),
                    ",".join(map(str, stage.ranks)),
                    stage.strategy,
                    str(stage.group),
                    " ".join(shown) + (" ..." if len(read) > _MOST_SHOWN else "") or "-",
                    f"{self.recoveries[number].total_s:.3f}" if self.recoveries else "-",
                ]
            )
        return ["stage", "ranks", "from", "group", "logged from stage", "recovery s"], rows
