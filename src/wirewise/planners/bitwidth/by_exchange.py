"""Planning one exchange after the other, by whatever solves the program of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.cost import ExchangeCosts
from wirewise.planners.bitwidth.problem import BitWidthProblem, make_plan
from wirewise.planners.bitwidth.program import Program
from wirewise.plans import BitWidthPlan

__all__ = ["plan_by_exchange"]


def plan_by_exchange(
    problem: BitWidthProblem,
    costs: ExchangeCosts,
    solve: Callable[[Program], list[NDArray[np.uint8]]],
    *,
    planner: str,
    seed: int,
    **knobs: Any,
) -> BitWidthPlan:
    """Solve the program of every exchange and record the bits as a plan.

    Args:
        problem: Messages and weights.
        costs: Costs of the links.
        solve: Bits of the groups of each channel, uint8 [groups].
        planner: Recorded in the plan.
        seed: Recorded in the plan.
        knobs: Knobs of `Program`: lam, bits, group_size, normaliser, exact_bytes.

    Raises:
        PlanError: A weight or a knob cannot be used, or as `solve`.
    """
    problem.validate()
    found = {}
    for exchange in problem.exchanges:
        program = Program(exchange, costs.links, param_bytes=problem.param_bytes, **knobs)
        for ends, chosen in program.expand(solve(program)).items():
            found[exchange.name, *ends] = chosen
    return make_plan(problem, found, planner=planner, costs=costs, seed=seed)
