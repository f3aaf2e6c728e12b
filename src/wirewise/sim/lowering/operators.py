"""Lowering of operator graphs: regions run as one kernel each, overlapped with buckets in flight (DisCo)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from wirewise.cost.gradients import V100, GradientCosts, group_costs
from wirewise.cost.link import LinkCost
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans.fusion import FusionPlan
from wirewise.sim.lowering.kinds import links_or_none, refuse, same_parameters
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.region_costs import AnalyticCosts, RegionCosts
from wirewise.sim.regions import Fusion, arrays, describe
from wirewise.sim.step_replay import replay
from wirewise.sim.timeline import Timeline
from wirewise.trace.operators import FusionGraph
from wirewise.trace.sketch import GraphSketch

__all__ = ["all_reduce_line", "lower_operators"]

_UNKNOWN = (
    "a graph of operators is captured as it computes, whole tensors; predict it with a ModuleTrace or a Trace"
)


def lower_operators(
    plan: FusionPlan,
    job: FusionGraph,
    links: Any,
    *,
    costs: GradientCosts = V100,
    regions: RegionCosts | None = None,
    all_reduce: LinkCost | None = None,
    overlap_rate: float = 1.0,
    other_s: float = 0.0,
) -> Prediction:
    """Simulate the step of one device, representative of all; arguments as in `lower_fusion`.

    Compute that overlaps with a bucket is slowed down on average over each region, where DisCo's own simulator does
    so from moment to moment.
    """
    refuse(plan, ["splits", "fused_ops", "precision", "recompute", "accumulation"], _UNKNOWN)
    job.check_itself()
    if not 0 < overlap_rate <= 1 or not 0 <= other_s < np.inf:
        raise InputError(
            f"got overlap_rate {overlap_rate} and other_s {other_s}; expected a share above 0 and up to 1, and seconds"
        )
    if all_reduce is not None and links is not None:
        raise InputError("got links and all_reduce; both say what a bucket takes, expected one of them")
    line = all_reduce or all_reduce_line(job, links_or_none(plan, links), costs, plan.world_size)
    seconds = regions or AnalyticCosts(job)
    found = replay(
        _sketch(plan, job, seconds, line, other_s).dataflow(),
        Links.uniform(1, np.inf),
        interference=1 / overlap_rate,
    )
    timeline = Timeline(
        spans=found.timeline().spans, world_size=plan.world_size, classes=(tuple(range(plan.world_size)),)
    )
    return prediction_of(plan, "step", timeline, found.step_s)


def all_reduce_line(
    job: FusionGraph, links: Links | None, costs: GradientCosts, ranks: int | None = None
) -> LinkCost:
    """Fixed seconds of an all-reduce, and seconds per byte: the nearest line up to the total gradient size.

    Raises:
        InputError: Raised by `group_costs`.
    """
    ways = {one.scheme: one.communicate_s for one in group_costs(costs, "none", links, ranks=ranks)}
    whole = sum(job.operators[i].output_bytes for i in job.gradients)
    # Curves go by elements of four bytes.
    latency_s, s_per_byte = ways["all_reduce"].of_share(1 / 4).nearest_line(whole)
    return LinkCost(latency_s=latency_s, s_per_byte=s_per_byte)


def _sketch(
    plan: FusionPlan, job: FusionGraph, seconds: RegionCosts, line: LinkCost, other_s: float
) -> GraphSketch:
    """One device works off the regions, one channel the buckets."""
    sketch = GraphSketch([0])
    add = sketch.add_to
    ends, computed = dict[int, int](), -1
    for number, (home, operators, leaving) in enumerate(_regions(plan, job)):
        own = seconds(operators, leaving)
        computed = add("compute", f"region {number}", "backward", own, computed)
        ends |= dict.fromkeys(home, computed)
    sent = -1
    for name, size_bytes, gradients in _buckets(plan, job):
        own = line.seconds(size_bytes)
        sent = add("communication", name, "communication", own, sent, *(ends[i] for i in gradients))
    if other_s > 0:
        add("compute", "other", "other", other_s, computed, sent)
    return sketch


def _buckets(plan: FusionPlan, job: FusionGraph) -> Iterator[tuple[str, float, list[int]]]:
    """Name, bytes and gradients of each all-reduce."""
    number = {job.operators[i].gradient: i for i in job.gradients}
    same_parameters(plan.parameters, number)
    for place, bucket in enumerate(plan.buckets):
        if bucket.way != "all_reduce":
            raise PlanError(f"bucket {place} - at `$.buckets[{place}]`: {bucket.way}; {_UNKNOWN}")
        own = [number[name] for name in bucket.parameters]
        size = sum(job.operators[i].output_bytes for i in own)
        if size != bucket.size_bytes:
            raise PlanError(
                f"bucket {place} holds {bucket.size_bytes} bytes - at `$.buckets[{place}].size_bytes`, the graph has "
                f"{size} of its gradients; make the plan again for this graph"
            )
        for chunk in range(bucket.chunks):
            name = f"bucket {place}" if bucket.chunks == 1 else f"bucket {place} chunk {chunk}"
            yield name, size / bucket.chunks, own


def _regions(
    plan: FusionPlan, job: FusionGraph
) -> Iterator[tuple[set[int], tuple[int, ...], tuple[int, ...]]]:
    """Operators at home, all operators, and those whose results leave, of each region in the order of launch."""
    number = {one.name: i for i, one in enumerate(job.operators)}
    for place, region in enumerate(plan.regions):
        if unknown := [name for name in region if name not in number]:
            raise PlanError(
                f"the graph has no operator {unknown[0]!r} - at `$.regions[{place}]`; make the plan again for "
                "this graph"
            )
    given = [frozenset(number[name] for name in region) for region in plan.regions]
    home: dict[int, int] = {}
    copies = list[tuple[int, int]]()
    for place, operators in enumerate(given):
        for one in sorted(operators):
            if home.setdefault(one, place) != place:
                copies.append((one, place))
    for one in range(len(job.operators)):
        if one not in home:
            home[one] = len(given)
            given.append(frozenset({one}))
    homes = np.array([home[one] for one in range(len(job.operators))], np.int64)
    copied, holder = np.array(copies, np.int64).reshape(-1, 2).T.copy()
    graph, fusion = arrays(job), Fusion(homes, copied, holder)
    for place in _launched(plan, job, given, home):
        computed, leaving = describe(graph, fusion, place)
        own = {one for one in given[place] if home[one] == place}
        yield own, tuple(computed.tolist()), tuple(leaving.tolist())


def _launched(
    plan: FusionPlan, job: FusionGraph, given: list[frozenset[int]], home: dict[int, int]
) -> list[int]:
    """Regions in the plan's order; operators in none run when a region first needs them."""
    order: dict[int, None] = {}

    def launch(place: int) -> None:
        outside = {i for one in given[place] for i in job.operators[one].inputs if i not in given[place]}
        copies = {one for one in given[place] if home[one] != place}
        for needed in sorted({home[one] for one in outside | copies} - order.keys()):
            if needed < len(plan.regions):
                raise PlanError(
                    f"region {place} - at `$.regions[{place}]` - needs region {needed}, which is launched later; "
                    "expected regions in an order in which they can run"
                )
            launch(needed)
        order[place] = None

    for place in range(len(given)):
        if place not in order:
            launch(place)
    return list(order)
