"""One prediction for every plan: what its planner predicted, and what no simulator may get wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from msgspec.structs import replace as changed

from tests.conformance.instances import CASES
from wirewise.collective.network import Network
from wirewise.cost import Links
from wirewise.cost.gradients import V100, CodecTimes, GroupCost
from wirewise.plans import DeploymentPlan, FusionPlan, ParallelPlan
from wirewise.sim import BatchTimes, predict
from wirewise.trace import GradientTensor, GradientTrace

ROW_BYTES = 400


def predicted(case, *, plan=None, links=None):
    """The prediction of a case's plan, or of another plan or on other links, with what its planner knew."""
    if plan is None and links is None:
        return _as_planned(case.grain, case.id)
    plan = case.plan() if plan is None else plan
    return PREDICT[case.grain](case.instance, plan, case.instance.links if links is None else links)


@cache
def _as_planned(grain, number):
    case = next(case for case in CASES if (case.grain, case.id) == (grain, number))
    return PREDICT[grain](case.instance, case.plan(), case.instance.links)


def _gradients(one, plan, links):
    problem = one.problem
    ways = [GroupCost(o.codec, o.scheme, o.encode_s, o.communicate_s, o.decode_s) for o in problem.options]
    names = problem.names or [str(number) for number in range(len(problem.elements))]
    job = one.job or GradientTrace(
        tensors=tuple(
            GradientTensor(name=name, elements=int(elements), gap_us=1e6 * gap)
            for name, elements, gap in zip(names, problem.elements, problem.gaps_s, strict=True)
        )
    )
    more = {} if problem.encode_contention is None else {"encode_contention": problem.encode_contention}
    costs = ways if one.job is None else one.costs
    share = problem.forward_s / sum(problem.gaps_s)
    return predict(plan, job, links, costs=costs, forward_share=share, **more)


def _operators(one, plan, links):
    more = {} if one.problem.overlap_rate == 1.0 else {"overlap_rate": one.problem.overlap_rate}
    return predict(plan, one.job, regions=one.costs, all_reduce=links, other_s=1e-5, **more)


PREDICT = {
    "bitwidth": lambda one, plan, links: predict(plan, None, links, costs=one.costs.codec),
    "modules": lambda one, plan, links: predict(plan, one.problem, links),
    "gradients": _gradients,
    "operators": _operators,
    "collective": lambda one, plan, links: predict(plan, None, links),
    "cache": lambda one, plan, links: predict(plan, BatchTimes(row_bytes=ROW_BYTES), links),
    "placement": lambda one, plan, links: predict(plan, one.job, links),
    "recovery": lambda one, plan, links: predict(plan, one.job, links),
    "jobs": lambda one, plan, links: predict(plan, one.job),
    "reshard": lambda one, plan, links: predict(plan, None, links),
    "stages": lambda one, plan, links: predict(plan, one.job, links),
    "deployment": lambda one, plan, links: predict(plan, one.job, links),
    "parallel": lambda one, plan, links: predict(plan, one.job, links),
}

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.grain}/{case.id}")


@pytest.mark.sweep
@every_case
def test_it_is_what_the_planner_predicted(case):
    plan, found = case.plan(), predicted(case)
    if case.grain == "bitwidth":
        longest = dict.fromkeys(plan.predicted_s, 0.0)
        for span in found.timeline.spans:
            if span.phase == "wire":
                longest[span.exchange] = max(longest.get(span.exchange, 0.0), span.seconds)
        assert not plan.predicted_s or longest == pytest.approx(plan.predicted_s, rel=1e-9, abs=1e-15)
    elif case.grain == "cache":
        rows, links = plan.imbalance * plan.fetched, case.instance.links
        seconds = sum(
            max(
                (matrix.sum(axis=1) * size / links.bandwidth_in_bytes_per_s).max(),
                (matrix.sum(axis=0) * size / links.bandwidth_out_bytes_per_s).max(),
            )
            for matrix, size in ((rows.T, 4), (rows, ROW_BYTES))
        )
        assert found.step_s == pytest.approx(seconds + 2 * links.latency_s.max(), rel=1e-9)
    else:
        wanted = (
            plan.predicted_step_s
            if isinstance(plan, (DeploymentPlan, FusionPlan, ParallelPlan))
            else plan.predicted_s
        )
        # A measured overlap slows operators down from moment to moment in the planner, here as a mean over regions.
        learned = case.grain == "operators" and case.instance.problem.overlap_rate < 1.0
        assert found.step_s == pytest.approx(wanted, rel=1e-2 if learned else 1e-9)


@pytest.mark.sweep
@every_case
def test_its_timeline_and_its_parts_say_the_same(case):
    found = predicted(case)
    parts, spans = found.breakdown, found.timeline.spans
    assert found.family == case.plan().family and found.source == "simulated"
    assert parts.compute_s + parts.exposed_communication_s + parts.wait_s == pytest.approx(found.step_s)
    assert all(span.end_s > span.start_s >= 0 for span in spans)
    assert all(0 <= span.rank < found.timeline.world_size for span in spans)
    assert max((span.end_s for span in spans), default=0.0) == pytest.approx(
        found.step_s, rel=1e-9, abs=1e-15
    )
    said = found.summary()
    assert all(phase in said for phase in found.phases_s) and f"{found.step_s * 1e3:.3f} ms" in said


def _twice_as_fast(links):
    if isinstance(links, Links):
        return replace(links.scaled(2.0), intra_bytes_per_s=2 * links.intra_bytes_per_s)
    if isinstance(links, Network):
        edges = [e._replace(bandwidth_bytes_per_s=2 * e.bandwidth_bytes_per_s) for e in links.edges]
        return changed(links, edges=tuple(edges))
    return changed(links, s_per_byte=links.s_per_byte / 2)


# Groups that are no trace have curves of seconds and no links; jobs of a queue run each within a cluster.
ON_LINKS = [
    case
    for case in CASES
    if case.grain != "jobs" and (case.grain != "gradients" or case.name.startswith("trace"))
]


@pytest.mark.sweep
@pytest.mark.parametrize("case", ON_LINKS, ids=lambda case: f"{case.grain}/{case.id}")
def test_twice_the_bandwidth_is_never_slower(case):
    assert predicted(case, links=_twice_as_fast(case.instance.links)).step_s <= predicted(case).step_s * (
        1 + 1e-9
    )


def _in_no_time(codecs):
    """Costs of codecs that take no time at all."""
    nothing = CodecTimes(((1.0, 0.0), (1e9, 0.0)), ((1.0, 0.0), (1e9, 0.0)))
    return changed(V100, codecs={codec: nothing for codec in codecs if codec != "none"})


# Bytes fall from left to right, by the scheme that all of them can take.
LIGHTER = {
    "all_reduce": ("none", "fp16", "randomk"),
    "divisible": ("qsgd", "int4", "terngrad", "efsign"),
    "all_gather": ("qsgd", "int4", "efsign", "topk"),
}


DPRO_AND_CUPCAKE = [
    case
    for case in CASES
    if (case.grain == "gradients" and case.name == "trace")
    or (case.grain == "modules" and case.planner == "dpro")
]


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", LIGHTER)
@pytest.mark.parametrize("case", DPRO_AND_CUPCAKE, ids=lambda case: f"{case.grain}/{case.id}")
def test_fewer_bytes_are_never_slower_where_codecs_take_no_time(case, scheme):
    plan, one, seconds = case.plan(), case.instance, []
    job, costs = one.problem if case.grain == "modules" else one.job, _in_no_time(LIGHTER[scheme])
    for codec in LIGHTER[scheme]:
        buckets = tuple(changed(b, codec=codec, scheme=scheme) for b in plan.buckets)
        seconds.append(predict(changed(plan, buckets=buckets), job, one.links, costs=costs).step_s)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(seconds)), seconds


def test_fewer_bits_are_never_slower_where_codecs_take_no_time():
    for case in CASES:
        if case.grain == "bitwidth" and case.planner == "uniform":
            plan, seconds = case.plan(), []
            for bits in (32, 16, 8, 4, 2, 1):
                channels = tuple(changed(c, bits=bytes([bits]) * len(c.bits)) for c in plan.channels)
                lighter = changed(plan, channels=channels, forward_covers_backward=False)
                seconds.append(predict(lighter, None, case.instance.links).step_s)
            assert seconds == sorted(seconds, reverse=True)


def test_fewer_rows_are_never_slower():
    for case in CASES:
        if case.grain == "cache":
            plan = case.plan()
            half = tuple(changed(m, fetched=tuple(rows / 2 for rows in m.fetched)) for m in plan.machines)
            both = (predicted(case).step_s, predicted(case, plan=changed(plan, machines=half)).step_s)
            assert both[1] <= both[0]
