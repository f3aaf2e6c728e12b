"""Peak memory of a rank, and recomputation and accumulation that make it fit.

Peak = static memory + the maximum over modules of (kept by the modules before it + saved by itself + its workspace):
while a module runs backward, earlier modules still hold their activations, and later ones have freed theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.sim.modules import Decision
from wirewise.units import format_size

__all__ = ["fit_memory", "peak_bytes"]

_UNITS = 2048
"""Sizes are rounded up to this share of all that is saved."""


def peak_bytes(problem: FusionProblem, decision: Decision) -> float:
    """Estimated peak memory of a rank, in bytes."""
    highest, before = 0.0, 0.0
    for i, own in enumerate(_kept(problem, decision.precision)):
        highest = max(highest, before + own.saved + own.workspace)
        before += own.input if i in decision.recompute else own.saved
    return _always(problem, decision) + max(highest, before) / decision.accumulation


def fit_memory(
    problem: FusionProblem, decision: Decision, budget_bytes: float, passes: Sequence[str]
) -> list[Decision]:
    """Find decisions that fit: for every number of micro-steps, the one with the least recomputation.

    Args:
        problem: Modules and links.
        decision: Remaining parts of the decision.
        budget_bytes: Maximum memory of a rank, in bytes.
        passes: Allowed changes; "recompute", "accumulation" and "precision" matter here.

    Raises:
        PlanError: No decision fits; the message names the least peak.
    """
    steps = [k for k in (2**i for i in range(32)) if k <= problem.most_accumulation]
    types = ["float32", "bfloat16"] if "precision" in passes else [decision.precision]
    found, least = [], np.inf
    for precision in types:
        for k in steps if "accumulation" in passes else [decision.accumulation]:
            plain = replace(decision, accumulation=k, precision=precision, recompute=frozenset())
            options = [plain]
            if "recompute" in passes:
                options.append(replace(plain, recompute=_worthwhile(problem, precision)))
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


class _Kept(NamedTuple):
    """Bytes of a module for the whole batch; as in `Module`."""

    saved: float
    input: float
    workspace: float


def _kept(problem: FusionProblem, precision: str) -> list[_Kept]:
    whole = [_Kept(m.saved_bytes, m.input_bytes, m.workspace_bytes) for m in problem.modules]
    if precision == "float32":
        return whole
    measured = [m.bfloat16_bytes for m in problem.modules]
    return [_Kept(*(less or (0.5 * size for size in own))) for own, less in zip(whole, measured, strict=True)]


def _always(problem: FusionProblem, decision: Decision) -> float:
    # Autocast keeps the weights in bfloat16 as well.
    state = problem.state_factor + (0.5 if decision.precision == "bfloat16" else 0.0)
    return problem.other_bytes + state * sum(problem.sizes)


def _worthwhile(problem: FusionProblem, precision: str) -> frozenset[int]:
    """Modules that keep less when they are computed again."""
    return frozenset(i for i, own in enumerate(_kept(problem, precision)) if own.input < own.saved)


def _least_again(problem: FusionProblem, plain: Decision, budget_bytes: float) -> frozenset[int]:
    """Modules to compute again so that the peak fits, least forward time: exact but for the rounding of sizes.

    A dynamic programme over the modules: least time for every number of bytes kept so far. Sizes are rounded
    up to a unit that does not depend on the budget, so that a larger budget never costs more time; where the
    rounding leaves nothing, all that save memory are computed again.
    """
    sizes = _kept(problem, plain.precision)
    unit = max(sum(own.saved for own in sizes), 1.0) / _UNITS
    room = (budget_bytes - _always(problem, plain)) * plain.accumulation / unit
    least = np.full(_UNITS + len(problem.modules) + 2, np.inf)
    least[0] = 0.0
    again: list[np.ndarray] = []
    kept, redone = (
        [int(np.ceil(size / unit)) for size in part]
        for part in ([own.saved for own in sizes], [own.input for own in sizes])
    )
    for i, module in enumerate(problem.modules):
        own = (sizes[i].saved + sizes[i].workspace) / unit
        least[np.arange(len(least)) + own > room] = np.inf
        keep, redo = _shifted(least, kept[i]), _shifted(least, redone[i]) + module.forward_s
        if redone[i] >= kept[i]:
            redo[:] = np.inf
        again.append(redo < keep)
        least = np.minimum(keep, redo)
    least[np.arange(len(least)) > room] = np.inf
    if not np.isfinite(least).any():
        return _worthwhile(problem, plain.precision)
    chosen, state = set(), int(np.argmin(least))
    for i in range(len(problem.modules) - 1, -1, -1):
        if again[i][state]:
            chosen.add(i)
        state -= redone[i] if i in chosen else kept[i]
    return frozenset(chosen)


def _shifted(values: np.ndarray, by: int) -> np.ndarray:
    return np.concatenate([np.full(by, np.inf), values])[: len(values)]
