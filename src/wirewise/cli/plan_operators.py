"""`wirewise plan fusion --graph`: joint search for operator fusion and gradient buckets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from wirewise.cli.options import refuse
from wirewise.cli.output import Said
from wirewise.cli.plan_gradients import GradientOptions
from wirewise.cli.plan_job import make_plan, print_plan
from wirewise.cost.gradients import load_costs
from wirewise.planners.fusion import build_step_model
from wirewise.planners.fusion.disco import (
    EAGER,
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

_SLOWER = 1.01
"""Step, of that without a plan, above which a plan is called slower; simulated steps are off by about a percent."""
_LEAVE = "leave it to DDP"
_RESTS = 0.1
"""Fraction of what is saved that may rest on estimated times without a word."""


def operators(
    graph: Path,
    method: str,
    settings: GradientOptions,
    estimator: str | None,
    out: Path | None,
    json: str | None,
) -> None:
    """Plan operator and tensor fusion, write the plan and print it.

    Raises:
        InputError: A file or an option is unusable.
        PlanError: No planner has this name.
    """
    why = "does not go with --graph: its all-reduces are whole and not compressed"
    refuse(settings, ["codec", "decode", "split"], why)
    (links, ranks), captured = settings.between(), read_fusion_graph(graph)
    priced, costs = _costs(captured, estimator), load_costs(settings.costs or "v100")
    model = build_step_model(captured, links, costs=costs, regions=priced.costs, ranks=ranks)
    if method not in METHODS:
        # Another search than DisCo's says of itself what its plan says.
        return print_plan(make_plan(FusionPlan, method, model, seed=settings.seed), out, json)
    begin = time.perf_counter()
    found = plan_operators(model, method=method, knobs=Knobs(seed=settings.seed or 0))
    planning_s = time.perf_counter() - begin
    said: list[Said] = [_sentence(found), f"Costs: {priced.why}.", *_doubts(found), found.plan.table()]
    print_plan(found.plan, out, json, *said, record=_record(found, model, planning_s))


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


def _doubts(found: PlannedOperators) -> Iterator[str]:
    """Caveats of the plan: it is no faster than without, or its gain rests on estimated times of regions."""
    without_s, own_s = found.baselines[EAGER].step_s, found.times.step_s
    if _is_slower(found):
        yield (
            f"Warning: simulated {own_s / without_s - 1:.1%} slower than without fusion and with default buckets; "
            f"{_LEAVE}."
        )
    by_fusion_s = found.unfused.step_s - own_s
    if own_s < without_s and by_fusion_s > _RESTS * (without_s - own_s):
        saved_s = without_s - own_s
        yield (
            f"Of {seconds(saved_s)} saved, {seconds(min(by_fusion_s, saved_s))} are by fused regions, whose times are "
            f"estimated; with the same buckets and measured operators alone a step takes "
            f"{seconds(found.unfused.step_s)}. `wirewise run disco` measures it against DistributedDataParallel."
        )


def _is_slower(found: PlannedOperators) -> bool:
    return found.times.step_s > _SLOWER * found.baselines[EAGER].step_s


def _record(found: PlannedOperators, model: StepModel, planning_s: float) -> dict[str, Any]:
    return {
        "plan": msgspec.to_builtins(found.plan),
        "advice": _LEAVE if _is_slower(found) else "measure it by wirewise run disco",
        **{name: getattr(found.plan, name) for name in ("planner", "predicted_step_s", "lower_bound_s")},
        **{name: getattr(found.times, name) for name in ("compute_s", "communicate_s", "full_overlap_s")},
        "unfused_s": found.unfused.step_s,
        "baselines_s": {"+".join(name): one.step_s for name, one in found.baselines.items()},
        "evaluations": model.evaluations,
        "planning_s": planning_s,
    }
