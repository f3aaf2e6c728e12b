"""Memory of a pipeline's ranks: weights, gradients, optimizer state, and activations between passes."""

from __future__ import annotations

import numpy as np

from wirewise.cost.stages import StageCosts
from wirewise.plans.stages import StagePlan
from wirewise.plans.timetables import StagePass

__all__ = ["peak_bytes"]

_UPDATES = 3
"""Updates in a row, after which what positions keep repeats itself."""


def peak_bytes(plan: StagePlan, costs: StageCosts) -> tuple[int, ...]:
    """Peak memory of a rank at each position, in bytes, [positions].

    Weights count once per version, gradients and optimizer state once; gradients twice if their exchange overlaps
    with the next update's passes. A forward pass adds the stage's saved activations, or its input under
    recomputation; a backward pass, or its weight gradients, frees them. Message buffers do not count.

    Args:
        plan: Plan, which should pass `check_itself`.
        costs: Costs of its stages, for its microbatch size.
    """
    return tuple(int(np.ceil(_position(plan, costs, position))) for position in range(plan.positions))


def _position(plan: StagePlan, costs: StageCosts, position: int) -> float:
    own = [number for number, stage in enumerate(plan.stages) if stage.position == position]
    copies = plan.weight_versions + costs.state_factor + (plan.exchange == "hidden" and plan.replicas > 1)
    return copies * float(costs.parameter_bytes[own].sum()) + _activations(plan, costs, position)


def _activations(plan: StagePlan, costs: StageCosts, position: int) -> float:
    now = most = 0.0
    for step in plan.steps(position, _UPDATES):
        kept, whole = _kept(plan, costs, step)
        if step.kind == "F":
            now += kept
            # What is not kept is there until the pass ends.
            most = max(most, now + whole - kept)
            continue
        if step.kind in ("B", "I"):
            most = max(most, now + whole - kept)
        now += {"B": -kept, "I": whole - kept, "W": -whole}[step.kind]
        most = max(most, now)
    return most


def _kept(plan: StagePlan, costs: StageCosts, step: StagePass) -> tuple[float, float]:
    """Bytes that a stage keeps of a microbatch, and that it has while it computes it backward."""
    saved, given = (float(costs.saved_bytes[step.stage]), float(costs.input_bytes[step.stage]))
    return (min(given, saved), saved) if plan.stages[step.stage].recompute else (saved, saved)
