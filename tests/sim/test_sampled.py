"""Distributions by sampling, against closed forms."""

import math

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import binom

from tests.sim.pipeline_jobs import chain, links, one_each
from tests.sim.test_recovery import LINKS, TRACE, planned
from wirewise.cost import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans import Bucket, FusionPlan
from wirewise.sim import predict
from wirewise.sim.sampled import _summed, parse_stragglers, sample_failures, sample_stragglers
from wirewise.trace import Module, ModuleTrace


def one_bucket(ranks):
    """Ranks that compute for 3 s, and whose messages take no time."""
    job = ModuleTrace(
        modules=[Module(name="m", forward_s=1.0, backward_s=2.0, gradient_bytes=4.0)],
        hosts=list(range(ranks)),
    )
    plan = FusionPlan(world_size=ranks, planner="x", buckets=(Bucket(parameters=("m",), size_bytes=4),))
    return plan, job, Links.uniform(ranks, 1e12)


def test_p4_a_step_waits_for_the_slowest_of_exponential_ranks():
    """The mean of the largest of n exponential numbers is the n-th harmonic number, its median -ln(1 - 2**(-1/n))."""
    ranks, mean = 16, 0.1
    found = sample_stragglers(*one_bucket(ranks), parse_stragglers(f"exp:{mean}"), samples=200, seed=3)
    harmonic = sum(1.0 / k for k in range(1, ranks + 1))
    median = -np.log(1.0 - 0.5 ** (1.0 / ranks))
    assert found.mean_ci95_s[0] < 3.0 * (1.0 + mean * harmonic) < found.mean_ci95_s[1]
    assert found.median_ci95_s[0] < 3.0 * (1.0 + mean * median) < found.median_ci95_s[1]
    assert found.median_s < found.mean_s < found.p95_s and (found.samples, found.seed) == (200, 3)


def test_the_slowest_rank_alone_decides_what_all_with_their_own_factors_take():
    plan, job, on = one_bucket(8)
    draw = parse_stragglers("lognormal:0.2")
    found = sample_stragglers(plan, job, on, draw, samples=10, seed=1)
    random = np.random.default_rng(1)
    each = [
        predict(
            plan, ModuleTrace(modules=job.modules, hosts=job.hosts, slowdown=draw(random, 8).tolist()), on
        ).step_s
        for _ in range(10)
    ]
    assert found.mean_s == pytest.approx(np.mean(each), rel=1e-12)


def test_rare_slow_ranks_of_a_pipeline():
    plan, job, on = one_each("1f1b", 2, 4, replicas=2), chain(2), links(4)
    usual = predict(plan, job, on).step_s
    assert sample_stragglers(plan, job, on, parse_stragglers("some:0:2"), samples=10).p95_s == usual
    twice = sample_stragglers(plan, job, on, parse_stragglers("some:1:2"), samples=10)
    assert twice.mean_s == pytest.approx(2 * usual) and twice.median_ci95_s == pytest.approx((2 * usual,) * 2)


@pytest.mark.parametrize("mtbf_s", [60.0, 1000.0])
def test_p4_runs_with_failures_take_what_daly_says(mtbf_s):
    """The closed form, which for rolling back to checkpoints is Daly's, lies in a wider interval of the mean."""
    plan = replace(planned(), mtbf_s=mtbf_s)
    found = sample_failures(plan, TRACE, LINKS, mtbf_s, samples=2000, seed=5)
    half = found.mean_ci95_s[1] - found.mean_s
    assert abs(found.mean_s - predict(plan, TRACE, LINKS, mtbf_s=mtbf_s).step_s) < 2 * half
    assert half < 0.1 * found.mean_s


def test_what_cannot_be_drawn_is_refused_by_name():
    for text in ("exp", "exp:-1", "exp:x", "some:2:2", "some:0.1:0.5", "normal:1", "lognormal:9"):
        with pytest.raises(
            InputError, match=r"expected exp:MEAN, lognormal:SIGMA up to 3, or some:SHARE:FACTOR"
        ):
            parse_stragglers(text)
    with pytest.raises(InputError, match="got 9 samples; expected at least 10"):
        sample_stragglers(*one_bucket(2), parse_stragglers("exp:1"), samples=9)
    with pytest.raises(
        InputError, match="stragglers of a recovery plan with a RecoveryTrace cannot be drawn"
    ):
        sample_stragglers(planned(), TRACE, LINKS, parse_stragglers("exp:1"))
    with pytest.raises(PlanError, match=r"so that hardly one ends|never gets on"):
        sample_failures(planned(), TRACE, LINKS, 1e-3)


@pytest.mark.parametrize("samples", [10, 41, 100, 200])
def test_percentiles_and_the_interval_of_a_median_are_those_of_order_statistics(samples):
    values = iter(np.random.default_rng(0).permutation(samples) + 1.0)
    found = _summed(samples, 0, lambda: float(next(values)))

    def outside(rank: int) -> float:
        """Chance that the median of any distribution is below the value of this rank, or above its counterpart."""
        return 2 * sum(math.comb(samples, k) for k in range(rank)) / 2**samples

    # The narrowest pair of values that covers the median in 95 of 100 cases.
    rank = max(k for k in range(1, samples) if outside(k) <= 0.05)
    assert found.median_ci95_s == (rank, samples + 1 - rank)
    assert (np.arange(1, samples + 1) <= found.p95_s).mean() == pytest.approx(0.95, abs=1 / samples)


def test_the_interval_of_a_median_is_the_narrowest_that_holds_19_times_of_20():
    for samples in range(10, 120):
        numbers = iter(range(samples))
        low, high = _summed(samples, 0, lambda numbers=numbers: float(next(numbers))).median_ci95_s
        # The median is below the k-th smallest of n numbers when fewer than k of them are below it.
        assert low + high == samples - 1
        assert binom.cdf(low, samples, 0.5) < 0.025 <= binom.cdf(low + 1, samples, 0.5)
