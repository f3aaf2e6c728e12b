"""Lowering of stage plans to a pipeline update: passes, messages, gradient exchange, optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from wirewise.cost.links import Links
from wirewise.cost.stages import StageCosts
from wirewise.errors import InputError, PlanError
from wirewise.plans.stages import StagePlan
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.pipelines import EdgeSeconds, PipelineSimulation, message_seconds, steady_update
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.stage_memory import peak_bytes
from wirewise.sim.timeline import Span, Timeline
from wirewise.trace.stages import StageTrace

__all__ = ["costs_of_plan", "lower_stages", "pipeline_timeline", "with_predictions"]


def lower_stages(
    plan: StagePlan,
    job: Any,
    links: Any,
    *,
    shared_nics: bool = True,
    edge_s: EdgeSeconds | None = None,
    slowdown: Sequence[float] | None = None,
    fold: bool = True,
) -> Prediction:
    """Simulate an update; for a plan without flushes, one in steady state. See `predict`.

    Args:
        plan: Plan of the stages and their timetable.
        job: `StageTrace` of the modules named by the plan.
        links: Links between its ranks.
        shared_nics: Whether messages share the interfaces of hosts; otherwise there is no contention.
        edge_s: Seconds of a message between two stages, `(sending stage, receiving stage, bytes)`. Defaults to those
            of the links.
        slowdown: Slowdown factor of each rank's compute, [ranks]. Defaults to 1.
        fold: Whether equivalent replicas are simulated once; if False, each separately, with the same result.
    """
    trace, links = expect("job", job, StageTrace, plan), expect("links", links, Links, plan)
    same_ranks(plan, links.world_size, "the links have")
    costs = costs_of_plan(plan, trace)
    by = None if slowdown is None else np.asarray(slowdown, np.float64)
    run, begin_s, end_s = steady_update(
        plan, costs, links, shared_nics=shared_nics, edge_s=edge_s, slowdown=by, fold=fold
    )
    return prediction_of(plan, "update", pipeline_timeline(run, begin_s, end_s), end_s - begin_s)


def with_predictions(
    plan: StagePlan, trace: StageTrace, links: Links, *, edge_s: EdgeSeconds | None = None
) -> StagePlan:
    """Plan with its predictions: times of an update, its passes and messages, and memory of ranks.

    Args:
        plan: Plan of the stages and their timetable.
        trace: Modules named by the plan.
        links: Links between its ranks.
        edge_s: Seconds of a message between two stages. Defaults to those of the links.

    Raises:
        PlanError: Raised by `predict`.
    """
    costs = costs_of_plan(plan, trace)
    _, begin_s, end_s = steady_update(plan, costs, links, edge_s=edge_s)
    seconds = (costs.forward_s, costs.backward_s, costs.weight_s)
    return replace(
        plan,
        predicted_s=end_s - begin_s,
        predicted_bytes=peak_bytes(plan, costs),
        pass_s=tuple(zip(*(one.tolist() for one in seconds), strict=True)),
        message_s=message_seconds(plan, costs, links, edge_s),
    )


def costs_of_plan(plan: StagePlan, trace: StageTrace) -> StageCosts:
    """Costs of a plan's stages.

    Raises:
        PlanError: The plan was made for other modules, or other edges between them.
    """
    widths = [len(plan.ranks[stage.position][0]) for stage in plan.stages]
    try:
        costs = StageCosts.of(trace, [stage.modules for stage in plan.stages], plan.microbatch_size, widths)
    except InputError as cause:
        place = "`$.ranks`" if "width_speedup" in str(cause) else "`$.stages`"
        raise PlanError(f"plan {plan.planner!r} - at {place} - does not fit the job: {cause}") from cause
    if set(costs.edge_bytes) != set(plan.all_edges):
        both = sorted(set(costs.edge_bytes) ^ set(plan.all_edges))
        raise PlanError(
            f"plan {plan.planner!r} and the job differ in the edge {both[0][0]} -> {both[0][1]} - at `$.edges`; name "
            "the stages between which the job's modules hand on activations"
        )
    return costs


def pipeline_timeline(run: PipelineSimulation, begin_s: float, end_s: float) -> Timeline:
    """Spans between two times, shifted to start at 0; a message belongs to its senders.

    The ranks that share a stage, and those at its position in equivalent replicas, form one class.
    """
    plan, spans = run.plan, []
    for number, op in enumerate(run.ops):
        start = max(float(run.start_s[number]), begin_s) - begin_s
        end = min(float(run.end_s[number]), end_s) - begin_s
        if end <= start:
            continue
        spans += [
            Span(
                rank=plan.ranks[op.position][own[0]][0],
                phase=op.phase,
                exchange=op.label,
                start_s=start,
                end_s=end,
            )
            for own in run.classes
            if op.replica in (-1, own[0])
        ]
    spans.sort(key=lambda span: (span.rank, span.start_s, span.end_s))
    classes = tuple(
        tuple(rank for replica in own for rank in replicas[replica])
        for replicas in plan.ranks
        for own in run.classes
    )
    return Timeline(spans=tuple(spans), world_size=plan.world_size, classes=classes)
