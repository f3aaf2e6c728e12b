"""General integer solver of the same program, as a reference for the exact solver; and AdaQP's assigner."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import PlanError
from wirewise.planners.bitwidth.problem import BitWidthProblem
from wirewise.planners.bitwidth.program import BitWidthProgram, plan_by_exchange
from wirewise.planners.bitwidth.static import uniform
from wirewise.planners.bitwidth.threshold import threshold
from wirewise.planners.solvers import mixed_integer
from wirewise.plans import BitWidthPlan

__all__ = ["milp", "paper", "solve"]


def solve(
    program: BitWidthProgram, *, time_limit_s: float = 60.0, relative_gap: float = 1e-9
) -> list[NDArray[np.uint8]]:
    """Solve for the bits of each channel's groups, by HiGHS.

    One binary variable per group and bit width, one time per round; a constraint per group (one width each) and one
    per channel (its round lasts at least as long). Exponential in the worst case.

    Raises:
        PlanError: No solution was found within the time limit.
    """
    if program.decided:
        return [np.full(len(g.weights), program.bits[-1], np.uint8) for g in program.groups]
    from scipy import optimize  # type: ignore[import-untyped,unused-ignore]

    binaries, rounds = (
        sum(len(g.weights) for g in program.groups) * len(program.bits),
        np.unique(program.rounds),
    )
    noise = [np.outer(g.weights, program.noise).ravel() * program.noise_price for g in program.groups]
    # Times near 1 keep the solver's tolerances meaningful.
    unit = program.t_worst or 1.0
    binary = np.arange(binaries + len(rounds)) < binaries
    result = mixed_integer(
        np.concatenate([*noise, np.full(len(rounds), program.time_price * unit)]),
        constraints=_constraints(program, unit),
        integrality=binary,
        bounds=optimize.Bounds(0.0, np.where(binary, 1.0, np.inf)),
        budget_s=time_limit_s,
        gap=relative_gap,
    )
    if result.x is None:
        raise PlanError(
            f"HiGHS found no assignment within {time_limit_s} s: {result.message}; raise the limit, make "
            "groups larger, or use the threshold planner, which is exact and needs milliseconds"
        )
    chosen, start, width = [], 0, len(program.bits)
    for group in program.groups:
        stop = start + len(group.weights) * width
        level = np.asarray(result.x[start:stop]).reshape(-1, width).argmax(axis=1)
        chosen.append(np.array(program.bits, dtype=np.uint8)[level])
        start = stop
    return chosen


def _constraints(program: BitWidthProgram, unit: float) -> list[object]:
    """One width a group; a round, in units, lasts at least as long as each of its channels."""
    from scipy import optimize, sparse

    width, total = len(program.bits), sum(len(g.weights) for g in program.groups)
    numbers = {r: i for i, r in enumerate(np.unique(program.rounds).tolist())}
    columns = total * width + len(numbers)
    one_each = sparse.csr_matrix(
        (np.ones(total * width), (np.repeat(np.arange(total), width), np.arange(total * width))),
        shape=(total, columns),
    )
    slower = sparse.lil_matrix((len(program.groups), columns))
    start = 0
    for i, group in enumerate(program.groups):
        seconds = program.s_per_byte[i] * np.outer(group.priced_rows, program.row_bytes).ravel() / unit
        slower[i, start : start + len(seconds)] = seconds
        slower[i, total * width + numbers[int(program.rounds[i])]] = -1.0
        start += len(seconds)
    return [
        optimize.LinearConstraint(one_each, 1.0, 1.0),
        optimize.LinearConstraint(slower.tocsr(), -np.inf, -program.latency_s / unit),
    ]


def milp(
    problem: BitWidthProblem,
    *,
    lam: float = 0.5,
    bits: Sequence[int] = (2, 4, 8),
    group_size: int = 100,
    normaliser: str = "max",
    exact_bytes: bool = True,
    time_limit_s: float = 60.0,
    seed: int = 0,
) -> BitWidthPlan:
    """Choose bit widths by integer programming with HiGHS, exchange by exchange.

    Args:
        problem: Messages, weights and costs.
        lam: Weight of the noise against the time, in [0, 1].
        bits: Allowed bit widths.
        group_size: Messages that share a bit width.
        normaliser: "max" or "min", as in `BitWidthProgram`.
        exact_bytes: Whether to charge the actual bytes of short groups and of row parameters.
        time_limit_s: Time limit of the solver for each exchange, in seconds.
        seed: Recorded in the plan.

    Raises:
        PlanError: A weight or an option is invalid, or the solver timed out.
    """
    return plan_by_exchange(
        "milp",
        partial(solve, time_limit_s=time_limit_s),
        problem,
        lam=lam,
        bits=bits,
        group_size=group_size,
        normaliser=normaliser,
        exact_bytes=exact_bytes,
        seed=seed,
    )


def paper(
    problem: BitWidthProblem,
    *,
    lam: float = 0.5,
    group_size: int = 100,
    cycle: int = 1,
    solver: str = "threshold",
    seed: int = 0,
) -> BitWidthPlan:
    """Choose bit widths as AdaQP does (section 4 and released code), with its objective and cost model.

    T_u sums each round's fastest channel, a short group is charged as a full one, and row parameters are not charged.
    Weights are the caller's; the released code squares the sum of a message's coefficients, which is right only if
    all errors have the same direction, and over-weights hubs. The exact solver finds the optimum of its integer
    program.

    Args:
        problem: Messages and weights.
        lam: Weight of the noise against the time.
        group_size: Messages that share a bit width.
        cycle: Index of the assignment cycle; cycle 0 has no traces yet and uses 8 bits.
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
