"""Recorded step with a fusion plan's buckets in place of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.plans import FusionPlan
from wirewise.sim.gradients import Gradients
from wirewise.sim.lowering.kinds import expect, refuse, same_ranks
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.step_replay import replay
from wirewise.trace.dataflow import Dataflow

__all__ = ["lower_recorded", "with_plan"]

_UNKNOWN = "a recorded graph computes as it did, and sums float32; predict it with its ModuleTrace or Trace"


def lower_recorded(plan: FusionPlan, job: Dataflow, links: Any) -> Prediction:
    """Replay the recorded step with ring all-reduces of the plan's buckets, other ops unchanged."""
    links = expect("links", links, Links, plan)
    found = replay(with_plan(job, links, plan), links)
    return prediction_of(plan, "step", found.timeline(), found.step_s)


def with_plan(flow: Dataflow, links: Links, plan: FusionPlan) -> Dataflow:
    """Replace the graph's buckets by the plan's.

    A bucket is reduced once the backward op that completes its last gradient is done and the buckets before it are
    launched. That op is found by name if backward ops are named like parameters or their modules; otherwise the
    plan's order is assumed to be that of the gradients, and the op is found by bytes.

    Args:
        flow: Step of data-parallel training.
        links: Links of its hosts.
        plan: Plan for this number of ranks.

    Raises:
        PlanError: The plan is inconsistent, of another number of ranks, or changes more than buckets.
        InputError: The graph has no gradient buckets, or the ranks have different backward ops.
    """
    plan.check_itself()
    same_ranks(plan, flow.ranks, "the graph has")
    refuse(plan, ["fused_ops", "regions", "precision", "recompute", "accumulation"], _UNKNOWN)
    for number, bucket in enumerate(plan.buckets):
        if bucket.way != "all_reduce":
            raise PlanError(f"bucket {number} - at `$.buckets[{number}]`: {bucket.way}; {_UNKNOWN}")
    gradients = Gradients(flow, links)
    places = _by_name(flow, gradients.backward[0], plan) or _by_bytes(gradients.sizes, plan)
    for bucket, place in zip(plan.buckets, np.maximum.accumulate(places).tolist(), strict=True):
        gradients.put(place, float(bucket.size_bytes), chunks=bucket.chunks)
    return gradients.sketch.dataflow()


def _by_name(flow: Dataflow, backward: list[int], plan: FusionPlan) -> list[int]:
    """Place of the op that completes each bucket; empty where a parameter has no op of its name."""
    place: dict[str, int] = {}
    for number, op in enumerate(backward):
        for name in (flow.names[op], *(flow.member_ops[op] if flow.member_ops else ())):
            place[name] = number
    ready = {name: next((place[n] for n in _prefixes(name) if n in place), -1) for name in plan.parameters}
    if min(ready.values()) < 0:
        return []
    return [max(ready[plan.parameter_of(name)] for name in bucket.parameters) for bucket in plan.buckets]


def _prefixes(name: str) -> list[str]:
    """The parameter, its module, the module around that, and so on."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _by_bytes(sizes: np.ndarray, plan: FusionPlan) -> list[int]:
    share = np.cumsum([bucket.size_bytes for bucket in plan.buckets]) / plan.size_bytes
    found = np.searchsorted(np.cumsum(sizes) / sizes.sum(), share - 1e-9)
    return [int(place) for place in np.minimum(found, len(sizes) - 1)]
