"""Peak memory of a rank, and what to compute again or to accumulate so that it fits.

Peak = what is always there + the largest over all modules of (kept by the modules before it + saved by itself +
its workspace): while a module runs backward, those before it in the forward pass still hold what they keep, and
those behind it have let go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.fusion.problem import Decision, FusionProblem
from wirewise.units import format_size

__all__ = ["fit_memory", "peak_bytes"]

_UNITS = 2048
"""Sizes are rounded up to this share of all that is saved."""


def peak_bytes(problem: FusionProblem, decision: Decision) -> float:
    """Estimated peak of a rank."""
    scale, highest, before = _scale(decision), 0.0, 0.0
    for i, module in enumerate(problem.modules):
        highest = max(highest, before + module.saved_bytes + module.workspace_bytes)
        before += module.input_bytes if i in decision.recompute else module.saved_bytes
    return _always(problem, decision) + scale * max(highest, before)


def fit_memory(
    problem: FusionProblem, decision: Decision, budget_bytes: float, passes: Sequence[str]
) -> list[Decision]:
    """Decisions that fit: for every number of micro-steps the one that computes least again.

    Args:
        problem: What is decided on.
        decision: The rest of the decision.
        budget_bytes: Of a rank.
        passes: "recompute", "accumulation" and "precision" are used if they are among them.

    Raises:
        PlanError: Nothing fits; the message names the least peak.
    """
    steps = [k for k in (2**i for i in range(32)) if k <= problem.most_accumulation]
    types = ["float32", "bfloat16"] if "precision" in passes else [decision.precision]
    found, least = [], np.inf
    for precision in types:
        for k in steps if "accumulation" in passes else [decision.accumulation]:
            plain = replace(decision, accumulation=k, precision=precision, recompute=frozenset())
            options = [plain]
            if "recompute" in passes:
                options.append(replace(plain, recompute=_worthwhile(problem)))
            least = min(least, *(peak_bytes(problem, one) for one in options))
            if peak_bytes(problem, plain) <= budget_bytes:
                found.append(plain)
            elif "recompute" in passes and peak_bytes(problem, options[-1]) <= budget_bytes:
                found.append(replace(plain, recompute=_least_again(problem, plain, budget_bytes)))
    if not found:
        raise PlanError(
            f"no plan fits into {format_size(budget_bytes)}: the least possible peak is {format_size(least)} "
            f"({least:.0f} bytes) with the passes {', '.join(passes)}; give a larger budget, or more passes"
        )
    return found


def _scale(decision: Decision) -> float:
    """Of what is saved for the whole batch in float32."""
    return (0.5 if decision.precision == "bfloat16" else 1.0) / decision.accumulation


def _always(problem: FusionProblem, decision: Decision) -> float:
    # Autocast keeps the weights in bfloat16 as well.
    state = problem.state_factor + (0.5 if decision.precision == "bfloat16" else 0.0)
    return problem.other_bytes + state * sum(problem.sizes)


def _worthwhile(problem: FusionProblem) -> frozenset[int]:
    """Modules that keep less when they are computed again."""
    return frozenset(i for i, m in enumerate(problem.modules) if m.input_bytes < m.saved_bytes)


def _least_again(problem: FusionProblem, plain: Decision, budget_bytes: float) -> frozenset[int]:
    """Modules to compute again so that the peak fits, least forward time: exact but for the rounding of sizes.

    A dynamic programme over the modules: least time for every number of bytes kept so far. Sizes are rounded
    up to a unit that does not depend on the budget, so that a larger budget never costs more time; where the
    rounding leaves nothing, all that save memory are computed again.
    """
    unit = max(sum(m.saved_bytes for m in problem.modules), 1.0) / _UNITS
    room = (budget_bytes - _always(problem, plain)) / _scale(plain) / unit
    least = np.full(_UNITS + len(problem.modules) + 2, np.inf)
    least[0] = 0.0
    again: list[np.ndarray] = []
    kept, redone = (
        [int(np.ceil(getattr(m, name) / unit)) for m in problem.modules]
        for name in ("saved_bytes", "input_bytes")
    )
    for i, module in enumerate(problem.modules):
        own = (module.saved_bytes + module.workspace_bytes) / unit
        least[np.arange(len(least)) + own > room] = np.inf
        keep, redo = _shifted(least, kept[i]), _shifted(least, redone[i]) + module.forward_s
        if redone[i] >= kept[i]:
            redo[:] = np.inf
        again.append(redo < keep)
        least = np.minimum(keep, redo)
    least[np.arange(len(least)) > room] = np.inf
    if not np.isfinite(least).any():
        return _worthwhile(problem)
    chosen, state = set(), int(np.argmin(least))
    for i in range(len(problem.modules) - 1, -1, -1):
        if again[i][state]:
            chosen.add(i)
        state -= redone[i] if i in chosen else kept[i]
    return frozenset(chosen)


def _shifted(values: np.ndarray, by: int) -> np.ndarray:
    moved = np.full(len(values), np.inf)
    moved[by:] = values[: len(values) - by] if by else values
    return moved
