"""Lowering of parallel plans to a training step."""

from __future__ import annotations

from typing import Any

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans.parallel import ParallelPlan
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.lowering.stages import pipeline_timeline
from wirewise.sim.parallel_steps import ParallelStep, StepSimulator
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.timeline import Span, Timeline
from wirewise.trace.operator_graph import OperatorGraph

__all__ = ["lower_parallel"]


def lower_parallel(plan: ParallelPlan, job: Any, links: Any) -> Prediction:
    """Simulate a step; see `predict`.

    Args:
        plan: Plan of the operators of the job.
        job: `OperatorGraph` of a training step, with operator times.
        links: Links between its ranks.

    Raises:
        PlanError: The plan is for another graph or number of ranks.
        InputError: The graph has no times.
    """
    graph, links = expect("job", job, OperatorGraph, plan), expect("links", links, Links, plan)
    same_ranks(plan, links.world_size, "the links have")
    plan.check_graph(graph.digest, len(graph.nodes))
    if graph.time_s <= 0:
        raise InputError("the operators of the graph have no times; fill in their costs first")
    _check_messages(plan, graph)
    step = StepSimulator(plan, graph, links).step()
    return prediction_of(plan, "step", _timeline(plan, step), step.seconds)


def _check_messages(plan: ParallelPlan, graph: OperatorGraph) -> None:
    """Raise where a stage takes what another one computes, and nothing brings it there."""
    sent = {
        (move.producer, consumer)
        for move in plan.moves
        if any(step.kind == "send" for step in move.steps)
        for consumer in move.consumers
    }
    for number, node in enumerate(graph.nodes):
        for source in node.inputs if node.op != "output" else ():
            apart = plan.stage_of[source] != plan.stage_of[number]
            if apart and graph.nodes[source].computes and (source, number) not in sent:
                raise PlanError(
                    f"node {number} takes node {source} of stage {plan.stage_of[source]}, and to stage "
                    f"{plan.stage_of[number]} there is no message - at `$.moves`; expected a move with a send"
                )


def _timeline(plan: ParallelPlan, step: ParallelStep) -> Timeline:
    if step.pipeline is not None:
        found = pipeline_timeline(step.pipeline, 0.0, step.seconds)
        place = {
            position[0][0]: ranks[0]
            for position, ranks in zip(step.pipeline.plan.ranks, plan.ranks, strict=True)
        }
        spans = [
            Span(rank=place[s.rank], phase=s.phase, exchange=s.exchange, start_s=s.start_s, end_s=s.end_s)
            for s in found.spans
        ]
    else:
        spans = [
            Span(rank=plan.ranks[0][0], phase=s.phase, exchange=s.label, start_s=s.start_s, end_s=s.end_s)
            for s in step.spans
        ]
    spans.sort(key=lambda span: (span.rank, span.start_s, span.end_s))
    return Timeline(spans=tuple(spans), world_size=plan.world_size, classes=plan.ranks)
