"""Lowering of module traces: buckets, codecs, fused modules, precision, recomputation and accumulation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from wirewise.collective.named import collective_flows
from wirewise.cost.gradients import WIRES, GradientCosts, wire_bytes
from wirewise.cost.links import Links
from wirewise.cost.traces import hosts_of
from wirewise.errors import InputError, PlanError
from wirewise.plans.fusion import Bucket, FusionPlan
from wirewise.sim.data_parallel import BucketTransfer, Payload, module_step
from wirewise.sim.lowering.kinds import expect, links_or_none, refuse, same_parameters, same_ranks
from wirewise.sim.modules import Decision, groups_of, layers, one_op_a_launch
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.recorded import modules_of_trace
from wirewise.sim.step_replay import replay
from wirewise.sim.timeline import rank_classes
from wirewise.trace.modules import ModuleTrace
from wirewise.trace.records import Trace

__all__ = ["lower_modules", "lower_trace"]


def lower_trace(
    plan: FusionPlan, job: Trace, links: Any, *, costs: GradientCosts | None = None, fold: bool = True
) -> Prediction:
    """Simulate the step of a recorded run, with medians over its steps; links default to those fitted to the trace."""
    if (between := links_or_none(plan, links)) is not None and list(hosts_of(job)) != list(
        between.host_of_rank
    ):
        raise InputError(
            f"the links have the ranks on hosts {between.host_of_rank.tolist()}, the trace on "
            f"{hosts_of(job).tolist()}; expected links of ranks that are spread as recorded"
        )
    modules, found = modules_of_trace(job, links)
    return lower_modules(plan, modules, found, costs=costs, fold=fold)


def lower_modules(
    plan: FusionPlan, job: ModuleTrace, links: Any, *, costs: GradientCosts | None = None, fold: bool = True
) -> Prediction:
    """Simulate the step op by op; equally fast ranks are simulated once, as collectives are synchronous.

    If overlapped compute is slower, all ops between two launches are merged into one, as only the mean slowdown is
    known.
    """
    links = expect("links", links, Links, plan)
    same_ranks(plan, len(job.hosts), "the job has")
    refuse(
        plan, ["regions"], "modules are no operators; predict it with the FusionGraph that it was made from"
    )
    decision = _decision(plan, job)
    ops, sent = layers(job, decision), _transfers(plan, job, decision, costs)
    if job.interference != 1.0:
        ops, sent = one_op_a_launch(ops, sent)
    classes = rank_classes(job.slowdown or [1.0] * plan.world_size) if fold else ()
    flow = module_step(job, ops, sent, simulated=[own[0] for own in classes] or None)
    found = replay(flow, links, interference=job.interference)
    return prediction_of(plan, "step", found.timeline(classes), found.step_s)


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
) -> list[BucketTransfer]:
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
        BucketTransfer(place, size, bucket.chunks, _payload_of(bucket, size / bucket.chunks, job, costs))
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


def _payload_of(
    bucket: Bucket, size_bytes: float, job: ModuleTrace, costs: GradientCosts | None
) -> Payload | None:
    """The payload of a chunk of so many bytes of float32 gradients; None if it is all-reduced as it is.

    Raises:
        PlanError: A codec whose seconds are not known, payloads that the scheme cannot carry, or hosts that it cannot
            divide; the message says which.
    """
    if bucket.way == "all_reduce":
        return None
    encode_s = decode_s = 0.0
    if bucket.codec != "none":
        encode_s, decode_s = _codec_s(bucket, size_bytes / 4.0, job, costs)
    ratio = costs.ratio if costs is not None else 0.01
    if bucket.scheme == "hierarchical":
        parts, rounds = _hierarchical(bucket, size_bytes, job, ratio)
        return Payload(parts, rounds, encode_s, decode_s, bucket.decode)
    sent = wire_bytes(bucket.codec, max(round(size_bytes / 4), 1), ratio=ratio)
    # Codes of shares go to their owners and back: as many bytes as a ring all-reduce of the codes sends.
    name = "all_gather" if bucket.scheme == "all_gather" else "all_reduce"
    algorithm = job.algorithm if bucket.scheme == "all_reduce" else "ring"
    flows, rounds = collective_flows(name, list(job.hosts), float(sent), algorithm)
    rounds *= 2 if WIRES[bucket.codec].rank else 1
    return Payload(tuple(flows), rounds, encode_s, decode_s, bucket.decode, name)


def _codec_s(
    bucket: Bucket, elements: float, job: ModuleTrace, costs: GradientCosts | None
) -> tuple[float, float]:
    """Seconds to encode a chunk, and to decode what comes of it."""
    wire = WIRES.get(bucket.codec)
    if wire is None or costs is None or bucket.codec not in costs.codecs:
        known = ", ".join(costs.codecs) if costs is not None else "none, as no costs are given"
        raise PlanError(
            f"seconds of codec {bucket.codec!r} are not known ({known}); give costs=GradientCosts(...) with its times"
        )
    if bucket.scheme == "all_reduce" and not wire.linear:
        raise PlanError(
            f"payloads of {bucket.codec!r} cannot be added up; expected scheme all_gather or divisible"
        )
    times = costs.codecs[bucket.codec]
    ranks, hosts = len(job.hosts), len(set(job.hosts))
    encode, share = times.encode_s(), 1.0 / ranks
    if bucket.scheme == "hierarchical":
        share = hosts / ranks
        return float(encode(elements * share)), float(times.decode_s(hosts)(elements * share))
    if bucket.scheme == "divisible":
        # A rank decodes the shares of all, encodes their sum, and decodes all sums.
        shares = float(times.decode_s(ranks)(elements * share))
        return float(encode(elements)), 2.0 * shares + float(encode(elements * share))
    return float(encode(elements)), float(
        times.decode_s(1 if bucket.scheme == "all_reduce" else ranks)(elements)
    )


def _hierarchical(
    bucket: Bucket, size_bytes: float, job: ModuleTrace, ratio: float
) -> tuple[tuple[tuple[int, int, float], ...], int]:
    """Sums within hosts as they are, shares between hosts compressed."""
    counts = Counter(job.hosts)
    each = set(counts.values())
    if len(each) != 1:
        raise PlanError(f"hosts have {sorted(each)} ranks; scheme 'hierarchical' expects as many on each")
    k, hosts = each.pop(), sorted(counts)
    inside = [(host, host, 2.0 * (k - 1) * size_bytes) for host in hosts if k > 1]
    if len(hosts) == 1:
        return tuple(inside), 2
    if bucket.codec == "none":
        between, rounds = 2.0 * (len(hosts) - 1) / len(hosts) * size_bytes, 2 * (len(hosts) - 1)
    else:
        share = wire_bytes(bucket.codec, max(round(size_bytes / 4 / k), 1), ratio=ratio)
        between, rounds = float(k * (len(hosts) - 1) * share), len(hosts) - 1
    ring = [(host, hosts[(i + 1) % len(hosts)], between) for i, host in enumerate(hosts)]
    return (*inside, *ring), rounds + 2 * (k > 1)
