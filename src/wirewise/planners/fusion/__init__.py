"""Planners of gradient buckets and further changes of a data-parallel training step.

`ww.planners.fusion.cupcake(job, links, codec="dgc")`: a job is a recorded run or its modules for dPRO and its rules,
gradients for Cupcake, or operators for DisCo.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from wirewise.cost.gradients import V100, GradientCosts, count_ranks
from wirewise.cost.link import LinkCost
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.faces import Planner, Problems, expect_links, face
from wirewise.planners.fusion.cupcake import (
    RULES,
    CompressionProblem,
    Split,
    compression_problem,
    plan_groups,
)
from wirewise.planners.fusion.disco import METHODS, Knobs, StepModel, plan_operators
from wirewise.planners.fusion.dpro import dpro as _dpro
from wirewise.planners.fusion.dpro import mcmc as _mcmc
from wirewise.planners.fusion.exhaustive import ddp as _ddp
from wirewise.planners.fusion.exhaustive import exhaustive as _exhaustive
from wirewise.planners.fusion.exhaustive import rules as _rules
from wirewise.planners.fusion.memory import peak_bytes
from wirewise.planners.fusion.moves import PASSES
from wirewise.planners.fusion.problem import FusionProblem, from_flows, from_trace
from wirewise.planners.fusion.score import Scorer
from wirewise.plans import FusionPlan
from wirewise.sim.lowering.operators import all_reduce_line
from wirewise.sim.modules import Decision
from wirewise.sim.recorded import MemorySizes, with_memory
from wirewise.sim.region_costs import AnalyticCosts, RegionCosts
from wirewise.trace.gradients import GradientTrace
from wirewise.trace.modules import BucketSpan, Module, ModuleTrace
from wirewise.trace.operators import FusionGraph
from wirewise.trace.records import Trace

__all__ = [
    "PASSES",
    "PLANNERS",
    "BucketSpan",
    "Decision",
    "FusionProblem",
    "MemorySizes",
    "Module",
    "Scorer",
    "build_step_model",
    "cupcake",
    "ddp",
    "disco",
    "dpro",
    "exhaustive",
    "from_flows",
    "from_trace",
    "mcmc",
    "peak_bytes",
    "rules",
    "with_memory",
]


def build_step_model(
    job: FusionGraph,
    links: Links | None = None,
    *,
    costs: GradientCosts | None = None,
    regions: RegionCosts | None = None,
    all_reduce: LinkCost | None = None,
    ranks: int | None = None,
    overlap_rate: float = 1.0,
) -> StepModel:
    """Build the problem of a captured step.

    Args:
        job: Operators of the step.
        links: Links between the ranks. None to use `all_reduce` or the measured costs.
        costs: Costs of all-reduces, as in `cost.group_costs`. Defaults to `V100`.
        regions: Costs of regions of operators. Defaults to the analytic ones, fitted to the operators' measured times.
        all_reduce: Fixed seconds per bucket, and seconds per byte, in place of links and costs.
        ranks: Ranks that `all_reduce` holds for, 2 by default; otherwise the expected number.
        overlap_rate: Compute speed while a bucket is in flight, as in `StepModel`.

    Raises:
        InputError: A graph, costs or a line are invalid, or links were given with `all_reduce`.
    """
    if all_reduce is None:
        between = None if links is None else expect_links(links)
        all_reduce = all_reduce_line(job, between, costs or V100, ranks)
        ranks = count_ranks(costs or V100, between, ranks)
    elif links is not None or costs is not None:
        raise InputError(
            "got all_reduce beside links or costs; all say what a bucket takes, expected one of them"
        )
    return StepModel(
        job, regions or AnalyticCosts(job), all_reduce, overlap_rate=overlap_rate, ranks=ranks or 2
    )


def _of_modules(job: ModuleTrace, links: Links | None = None) -> FusionProblem:
    return FusionProblem.of(job, expect_links(links))


def _of_trace(job: Trace, links: Links | None = None) -> FusionProblem:
    return from_trace(job, None if links is None else expect_links(links))


def _by_rule(
    problem: CompressionProblem,
    *,
    rule: str,
    number: float | str | None = None,
    seed: int = 0,
    split: Split = "none",
) -> FusionPlan:
    """Group gradients by the rule of that name.

    Args:
        problem: Gradients, with costs.
        rule: Name of the rule, without its number.
        number: Groups of "even", MiB of "bucket"; others take none.
        seed: Recorded in the plan.
        split: Largest size of a tensor, above which it travels in pieces, "none" or "auto".
    """
    text = f"{number:.15g}" if isinstance(number, float | int) else number
    return plan_groups(problem, method=rule if text is None else f"{rule}:{text}", seed=seed, split=split)


def _operators(
    problem: StepModel, *, method: str, seed: int = 0, other_s: float = 0.0, **knobs: Any
) -> FusionPlan:
    """Choose regions of operators that run as one kernel, and buckets of gradients.

    Args:
        problem: Captured step whose operators are grouped.
        method: Name of the method, one of `METHODS`.
        seed: Seed of the search.
        other_s: Seconds of a step that are neither operators nor communication.
        knobs: Options of the search, those of `disco.Knobs`.
    """
    return plan_operators(problem, method=method, other_s=other_s, knobs=Knobs(seed=seed, **knobs)).plan


_MODULES = Problems("a recorded run", FusionProblem, {ModuleTrace: _of_modules, Trace: _of_trace})
_GRADIENTS = Problems("gradients of a model", CompressionProblem, {GradientTrace: compression_problem})
_OPERATORS = Problems("operators of a captured step", StepModel, {FusionGraph: build_step_model})

PLANNERS: dict[str, Planner] = {
    "dpro": face(_dpro, "dpro", _MODULES, budget="time_budget_s"),
    "mcmc": face(_mcmc, "mcmc", _MODULES, budget="time_budget_s"),
    "exhaustive": face(_exhaustive, "exhaustive", _MODULES, budget="time_budget_s"),
    "rules": face(_rules, "rules", _MODULES),
    "ddp": face(_ddp, "ddp", _MODULES),
    "cupcake": face(partial(plan_groups, method="cupcake"), "cupcake", _GRADIENTS),
    **{rule: face(partial(_by_rule, rule=rule), rule, _GRADIENTS) for rule in RULES},
    **{method: face(partial(_operators, method=method), method, _OPERATORS) for method in METHODS},
}
"""Planners by name; those of a recorded run, of gradients, then of operators."""

# The functions stand before the modules of the same names, which keep what else there is of each.
dpro, mcmc, exhaustive = PLANNERS["dpro"], PLANNERS["mcmc"], PLANNERS["exhaustive"]
rules, ddp = PLANNERS["rules"], PLANNERS["ddp"]
cupcake, disco = PLANNERS["cupcake"], PLANNERS["disco"]
