"""Plans of a job of compressed gradients, and what is recorded of them."""

from __future__ import annotations

import msgspec
import pytest

from tests.papers.test_cupcake import TENSORS, TRACE
from wirewise.cost.gradients import CodecTimes, GradientCosts
from wirewise.errors import InputError, PlanError
from wirewise.plans import Bucket
from wirewise.trace.gradients import GradientTensor, GradientTrace
from wirewise_papers.cupcake.job import (
    AUTO,
    CupcakeJob,
    JobCosts,
    groups_of,
    make_finalists,
    make_plans,
    payload_bytes,
)

COSTS = GradientCosts(
    device="cpu",
    codecs={"efsign": CodecTimes(((100, 1e-4), (1e6, 1e-3)), ((100, 1e-4), (1e6, 1e-3)))},
    ranks=2,
    schemes={
        "all_reduce": ((0, 1e-3), (1e6, 0.1)),
        "all_gather": ((0, 1e-3), (1e6, 0.1)),
        "divisible": ((0, 2e-3), (1e6, 0.1)),
    },
)


def test_a_codec_before_a_plan_is_for_all_its_groups():
    job = CupcakeJob(trace=TRACE, codec="efsign")
    assert job.split("cupcake") == (("efsign", "none"), "cupcake")
    assert job.split("topk:even:4") == (("topk",), "even:4")
    assert job.split("none:bucket:25") == (("none",), "bucket:25")
    assert job.split("auto:mg-wfbp") == ((*AUTO, "none"), "mg-wfbp")
    assert CupcakeJob(trace=TRACE, codec="none").split("even:2") == (("none",), "even:2")
    assert CupcakeJob(trace=TRACE, plans=("topk:even:1", "none:even:2", "efsign:cupcake")).codecs == (
        "topk",
        "efsign",
    )


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("setting", "error", "words"),
    [
        ({"plans": ("fastest",)}, PlanError, "unknown planner 'fastest'"),
        ({"plans": ("even:none",)}, PlanError, "expected a number above 0"),
        ({"plans": ()}, InputError, "at least one"),
        ({"plans": ("cupcake", "cupcake")}, InputError, "each once"),
        ({"codec": "zip"}, InputError, "unknown codec 'zip'"),
        ({"hosts": 1}, InputError, "hosts is 1"),
        ({"steps": 0}, InputError, "steps is 0"),
        ({"trials": -1}, InputError, "trials is -1"),
        ({"ratio": 0.0}, InputError, "ratio is 0"),
        ({"splits": "big"}, InputError, "'big' says no limit"),
        ({"link": "fast"}, InputError, "fast"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_ranks_start(setting, error, words):
    with pytest.raises(error, match=words):
        CupcakeJob(trace=TRACE, **setting)


def test_pieces_are_planned_and_recorded():
    giant = GradientTensor(name="giant", elements=400_000, gap_us=1_000.0)
    trace = GradientTrace(tensors=(*TENSORS, giant))
    job = CupcakeJob(trace=trace, hosts=2, codec="efsign", plans=("cupcake", "even:2"), splits="400KB")
    made = make_plans(job, JobCosts(trace, 1e-2, COSTS))
    plan, problem = made["cupcake"]
    assert plan.splits == {"giant": 102_400} and not made["even:2"][0].splits
    records = groups_of(plan, problem, job.ratio)
    assert sum(record.elements for record in records) == sum(problem.elements) == 400_000 + 120_015
    assert records[-1].last == 6 and plan.unsplit_step_s >= plan.predicted_step_s


def test_payloads_by_hand():
    def sent(codec, scheme, sizes, ranks):
        bucket = Bucket(parameters=("a",), size_bytes=4, codec=codec, scheme=scheme)
        return payload_bytes(bucket, sizes, ranks, 0.01)

    assert sent("none", "all_reduce", [1_000], 4) == 1.5 * 4_000
    assert sent("fp16", "all_reduce", [1_000], 2) == 2_000
    # A bit an element, a scale a tensor, and the eight bytes that tell of what is not finite.
    assert sent("efsign", "all_gather", [800, 1_600], 4) == 3 * (300 + 2 * 4 + 8)
    assert sent("efsign", "divisible", [800, 1_600], 4) == 1.5 * (300 + 2 * 4) + 6 * 8


def test_records_hold_what_the_model_says_of_each_group():
    job = CupcakeJob(trace=TRACE, hosts=2, codec="efsign", plans=("efsign:even:2", "none:even:1"))
    made = make_plans(job, JobCosts(TRACE, 0.01, COSTS))
    plan, problem = made["efsign:even:2"]
    assert problem.forward_s == 0.01 and {o.codec for o in problem.options} == {"efsign"}
    groups = groups_of(plan, problem, 0.01, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert [(g.first, g.last, g.elements) for g in groups] == [(0, 2, 60_003), (3, 5, 60_012)]
    assert groups[1].measured_s == (4.0, 5.0, 6.0)
    assert groups[0].predicted_s[0] == pytest.approx(1e-4 + 9e-4 * (60_003 - 100) / (1e6 - 100))
    whole, problem = made["none:even:1"]
    assert whole.predicted_step_s == pytest.approx(0.01 + 0.024 + 1e-3 + 0.48006 * 0.099)
    faster = msgspec.structs.replace(COSTS, concurrent=((0, 5e-4), (1e6, 0.05)))
    (other, _) = make_plans(job, JobCosts(TRACE, 0.01, faster))["none:even:1"]
    assert other.predicted_step_s == pytest.approx(0.01 + 0.024 + 5e-4 + 0.48006 * 0.0495)
    delayed = msgspec.structs.replace(COSTS, delays={"all_reduce": ((0, 0.0), (1e6, 0.05))})
    (late, _) = make_plans(job, JobCosts(TRACE, 0.01, delayed))["none:even:1"]
    assert late.predicted_step_s == pytest.approx(whole.predicted_step_s + 0.48006 * 0.05)
    (only,) = groups_of(whole, problem, 0.01)
    assert only.payload_bytes == 4 * 120_015 and only.measured_s is None


def test_nothing_is_compressed_for_a_small_gain():
    found = JobCosts(TRACE, 0.01, COSTS)

    def codecs(least_gain):
        job = CupcakeJob(trace=TRACE, hosts=2, codec="efsign", plans=("cupcake",), least_gain=least_gain)
        plan, problem = make_plans(job, found)["cupcake"]
        assert {bucket.codec for bucket in plan.buckets} <= {option.codec for option in problem.options}
        return {bucket.codec for bucket in plan.buckets}

    assert "efsign" in codecs(0.05) and codecs(0.9) == {"none"}
    with pytest.raises(InputError, match="least_gain is 1"):
        codecs(1)


def test_plans_that_may_choose_codecs_are_tried_with_each():
    job = CupcakeJob(trace=TRACE, hosts=2, codec="efsign", plans=("cupcake", "efsign:cupcake", "even:2"))
    found = JobCosts(TRACE, 0.01, COSTS)
    # Uncompressed steps are predicted to be more than a quarter longer, and the best with all codecs is that with one.
    assert list(make_finalists(job, found)["cupcake"]) == ["cupcake (efsign)"]
    quick = msgspec.structs.replace(
        COSTS,
        schemes=dict.fromkeys(COSTS.schemes, ((0, 1e-3), (1e6, 0.045))),
        codecs={"efsign": CodecTimes(((100, 1e-3), (1e6, 3e-2)), ((100, 1e-4), (1e6, 1e-3)))},
    )
    tried = make_finalists(job, found._replace(costs=quick))
    assert list(tried) == ["cupcake"]
    assert list(tried["cupcake"]) == ["cupcake (efsign)", "cupcake (none)", "cupcake (mixed)"]
    for way, codecs in (("efsign", {"efsign"}), ("none", {"none"}), ("mixed", {"efsign", "none"})):
        plan, problem = tried["cupcake"][f"cupcake ({way})"]
        assert {bucket.codec for bucket in plan.buckets} == codecs
        assert len(groups_of(plan, problem, job.ratio)) == len(plan.buckets)


def test_groups_are_compressed_where_sending_them_whole_delays_back_propagation():
    quick = msgspec.structs.replace(
        COSTS, schemes=dict.fromkeys(COSTS.schemes, ((0, 0.001), (1000000.0, 0.004)))
    )
    slowing = msgspec.structs.replace(quick, delays={"all_reduce": ((0, 0.0), (1e6, 0.02))})
    job = CupcakeJob(trace=TRACE, hosts=2, codec="efsign", plans=("cupcake",))

    def codecs(costs):
        plan, _ = make_plans(job, JobCosts(TRACE, 0.01, costs))["cupcake"]
        return {bucket.codec for bucket in plan.buckets}

    assert codecs(quick) == {"none"} and codecs(slowing) == {"efsign"}
