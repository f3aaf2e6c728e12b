"""Conversion of a recovery plan to settings of agents, sessions and pipelines; unsupported fields are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from wirewise.errors import PlanError
from wirewise.plans.recovery import RecoveryPlan
from wirewise.runtime.recovery.control import BEAT_S
from wirewise.runtime.recovery.sync import Buckets

__all__ = ["RecoverySettings", "settings_of"]


@dataclass(frozen=True)
class RecoverySettings:
    """Arguments that execute a plan, by recipient."""

    agent: dict[str, Any]
    """Arguments of the agent, as in `Agent(target, ..., **agent)`."""
    session: dict[str, Any]
    """Arguments of `protect(model, optimizer, loader, **session)`, for a job of one stage: buckets with the plan's
    consistency."""
    log: dict[str, Any]
    """Arguments of a pipeline's `SenderLog(folder, rank, spill=..., **log)`."""
    keep: Literal["checkpoint", "replicas"]
    """Argument of a pipeline's `train_through_faults(..., keep=keep)`."""
    every: int
    """Steps from one checkpoint to the next, for `train_through_faults(..., every=every)`; scripts of sessions decide
    it themselves."""
    helping: dict[str, Any]
    """Options of `HelperOptions(build, ...)`; empty if blocked ranks do not help."""


def settings_of(plan: RecoveryPlan, hosts: int = 1) -> RecoverySettings:
    """Settings that execute a plan.

    Args:
        plan: Plan of the job's stages.
        hosts: Number of hosts, each with an agent and a part of the spares.

    Raises:
        PlanError: The plan is inconsistent, or has a field that cannot be executed; the message names it.
    """
    plan.check_itself()
    for fault in _faults(plan, hosts):
        raise PlanError(f"{fault}; plan again, or change it")
    mode: Literal["exact", "fast"] = plan.parallel_mode
    replicas = plan.stages[0].strategy == "replica"
    # What replicas have need not be kept, but a stage may be an update behind another.
    log: dict[str, Any] = {"chunk_steps": 1} if replicas else {}
    if any(one.tier == "disk" for one in plan.logs):
        log = {"memory_bytes": 0}
    return RecoverySettings(
        agent={"spares": plan.spares // hosts, "silence_s": plan.silence_limit_s},
        session={"sync": Buckets(consistency=plan.consistency)},
        log=log,
        keep="replicas" if replicas else "checkpoint",
        every=plan.interval_steps,
        helping={"ranks": plan.helpers + 1, "mode": mode} if plan.helpers else {},
    )


def _faults(plan: RecoveryPlan, hosts: int) -> Iterator[str]:
    if plan.heartbeat_s != BEAT_S:
        yield f"heartbeat_s is {plan.heartbeat_s} - at `$.heartbeat_s`; processes give a sign of life every {BEAT_S} s"
    if plan.spares % hosts:
        yield f"spares is {plan.spares} - at `$.spares`; expected a multiple of {hosts} hosts"
    if len(plan.stages) == 1:
        if plan.stages[0].strategy != "replica":
            yield f"stage 0 - at `$.stages[0]`: recovered by {plan.stages[0].strategy}; sessions recover from replicas"
        if plan.helpers:
            yield f"helpers is {plan.helpers} - at `$.helpers`; a job of one stage has nothing to recompute"
        return
    first = plan.stages[0]
    for number, stage in enumerate(plan.stages):
        where = f"stage {number} - at `$.stages[{number}]`"
        if stage.strategy == "checkpoint" or stage.strategy != first.strategy:
            yield (
                f"{where}: recovered by {stage.strategy}, stage 0 by {first.strategy}; pipelines are recovered by log "
                "or from replicas, all stages alike"
            )
        if len(stage.ranks) != len(first.ranks):
            yield (
                f"{where}: has the ranks {list(stage.ranks)}, stage 0 {list(first.ranks)}; pipelines have as many "
                "replicas of each stage"
            )
        if stage.strategy == "log" and stage.group != number:
            yield f"{where}: group is {stage.group}; every stage logs all that it sends, expected {number}"
    if plan.helpers and first.strategy == "replica":
        yield f"helpers is {plan.helpers} - at `$.helpers`; stages that replicas give back have nothing to recompute"
    if plan.consistency != "auto":
        yield (
            f"consistency is {plan.consistency!r} - at `$.consistency`; a rank of a pipeline begins an update anew, "
            "expected auto"
        )
    if len({log.tier for log in plan.logs}) > 1:
        yield "some logs lie in memory and some on disk - at `$.logs`; expected one place for all"
