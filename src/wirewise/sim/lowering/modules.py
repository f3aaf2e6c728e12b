"""A step whose modules are known: buckets, codecs, fused modules, precision, recomputation and accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from wirewise.cost.gradients import GradientCosts
from wirewise.cost.links import Links
from wirewise.cost.traces import hosts_of
from wirewise.errors import InputError, PlanError
from wirewise.plans.fusion import Bucket, FusionPlan
from wirewise.sim.data_parallel import Transfer, module_step
from wirewise.sim.lowering.kinds import expect, links_or_none, refuse, same_parameters, same_ranks
from wirewise.sim.lowering.payloads import payload_of
from wirewise.sim.modules import Decision, groups_of, layers, one_op_a_launch
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.recorded import modules_of_trace
from wirewise.sim.replay import replay
from wirewise.trace.modules import ModuleTrace
from wirewise.trace.records import Trace

__all__ = ["lower_modules", "lower_trace"]


def lower_trace(
    plan: FusionPlan, job: Trace, links: Any, *, costs: GradientCosts | None = None
) -> Prediction:
    """The step of a recorded run, medians over its steps; links None: those that the trace tells."""
    if (between := links_or_none(plan, links)) is not None and list(hosts_of(job)) != list(
        between.host_of_rank
    ):
        raise InputError(
            f"the links have the ranks on hosts {between.host_of_rank.tolist()}, the trace on "
            f"{hosts_of(job).tolist()}; expected links of ranks that are spread as recorded"
        )
    modules, found = modules_of_trace(job, links)
    return lower_modules(plan, modules, found, costs=costs)


def lower_modules(
    plan: FusionPlan, job: ModuleTrace, links: Any, *, costs: GradientCosts | None = None
) -> Prediction:
    """The step op by op, all ranks.

    Where computing beside communication is slower, what runs between two launches is one op, as the slowdown is known
    as a mean.
    """
    links = expect("links", links, Links, plan)
    same_ranks(plan, len(job.hosts), "the job has")
    refuse(
        plan, ["regions"], "modules are no operators; predict it with the OperatorGraph that it was made from"
    )
    decision = _decision(plan, job)
    ops, sent = layers(job, decision), _transfers(plan, job, decision, costs)
    if job.interference != 1.0:
        ops, sent = one_op_a_launch(ops, sent)
    found = replay(module_step(job, ops, sent), links, interference=job.interference)
    return prediction_of(plan, "step", found.timeline(), found.step_s)


def _decision(plan: FusionPlan, job: ModuleTrace) -> Decision:
    """The plan's names as numbers of modules."""
    number = {module.name: i for i, module in enumerate(job.modules)}
    for field in ("recompute", "fused_ops"):
        named = (
            plan.recompute if field == "recompute" else [name for group in plan.fused_ops for name in group]
        )
        if unknown := [name for name in named if name not in number]:
            raise PlanError(
                f"the job has no module {unknown[0]!r} - at `$.{field}`; make the plan again for this job"
            )
    fused = []
    for place, group in enumerate(plan.fused_ops):
        members = sorted(number[name] for name in group)
        if members != list(range(members[0], members[0] + len(members))):
            raise PlanError(
                f"modules {', '.join(group)} do not follow each other - at `$.fused_ops[{place}]`; expected neighbours"
            )
        if len(members) > 1:
            fused.append((members[0], members[-1]))
    return Decision(
        buckets=(),
        fused=tuple(sorted(fused)),
        precision=plan.precision,
        recompute=frozenset(number[name] for name in plan.recompute),
        accumulation=plan.accumulation,
    )


def _transfers(
    plan: FusionPlan, job: ModuleTrace, decision: Decision, costs: GradientCosts | None
) -> list[Transfer]:
    """Buckets, each at the op that completes its last gradient and not before those ahead of it."""
    groups = groups_of(job, decision)
    op = {i: len(groups) - 1 - g for g, (first, last) in enumerate(groups) for i in range(first, last + 1)}
    same_parameters(plan.parameters, job.module_of)
    _check_size(plan, job)
    ready = [
        max(op[job.module_of[plan.parameter_of(name)]] for name in one.parameters) for one in plan.buckets
    ]
    sizes = [_size(bucket, job) for bucket in plan.buckets]
    places = np.maximum.accumulate(ready).tolist()
    return [
        Transfer(place, size, bucket.chunks, payload_of(bucket, size / bucket.chunks, job, costs))
        for place, size, bucket in zip(places, sizes, plan.buckets, strict=True)
    ]


def _check_size(plan: FusionPlan, job: ModuleTrace) -> None:
    whole = sum(job.sizes)
    if abs(plan.size_bytes - whole) > max(len(plan.buckets), 1e-9 * whole):
        raise PlanError(
            f"size_bytes of all buckets - at `$.buckets` - are {plan.size_bytes}, the job has {whole:.0f}; make the "
            "plan again for this job"
        )


def _size(bucket: Bucket, job: ModuleTrace) -> float:
    """Bytes of a bucket, as the job has them where it holds whole modules; plans round to bytes."""
    modules = {job.module_of[name] for name in bucket.parameters if name in job.module_of}
    held = {name for name, module in job.module_of.items() if module in modules}
    exact = sum(job.modules[i].gradient_bytes for i in modules)
    whole = held == set(bucket.parameters) and abs(exact - bucket.size_bytes) <= 1.0
    return exact if whole else float(bucket.size_bytes)
