"""`wirewise plan fusion --graph`: regions of operators and buckets of gradients, searched together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from wirewise.cli.options import refuse
from wirewise.cli.plan_gradients import Words
from wirewise.cli.plan_job import make_plan, tell
from wirewise.cost.gradients import load_costs
from wirewise.planners.fusion import step_model
from wirewise.planners.fusion.disco import (
    METHODS,
    AnalyticCosts,
    ChosenCosts,
    Estimator,
    Knobs,
    PlannedOperators,
    StepModel,
    costs_for,
    plan_operators,
)
from wirewise.plans import FusionPlan
from wirewise.report.figures import seconds
from wirewise.trace.operators import FusionGraph, read_fusion_graph

__all__ = ["operators"]


def operators(
    graph: Path, method: str, words: Words, estimator: str | None, out: Path | None, json: str | None
) -> None:
    """Plan, write and tell.

    Raises:
        InputError: A file or an option that cannot be used.
        PlanError: No planner has the name.
    """
    why = "does not go with --graph: its all-reduces are whole and not compressed"
    refuse(words, ["codec", "decode", "split"], why)
    (links, ranks), captured = words.between(), read_fusion_graph(graph)
    priced, costs = _costs(captured, estimator), load_costs(words.costs or "v100")
    model = step_model(captured, links, costs=costs, regions=priced.costs, ranks=ranks)
    if method not in METHODS:
        # Another search than DisCo's says of itself what its plan says.
        return tell(make_plan(FusionPlan, method, model, seed=words.seed), out, json)
    begin = time.perf_counter()
    found = plan_operators(model, method=method, knobs=Knobs(seed=words.seed or 0))
    planning_s = time.perf_counter() - begin
    said = (_sentence(found), f"Costs: {priced.why}.", found.plan.table())
    tell(found.plan, out, json, *said, record=_record(found, model, planning_s))


def _costs(graph: FusionGraph, estimator: str | None) -> ChosenCosts:
    if estimator is None:
        return ChosenCosts(AnalyticCosts(graph), "regions cost what a formula says")
    return costs_for(graph, None if estimator == "shipped" else Estimator.load(Path(estimator)))


def _sentence(found: PlannedOperators) -> str:
    best = min(found.baselines, key=lambda name: found.baselines[name].step_s)
    said = (
        f"A step of {found.plan.world_size} ranks takes {seconds(found.plan.predicted_step_s)} simulated under the "
        f"plan; {seconds(found.plan.baseline_step_s)} without fusion and with default buckets; "
        f"{seconds(found.baselines[best].step_s)} by the best rule, {'+'.join(best)}; and "
        f"{seconds(found.times.full_overlap_s)} if all its communication overlapped."
    )
    return said if found.found is None else f"{said} The search simulated {found.found.evaluations} steps."


def _record(found: PlannedOperators, model: StepModel, planning_s: float) -> dict[str, Any]:
    return {
        "plan": msgspec.to_builtins(found.plan),
        **{name: getattr(found.plan, name) for name in ("planner", "predicted_step_s", "lower_bound_s")},
        **{name: getattr(found.times, name) for name in ("compute_s", "communicate_s", "full_overlap_s")},
        "baselines_s": {"+".join(name): one.step_s for name, one in found.baselines.items()},
        "evaluations": model.evaluations,
        "planning_s": planning_s,
    }
