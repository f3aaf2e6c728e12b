"""Lowering of gradient traces: encoding, sending and decoding of each bucket.

Back-propagation and encoding share a thread, collectives another, in order (Cupcake, MLSys 2023, section 4). Decoding
is part of the collective's slot, runs on a separate thread, or on the compute thread after back-propagation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wirewise.cost.gradients import V100, GradientCosts, GroupCost, gathered_cost, group_costs
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans.fusion import FusionPlan
from wirewise.plans.splits import pieces
from wirewise.sim.lowering.kinds import links_or_none, refuse, same_parameters
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.step_replay import replay
from wirewise.sim.timeline import Timeline
from wirewise.trace.gradients import GradientTrace
from wirewise.trace.sketch import GraphSketch

__all__ = ["lower_gradients"]

Costs = GradientCosts | Sequence[GroupCost]

_UNKNOWN = "a gradient trace does not say what modules compute; predict it with a ModuleTrace or a Trace"


class _Part(NamedTuple):
    """A chunk of a bucket."""

    name: str
    ready_s: float
    """End of the back-propagation that it waits for, without encoding."""
    encode_s: float
    communicate_s: float
    decode_s: float
    decode: str


def lower_gradients(
    plan: FusionPlan,
    job: GradientTrace,
    links: Any,
    *,
    costs: Costs = V100,
    forward_share: float = 0.5,
    encode_contention: float | None = None,
) -> Prediction:
    """Simulate the step of one rank, representative of all; arguments as in `lower_fusion`."""
    between = links_or_none(plan, links)
    if isinstance(costs, GradientCosts) and all(bucket.way == "all_reduce" for bucket in plan.buckets):
        costs = costs.without_codecs()
    refuse(plan, ["fused_ops", "regions", "precision", "recompute", "accumulation"], _UNKNOWN)
    parts = _parts(plan, job, between, costs)
    whole_s = 1e-6 * sum(one.gap_us for one in job.tensors)
    flow = _sketch(parts, forward_share * whole_s, whole_s, encode_contention).dataflow()
    found = replay(flow, Links.uniform(1, np.inf))
    timeline = Timeline(
        spans=found.timeline().spans, world_size=plan.world_size, classes=(tuple(range(plan.world_size)),)
    )
    return prediction_of(plan, "step", timeline, found.step_s)


def _parts(plan: FusionPlan, job: GradientTrace, links: Links | None, costs: Costs) -> list[_Part]:
    sizes, ready = _tensors(plan, job)
    same_parameters((name for bucket in plan.buckets for name in bucket.parameters), sizes)
    known: dict[tuple[str, str], GroupCost] = {}
    found, before = list[_Part](), 0.0
    for number, bucket in enumerate(plan.buckets):
        elements = sum(sizes[name] for name in bucket.parameters)
        if bucket.size_bytes != 4 * elements:
            raise PlanError(
                f"bucket {number} holds {bucket.size_bytes} bytes - at `$.buckets[{number}].size_bytes`, the trace has "
                f"{4 * elements} of its gradients; make the plan again for this trace"
            )
        before = max(before, *(ready[name] for name in bucket.parameters))
        if (way := (bucket.codec, bucket.scheme)) not in known:
            known[way] = _cost(plan, number, links, costs)
        share = elements / bucket.chunks
        cost = known[way]
        for chunk in range(bucket.chunks):
            name = f"bucket {number}" if bucket.chunks == 1 else f"bucket {number} chunk {chunk}"
            found.append(_part(name, before, cost, share, bucket.decode))
    return found


def _part(name: str, ready_s: float, cost: GroupCost, elements: float, decode: str) -> _Part:
    curves = (cost.encode_s, cost.communicate_s, cost.decode_s)
    encode_s, communicate_s, decode_s = (float(curve(elements)) for curve in curves)
    return _Part(name, ready_s, encode_s, communicate_s, decode_s, decode)


def _tensors(plan: FusionPlan, job: GradientTrace) -> tuple[dict[str, int], dict[str, float]]:
    """Elements, and end of back-propagation, of each tensor or piece."""
    sizes, ready, now = dict[str, int](), dict[str, float](), 0.0
    for one in job.tensors:
        now += 1e-6 * one.gap_us
        cut = pieces(one.name, one.elements, plan.splits.get(one.name, one.elements))
        for piece, (first, end) in cut.items():
            name = piece if one.name in plan.splits else one.name
            sizes[name], ready[name] = end - first, now
    return sizes, ready


def _cost(plan: FusionPlan, number: int, links: Links | None, costs: Costs) -> GroupCost:
    bucket = plan.buckets[number]
    if isinstance(costs, GradientCosts):
        try:
            if bucket.codec == "none" and bucket.scheme in ("all_gather", "divisible"):
                return gathered_cost(costs, bucket.scheme, links, ranks=plan.world_size)
            found = group_costs(costs, bucket.codec, links, ranks=plan.world_size)
        except InputError as cause:
            raise PlanError(f"bucket {number} - at `$.buckets[{number}].codec`: {cause}") from cause
    else:
        found = list(costs)
    ways = {(one.codec, one.scheme): one for one in found}
    if (bucket.codec, bucket.scheme) not in ways:
        known = ", ".join(f"{codec} by {scheme}" for codec, scheme in ways)
        raise PlanError(
            f"bucket {number} - at `$.buckets[{number}].scheme`: {bucket.way} is not known between these ranks; "
            f"expected one of {known}"
        )
    return ways[bucket.codec, bucket.scheme]


def _sketch(parts: list[_Part], forward_s: float, whole_s: float, contention: float | None) -> GraphSketch:
    """The ops of one rank; each thread works in the order of the numbers."""
    sketch = GraphSketch([0])
    add, ready, sent, encoded = sketch.add_to, 0.0, -1, -1
    computed = add("compute", "forward", "forward", forward_s)
    lazy = list[tuple[_Part, int]]()
    for part in parts:
        computed = add("compute", f"backward of {part.name}", "backward", part.ready_s - ready, computed)
        ready, encode = part.ready_s, f"encode {part.name}"
        if contention is None:
            encoded = computed = add("compute", encode, "encode", part.encode_s, computed)
        else:
            encoded = add("encoder", encode, "encode", part.encode_s, computed, encoded)
            computed = add("compute", f"beside {encode}", "backward", contention * part.encode_s, computed)
        sent = add("communication", part.name, "communication", part.communicate_s, encoded, sent)
        if part.decode == "inline":
            sent = add("communication", f"decode {part.name}", "decode", part.decode_s, sent)
        elif part.decode == "queue":
            add("decoder", f"decode {part.name}", "decode", part.decode_s, sent)
        else:
            lazy.append((part, sent))
    computed = add("compute", "rest of backward", "backward", max(whole_s - ready, 0.0), computed)
    for part, arrived in lazy:
        computed = add("compute", f"decode {part.name}", "decode", part.decode_s, computed, arrived)
    return sketch
