from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.planners.recovery.brute_force import best_points, every_point
from tests.planners.recovery.greedy import greedy
from tests.planners.recovery.problems import job, large_profile, random_problem
from wirewise.cost import Links
from wirewise.planners.recovery import PLANNERS, problem_of
from wirewise.planners.recovery.grouping import GroupChoice, fronts
from wirewise.planners.recovery.swift import group_choices


def front_of(problem, helpers=0, budget=np.inf):
    blank = PLANNERS["swift"](problem, strategy="checkpoint", helpers=helpers)
    return fronts(
        len(problem.trace.stages),
        lambda first, end: group_choices(problem, blank, first, end),
        budget,
    )


def compared(found, wanted):
    assert len(found) == len(wanted)
    for one, (price, cost) in zip(found, wanted, strict=True):
        assert (one.price_bytes, one.cost_s) == pytest.approx((price, cost), rel=1e-9)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(25))
def test_r10_the_front_is_that_of_all_groupings(seed):
    problem = random_problem(seed)
    compared(front_of(problem), best_points(list(every_point(problem))))


def test_r10_ten_stages_against_all_groupings():
    random = np.random.default_rng(1)
    trace = job(
        random.uniform(0.01, 0.1, 10).tolist(),
        random.integers(10**5, 10**6, 9).astype(float).tolist(),
        weights=random.uniform(0.5, 2.0, 10).tolist(),
        # One tier, so that 512 groupings are all there are.
        disk_log_bytes_per_s=1e3,
    )
    problem = problem_of(trace, Links.uniform(10, 1e9, 1e-4), disk_price=1.0)
    compared(front_of(problem), best_points(list(every_point(problem))))


def test_helpers_and_the_memory_of_a_spare():
    for seed in range(8):
        problem = random_problem(seed, most=5, spare_bytes=6e7)
        found = front_of(problem, helpers=2)
        compared(found, best_points(list(every_point(problem, helpers=2))))
        for one in found:
            for group in one.groups:
                own = range(group.first, group.end)
                alone = any(n in problem.unreplicated_stages for n in own)
                assert not alone or sum(problem.trace.stages[n].state_bytes for n in own) <= 6e7


def test_within_a_budget_the_front_ends_there():
    problem = random_problem(3)
    whole = front_of(problem)
    middle = whole[len(whole) // 2].price_bytes
    compared(
        front_of(problem, budget=middle),
        [(one.price_bytes, one.cost_s) for one in whole if one.price_bytes <= middle],
    )


def test_r10_storage_and_recovery_fall_and_rise_in_turn():
    for seed in (None, 1, 2):
        found = front_of(large_profile(seed))
        for one, other in itertools.pairwise(found):
            assert one.price_bytes < other.price_bytes and one.cost_s > other.cost_s


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3, 4])
def test_r10_never_worse_than_greedy_merging(seed):
    problem = large_profile(seed)
    compute = [stage.compute_s for stage in problem.trace.stages]
    sizes = [2 * one.size_bytes for one in problem.trace.messages if one.target == one.source + 1]
    found, longer = front_of(problem), []
    for share in (0.75, 0.5, 0.25, 0.1):
        budget = share * sum(sizes)
        exact = min(one.cost_s for one in found if one.price_bytes <= budget)
        for published in (False, True):
            price, cost = priced(problem, greedy(compute, sizes, budget, 5e10, published=published)[1])
            assert price <= budget and exact <= cost * (1 + 1e-9)
            longer.append(cost / exact)
    assert max(longer) > 1.04


def priced(problem, groups):
    """Price and cost of groups as the exact search counts them."""
    blank = PLANNERS["swift"](problem, strategy="checkpoint")
    own = [group_choices(problem, blank, group[0], group[-1] + 1)[0] for group in groups]
    return sum(one.price_bytes for one in own), sum(one.cost_s for one in own)


def test_the_published_shape_of_the_large_profile():
    """Flat while cheap regions merge, then steep: about 1.6 times as long from the richest to a poor budget."""
    found = front_of(large_profile())
    least = min(one.cost_s for one in found)
    most = max(one.price_bytes for one in found)
    at = {
        share: min(one.cost_s for one in found if one.price_bytes <= share * most) / least
        for share in (1.0, 0.75, 0.5, 0.25, 0.1)
    }
    assert at[0.75] < 1.6 and at[0.5] < 2.6 and at[0.25] > 3 and at[0.1] > 6
    assert list(at.values()) == sorted(at.values())


def test_no_way_to_group_is_no_front():
    assert fronts(3, lambda first, end: []) == []
    only = GroupChoice(0, 1, "memory", 5.0, 1.0)
    assert fronts(1, lambda first, end: [only], 4.0) == []
    assert fronts(1, lambda first, end: [only], 5.0)[0].groups == (only,)
