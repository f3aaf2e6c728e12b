"""Lowering of fusion plans to a data-parallel training step, by type of the job."""

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
"""Lowerings by the type of the job."""


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
    """Lower the plan by the type of the job; see `predict`.

    Args:
        plan: Buckets, and further changes of the step.
        job: One of `GRAINS`.
        links: Links of its ranks.
        costs: `GradientCosts`: codec times, and collective times if measured, in seconds; for a gradient trace also
            the `GroupCost` of each codec and scheme.
        regions: Seconds of regions of operators. Defaults to the analytic ones.
        all_reduce: Fixed seconds of an all-reduce of operators, and seconds per byte. Defaults to those of `costs`
            and links.
        forward_share: Forward time of a gradient trace, as a fraction of back-propagation time.
        encode_contention: Contention of a gradient trace, as in `CompressionProblem`.
        overlap_rate: Compute speed of operators while a bucket is in flight, relative to 1 without.
        other_s: Seconds of a step outside its operators.
        fold: Whether equally fast ranks of a module trace are simulated once; if False, each separately, with the
            same result.

    Raises:
        InputError: The job is of another type, or a condition does not apply to it.
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
