"""Lowering of recovery plans: steps with their protection overhead, and recoveries after failures."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.plans.recovery import RecoveryPhases, RecoveryPlan
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.recovery import RecoveryFigures, recovery_figures, sources_of
from wirewise.sim.timeline import Span, Timeline
from wirewise.trace.recovery import RecoveryTrace

__all__ = ["lower_recovery", "with_recoveries"]


def lower_recovery(plan: RecoveryPlan, job: Any, links: Any, *, mtbf_s: float | None = None) -> Prediction:
    """Simulate the steps that fit between two failures, and their recoveries; see `predict`.

    Args:
        plan: Sources of lost state, logs, checkpoints and spares.
        job: A `RecoveryTrace` of the plan's stages.
        links: Links between its ranks.
        mtbf_s: Mean training time between failures, in seconds. Defaults to the plan's.
    """
    trace, links = expect("job", job, RecoveryTrace, plan), expect("links", links, Links, plan)
    same_ranks(plan, links.world_size, "the links have")
    _same_job(plan, trace, links)
    if mtbf_s is not None and not mtbf_s > 0:
        raise PlanError(f"mtbf_s is {mtbf_s}; expected seconds between failures above 0")
    mtbf_s = plan.mtbf_s if mtbf_s is None else mtbf_s
    found = recovery_figures(plan, trace, links, mtbf_s)
    if not found.efficiency.goodput > 0:
        raise PlanError(
            f"at a failure every {mtbf_s:.4g} s the job never gets on: a recovery takes {found.mean.total_s:.4g} s; "
            "shorten interval_steps - at `$.interval_steps` - or plan for fewer failures"
        )
    parts = _parts(plan, trace, found, mtbf_s)
    spans, at_s = list[Span](), 0.0
    for phase, seconds in parts.items():
        if seconds > 0:
            spans.append(Span(rank=0, phase=phase, exchange="", start_s=at_s, end_s=at_s + seconds))
        at_s += seconds
    everybody = (tuple(range(plan.world_size)),)
    timeline = Timeline(spans=tuple(spans), world_size=plan.world_size, classes=everybody)
    return prediction_of(plan, "work between failures", timeline, mtbf_s / found.efficiency.goodput)


def with_recoveries(plan: RecoveryPlan, trace: RecoveryTrace, links: Links) -> RecoveryPlan:
    """Plan with its predictions: goodput, overhead, and the recovery of each stage."""
    found = recovery_figures(plan, trace, links)
    goodput = found.efficiency.goodput
    return replace(
        plan,
        predicted_s=plan.mtbf_s / goodput if goodput > 0 else 0.0,
        goodput=goodput,
        overhead=found.efficiency.overhead,
        recoveries=found.phases,
    )


def _parts(
    plan: RecoveryPlan, trace: RecoveryTrace, found: RecoveryFigures, mtbf_s: float
) -> dict[str, float]:
    """Seconds of each phase until `mtbf_s` seconds of steps are done, in order."""
    goodput, overhead = found.efficiency.goodput, found.efficiency.overhead
    steps = mtbf_s / trace.step_s
    parts = {
        "steps": mtbf_s,
        "protection": steps * found.overhead_s,
        "checkpoint": steps / plan.interval_steps * found.checkpoint_s,
    }
    # What strikes during recoveries makes all their parts longer alike.
    longer = (mtbf_s / goodput - mtbf_s * (1.0 + overhead)) / found.mean.total_s
    return parts | {
        name.removesuffix("_s"): longer * getattr(found.mean, name)
        for name in RecoveryPhases.__struct_fields__
    }


def _same_job(plan: RecoveryPlan, trace: RecoveryTrace, links: Links) -> None:
    own, known = [one.ranks for one in plan.stages], [one.ranks for one in trace.stages]
    if own != known:
        number = next(
            (n for n, both in enumerate(zip(own, known, strict=False)) if both[0] != both[1]),
            min(len(own), len(known)),
        )
        raise PlanError(
            f"plan {plan.planner!r} has {len(own)} stages and the job {len(known)}, or other ranks at stage {number} - "
            "at `$.stages`; make the plan again for this job"
        )
    for number, stage in enumerate(plan.stages):
        if stage.strategy == "replica" and not all(
            sources_of(stage.ranks, rank, links) for rank in stage.ranks
        ):
            raise PlanError(
                f"stage {number} - at `$.stages[{number}]` - is recovered by replica, and the links have all of "
                f"{list(stage.ranks)} on one host; choose log or checkpoint"
            )
    group_of = [stage.group for stage in plan.stages]
    by_log = {stage.group for stage in plan.stages if stage.strategy == "log"}
    wanted = {
        (one.source, one.target): one.size_bytes
        for one in trace.messages
        if group_of[one.source] != group_of[one.target] and group_of[one.target] in by_log
    }
    logged = {(log.source, log.target): log.bytes_per_step for log in plan.logs}
    if logged != wanted:
        pairs = {*logged.items()} ^ {*wanted.items()}
        (source, target), _ = min(pairs)
        raise PlanError(
            f"the logs - at `$.logs` - and what groups recovered by log receive in the job differ in the messages "
            f"{source} -> {target}; make the plan again for this job"
        )
