"""New plans for links that are faster or slower than when costs were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from wirewise.cost.curve import Curve
from wirewise.cost.gradients import GradientCosts, Knots
from wirewise.errors import InputError, PlanError
from wirewise.planners.fusion.cupcake import (
    CompressionProblem,
    GradientGroup,
    Split,
    compression_problem,
    cupcake,
    step_s,
    with_splits,
)
from wirewise.planners.fusion.cupcake.splitting import choose
from wirewise.plans.fusion import FusionPlan
from wirewise.trace.gradients import GradientTrace

__all__ = ["groups_of", "replanner", "scale_costs"]


def scale_costs(costs: GradientCosts, slowdown: float, size_bytes: int) -> GradientCosts:
    """Scale the per-byte cost of collectives so that one all-reduce takes `slowdown` times as long.

    The fixed cost of a collective is unchanged.

    Args:
        costs: Costs with measured collectives.
        slowdown: Factor on the time of the all-reduce; below 1 if it got faster.
        size_bytes: Size of that all-reduce, in bytes.

    Raises:
        InputError: The factor is not positive, or the costs have no all-reduce.
    """
    if not 0 < slowdown < float("inf") or "all_reduce" not in costs.schemes:
        raise InputError(
            f"got a slowdown of {slowdown} and times of {', '.join(costs.schemes) or 'no collective'}; expected a "
            "factor above 0 and measured all-reduces"
        )
    base = costs.schemes["all_reduce"][0][1]
    before = float(Curve(costs.schemes["all_reduce"])(size_bytes))
    bytes_s = max(before - base, 1e-12)
    factor = max((before * slowdown - base) / bytes_s, 1e-3)
    schemes = {name: _stretched(knots, factor) for name, knots in costs.schemes.items()}
    return msgspec.structs.replace(costs, schemes=schemes, concurrent=_stretched(costs.concurrent, factor))


def _stretched(knots: Knots, factor: float) -> Knots:
    return tuple((size, knots[0][1] + (seconds - knots[0][1]) * factor) for size, seconds in knots)


def groups_of(problem: CompressionProblem, plan: FusionPlan) -> list[GradientGroup]:
    """Convert a plan to groups with the problem's option indices.

    Raises:
        PlanError: The plan uses an option that the problem does not have, or holds other tensors.
    """
    ways = {(o.codec, o.scheme): number for number, o in reversed(list(enumerate(problem.options)))}
    found, first = [], 0
    for number, bucket in enumerate(plan.buckets):
        last = first + len(bucket.parameters) - 1
        if (bucket.codec, bucket.scheme) not in ways or bucket.parameters != tuple(
            problem.names[first : last + 1]
        ):
            raise PlanError(
                f"bucket {number} of the plan by {plan.planner!r} is {bucket.way} of {len(bucket.parameters)} tensors, "
                "which the problem does not have there; plan for the model and the codecs that run"
            )
        found.append(GradientGroup(first, last, ways[bucket.codec, bucket.scheme]))
        first = last + 1
    return found


def replanner(
    trace: GradientTrace,
    costs: GradientCosts,
    codecs: Sequence[str],
    *,
    forward_s: float | None = None,
    probe_bytes: int = 1 << 18,
    split: Split = "none",
) -> Callable[[float, FusionPlan], FusionPlan]:
    """Make the function called by `Replanner` of `runtime.data_parallel`: (slowdown, current plan) -> best plan.

    The result's `baseline_step_s` is the step of the current plan at the new speed.

    Args:
        trace: Gradients of the model.
        costs: Costs measured before.
        codecs: Codecs that groups may choose from, besides none.
        forward_s: Time of forward pass and optimizer, in seconds. Defaults to half of back-propagation.
        probe_bytes: Size of the all-reduce by which the slowdown is measured, in bytes.
        split: Tensors to send in pieces, as in `plan_groups`.
    """

    def plan(slowdown: float, present: FusionPlan) -> FusionPlan:
        now = scale_costs(costs, slowdown, probe_bytes)
        problem = compression_problem(trace, codec=[*codecs, "none"], costs=now)
        if forward_s is not None:
            problem = replace(problem, forward_s=forward_s)
        found = choose(problem, cupcake, split)
        in_pieces = with_splits(problem, present.splits)
        return msgspec.structs.replace(
            found, baseline_step_s=step_s(in_pieces, groups_of(in_pieces, present))
        )

    return plan
