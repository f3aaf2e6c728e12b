"""A step of data-parallel training under a fusion plan, by the grain in which the job is described."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wirewise.errors import InputError
from wirewise.plans.fusion import FusionPlan
from wirewise.sim.lowering.gradients import lower_gradients
from wirewise.sim.lowering.modules import lower_modules, lower_trace
from wirewise.sim.lowering.operators import lower_operators
from wirewise.sim.lowering.recorded import lower_recorded
from wirewise.sim.prediction import Prediction
from wirewise.trace.arrays import Dataflow
from wirewise.trace.gradients import GradientTrace
from wirewise.trace.modules import ModuleTrace
from wirewise.trace.operators import FusionGraph
from wirewise.trace.records import Trace

__all__ = ["GRAINS", "lower_fusion"]

GRAINS: dict[type, Callable[..., Prediction]] = {
    ModuleTrace: lower_modules,
    GradientTrace: lower_gradients,
    FusionGraph: lower_operators,
    Dataflow: lower_recorded,
    Trace: lower_trace,
}
"""How each description of a job is lowered."""


def lower_fusion(
    plan: FusionPlan,
    job: Any,
    links: Any,
    *,
    costs: Any = None,
    regions: Any = None,
    all_reduce: Any = None,
    forward_share: float | None = None,
    encode_contention: float | None = None,
    overlap_rate: float | None = None,
    other_s: float | None = None,
    fold: bool | None = None,
) -> Prediction:
    """Lower the plan onto the job's grain; see `predict`.

    Args:
        plan: Buckets, and what else changes the step.
        job: One of `GRAINS`.
        links: Links of its ranks.
        costs: `GradientCosts`: seconds of codecs, and of collectives where these were measured; of a gradient trace
            also the `GroupCost` of each codec and scheme.
        regions: Seconds of regions of operators; None: the analytic ones.
        all_reduce: Fixed seconds of an all-reduce of operators, and seconds a byte; None: as `costs` and links say.
        forward_share: Time of a gradient trace's forward pass over that of back-propagation.
        encode_contention: Contention of a gradient trace, as `CompressionProblem` has it.
        overlap_rate: Rate at which operators compute while a bucket travels, of 1 alone.
        other_s: Seconds that a step takes beside its operators.
        fold: Whether ranks of a module trace that compute equally fast are simulated once, as by default; False: each
            by itself, which says the same.

    Raises:
        InputError: A description of another kind, or a condition that this grain has no use for.
    """
    lower = next((one for kind, one in GRAINS.items() if isinstance(job, kind)), None)
    if lower is None:
        got = "none" if job is None else f"a {type(job).__name__}"
        known = ", ".join(kind.__name__ for kind in GRAINS)
        raise InputError(f"got {got} as the job of a fusion plan; expected one of {known}")
    given = {
        "costs": costs,
        "regions": regions,
        "all_reduce": all_reduce,
        "forward_share": forward_share,
        "encode_contention": encode_contention,
        "overlap_rate": overlap_rate,
        "other_s": other_s,
        "fold": fold,
    }
    given = {name: value for name, value in given.items() if value is not None}
    allowed = lower.__kwdefaults__ or {}
    if unknown := sorted(set(given) - set(allowed)):
        raise InputError(
            f"{unknown[0]!r} says nothing about a {type(job).__name__}; expected: {', '.join(allowed) or 'none'}"
        )
    return lower(plan, job, links, **given)
