"""The assigner of AdaQP as published: groups, three widths, one integer program an exchange."""

from __future__ import annotations

import msgspec

from wirewise.planners.bitwidth.milp import milp
from wirewise.planners.bitwidth.problem import BitWidthProblem
from wirewise.planners.bitwidth.static import uniform
from wirewise.planners.bitwidth.threshold import threshold
from wirewise.plans import BitWidthPlan

__all__ = ["paper"]


def paper(
    problem: BitWidthProblem,
    *,
    lam: float = 0.5,
    group_size: int = 100,
    cycle: int = 1,
    solver: str = "threshold",
    seed: int = 0,
) -> BitWidthPlan:
    """AdaQP's assignment (section 4 and released code), with its objective and its prices.

    T_u adds up each round's fastest channel, a short group is charged as a full one, and the parameters of
    rows are not charged. Weights are the caller's; the released code squares the sum of a message's
    coefficients, which is right only where all errors point the same way and over-weights hubs. The exact
    solver finds what its integer solver looks for.

    Args:
        problem: Messages and weights.
        lam: Weight of the noise against the time.
        group_size: Messages that share a width.
        cycle: Number of the assignment cycle; cycle 0 has no traces yet and sends 8 bits.
        solver: "threshold", or "milp" for HiGHS.
        seed: Recorded in the plan.
    """
    if cycle == 0:
        plan = uniform(problem, bits=8, seed=seed)
    else:
        solve = milp if solver == "milp" else threshold
        plan = solve(
            problem,
            lam=lam,
            bits=(2, 4, 8),
            group_size=group_size,
            normaliser="min",
            exact_bytes=False,
            seed=seed,
        )
    return msgspec.structs.replace(plan, planner="paper")
