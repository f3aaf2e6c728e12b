"""Gradient candidates for a run that can be replayed: buckets, bucket views, codecs, sharding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from wirewise import plans
from wirewise.advice.lines import bucket_lines, plan_lines, wrapper_lines
from wirewise.advice.records import LEAST_GAIN, Candidate
from wirewise.cost.gradients import WIRES
from wirewise.errors import WirewiseError
from wirewise.plans import FusionPlan
from wirewise.plans.fusion import LOSSES
from wirewise.report.figures import count
from wirewise.sim.lowering.recorded import with_plan
from wirewise.sim.recorded import modules_of_trace
from wirewise.sim.whatif import Change
from wirewise.trace.records import Op, Trace
from wirewise.units import format_size

if TYPE_CHECKING:
    from wirewise.advice.families.replayed import ReplayedJob
    from wirewise.planners.fusion import FusionProblem

__all__ = ["bucket_view", "buckets", "codecs", "has_all_reduces", "sharding"]

_CAPS = ("1", "5", "25", "100")
"""Caps of buckets in MiB that are tried; 25 is the default of DistributedDataParallel."""
_SEARCH_S = 10.0
"""Budget of work of the search for buckets; on the committed traces it settles within a tenth of it."""
_STATES = 4
"""Bytes of a rank's states over those of its gradients: weights, gradients and two moments of Adam."""


def has_all_reduces(trace: Trace) -> bool:
    """Whether the trace has an all-reduce among several ranks."""
    return trace.world_size > 1 and any(True for _ in _reduced(trace))


def has_buckets(trace: Trace) -> bool:
    """Whether all-reduces are known to be buckets of a wrapper around a model."""
    return any(op.parameters for op in _reduced(trace))


def _reduced(trace: Trace) -> Iterator[Op]:
    return (op for op in trace.ranks[0].ops if op.kind == "communication" and op.collective == "all_reduce")


def buckets(job: ReplayedJob) -> list[Candidate] | str:
    """Best `bucket_cap_mb` of DistributedDataParallel, and the buckets that dPRO's search finds."""
    if not has_all_reduces(job.trace):
        return "the trace has no all-reduces of gradients"
    caps = [
        job.candidate(
            "buckets",
            f"{cap} MiB",
            f"bucket_mb={cap}",
            lines=bucket_lines(cap),
            arguments={"bucket_cap_mb": float(cap)},
        )
        for cap in _CAPS
    ]
    best = min(caps, key=lambda one: one.predicted_step_s or 0.0)
    return [best, *_searched(job)]


def _searched(job: ReplayedJob) -> list[Candidate]:
    from wirewise.planners.fusion import dpro

    try:
        plan = dpro(_problem(job), passes=("tensor_fusion", "partition"), time_budget_s=_SEARCH_S)
        assert isinstance(plan, FusionPlan)
        found = job.candidate("buckets", "dpro", [_under(plan)], note=count(len(plan.buckets), "bucket"))
    except WirewiseError:
        # What the search cannot take apart, the caps above still answer.
        return []
    if (file := job.save("buckets-dpro")) is None:
        return [found]
    plans.save(plan, file)
    return [msgspec.structs.replace(found, plan_file=str(file), lines=plan_lines(file))]


def _under(plan: FusionPlan) -> Change:
    """Every recorded step with the plan's buckets in place of its own."""
    return Change(
        "plan", lambda setting: replace(setting, dataflow=with_plan(setting.dataflow, setting.links, plan))
    )


def _problem(job: ReplayedJob) -> FusionProblem:
    from wirewise.planners.fusion import FusionProblem

    return FusionProblem.of(*modules_of_trace(job.trace))


def bucket_view(job: ReplayedJob) -> list[Candidate] | str:
    """Candidates `gradient_as_bucket_view` and `static_graph`; their time cannot be predicted from a trace."""
    size = _gradient_bytes(job.trace)
    if not size:
        return "the trace has no all-reduces of gradients"
    return [
        Candidate(
            family="bucket-view",
            planner="gradient_as_bucket_view",
            predicted_step_s=job.step_s,
            memory_bytes=-size,
            lines=wrapper_lines("gradient_as_bucket_view"),
            note="saves memory where it is not set yet; the copies that it saves are no part of a trace",
            arguments={"gradient_as_bucket_view": True},
        ),
        Candidate(
            family="bucket-view",
            planner="static_graph",
            predicted_step_s=job.step_s,
            lines=wrapper_lines("static_graph"),
            note="for a model of which each step uses the same parameters; what it saves is no part of a trace",
            arguments={"static_graph": True},
        ),
    ]


def _gradient_bytes(trace: Trace) -> int:
    """Bytes that rank 0 reduces in its last step; 0 if it reduces none with others."""
    steps = trace.steps()
    return sum(op.size_bytes for op in _reduced(trace) if op.step == steps[-1]) if trace.world_size > 1 else 0


def codecs(job: ReplayedJob) -> list[Candidate] | str:
    """Codecs with known encode and decode times, each applied to all recorded buckets."""
    if not has_all_reduces(job.trace):
        return "the trace has no all-reduces of gradients"
    if (most := job.exposed_share) < LEAST_GAIN:
        return f"even if communication took no time, a step would be {max(most, 0.0):.1%} shorter"
    if job.costs is None:
        return (
            f"at most {most:.0%} of a step can be saved, but seconds of codecs are not in a trace; give --costs FILE, "
            "or have them measured: wirewise advise -- torchrun ... train.py"
        )
    return _compressed(job)


def _compressed(job: ReplayedJob) -> list[Candidate]:
    from wirewise.planners.fusion.search import baseline, make_plan
    from wirewise.sim import predict

    assert job.costs is not None
    problem = _problem(job)
    plain = make_plan(problem, baseline(problem), planner="recorded")
    base_s = predict(plain, problem, problem.links).step_s
    found = []
    for codec in job.costs.codecs:
        plan = _with_codec(plain, codec)
        share = predict(plan, problem, problem.links, costs=job.costs).step_s / base_s
        found.append(_codec_candidate(job, plan, codec, share * job.step_s))
    return found


def _with_codec(plan: FusionPlan, codec: str) -> FusionPlan:
    scheme = "all_reduce" if WIRES[codec].linear else "all_gather"
    coded = tuple(msgspec.structs.replace(one, codec=codec, scheme=scheme) for one in plan.buckets)
    return msgspec.structs.replace(plan, buckets=coded, planner=f"recorded buckets with {codec}")


def _codec_candidate(job: ReplayedJob, plan: FusionPlan, codec: str, step_s: float) -> Candidate:
    file = job.save(f"codec-{codec}")
    if file is not None:
        plans.save(plan, file)
    return Candidate(
        family="codecs",
        planner=codec,
        predicted_step_s=step_s,
        risk=f"sends {LOSSES.get(codec, 'less')} in the place of each gradient; compare the loss of whole runs",
        plan_file="" if file is None else str(file),
        lines=() if file is None else plan_lines(file),
    )


def sharding(job: ReplayedJob) -> list[Candidate] | str:
    """FSDP2 as a candidate: states the memory saved; its step time cannot be replayed."""
    if any(op.collective == "reduce_scatter" for op in job.trace.ranks[0].ops):
        return "the job shards its parameters already"
    if not (size := _gradient_bytes(job.trace)):
        return "the trace has no all-reduces of gradients"
    states = _STATES * size
    return (
        f"it keeps {format_size(states // job.ranks)} of the {format_size(states)} that weights, gradients and moments "
        "of Adam take on each rank, and sends half as many bytes more; where memory is short try it, as the replay "
        "knows no sharded steps"
    )
