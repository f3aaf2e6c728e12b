"""Cache plans: budgets, predictions, and caches that look ahead."""

from itertools import permutations

import numpy as np
import pytest

from tests.planners.cache.problems import block_problem
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.cache import (
    POLICIES,
    best_split,
    fetched_rows,
    keep,
    missed,
    plan,
    plans,
    remote_rows,
    share_budget,
)
from wirewise.sim import BatchTimes, predict


@pytest.fixture(scope="module")
def problem():
    return block_problem(16)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_keeps_remote_nodes_within_its_budget(problem, policy):
    found = plan(problem, policy=policy, alpha=0.3)
    found.check_itself()
    found.check_partition(problem.owner)
    assert found.planner == policy
    for number, machine in enumerate(found.machines):
        assert len(machine.ids) == machine.budget == 600
        assert (problem.owner[machine.ids] != number).all()
        assert machine.needed[number] == machine.fetched[number] == 0
    assert 0 < found.remaining < 1


def test_predicted_rows_are_those_that_batches_fetch(problem):
    found = plan(problem, alpha=0.5)
    for number, machine in enumerate(found.machines):
        counts, own = problem.counts(number, range(30, 50)), problem.owner == number
        batches = 20 * -(-len(problem.train[number]) // problem.batch_size)
        assert sum(machine.needed) == pytest.approx(counts[~own].sum() / batches, rel=0.05)
        assert sum(machine.fetched) == pytest.approx(missed(counts, own, machine.ids) / batches, rel=0.07)


def test_plans_of_all_policies(problem):
    found = plans(problem, [0.0, 0.2, 2.0], list(POLICIES))
    for by_alpha in found.values():
        left = [by_alpha[alpha].remaining for alpha in (0.0, 0.2, 2.0)]
        assert left[0] == 1.0
        assert left[0] > left[1] > left[2]
    assert found["vip"][2.0].remaining == pytest.approx(0.0, abs=1e-6)


def test_budgets_go_where_rows_cost_most(problem):
    scores = [POLICIES["vip"](problem, machine) for machine in range(3)]
    even = share_budget(problem, scores, 900)
    slow = share_budget(problem, scores, 900, row_s=[5e-6, 1e-6, 1e-6])
    assert sum(even) == sum(slow) == 900
    assert slow[0] > even[0]
    together = [plan(problem, policy="vip", budgets=rooms) for rooms in (even, [300, 300, 300])]
    fetched = [sum(sum(machine.fetched) for machine in one.machines) for one in together]
    assert fetched[0] <= fetched[1]


def test_links_decide_what_a_batch_takes(problem):
    found = plan(problem, alpha=0.2)
    links = Links.uniform(3, 1e7, 1e-3)
    rows = found.fetched
    busiest = max(rows.sum(axis=1).max(), rows.sum(axis=0).max())
    batch = predict(found, BatchTimes(row_bytes=100), links)
    assert batch.step_s == pytest.approx(2e-3 + busiest * 104 / 1e7)
    assert set(batch.phases_s) == {"ids", "rows"}
    whole = predict(found, BatchTimes(row_bytes=100, sample_s=0.5, train_s=2.0), links)
    assert whole.step_s == pytest.approx(2.5 + batch.step_s)
    with pytest.raises(PlanError, match="the links have 1 ranks"):
        predict(found, BatchTimes(row_bytes=100), Links.uniform(1, 1e7))


def fewest(rows, room):
    """By trying every choice of what to keep behind each batch."""
    best = {frozenset(): 0}
    for batch in map(frozenset, rows):
        after = {}
        for held, total in best.items():
            for order in permutations(held | batch, min(room, len(held | batch))):
                key, value = frozenset(order), total + len(batch - held)
                after[key] = min(after.get(key, value), value)
        best = after
    return min(best.values())


def test_knowing_all_batches_fetches_the_fewest_rows():
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = [rng.choice(6, rng.integers(1, 4), replace=False) for _ in range(6)]
        for room in (0, 1, 2, 3):
            assert fetched_rows(rows, 6, static=np.empty(0, int), room=room) == fewest(rows, room)


def test_looking_further_ahead_fetches_fewer_rows(problem):
    rows, nothing = remote_rows(problem, 0, [0, 1]), np.empty(0, np.int64)
    whole = sum(map(len, rows))
    found = [fetched_rows(rows, 6000, static=nothing, room=400, window=w) for w in (0, 1, 10, None)]
    assert whole == found[0] > found[1] > found[2] >= found[3]
    scores = POLICIES["vip"](problem, 0)
    share, by_share = best_split(problem, 0, scores, 400)
    own = problem.owner == 0
    static = fetched_rows(remote_rows(problem, 0, [0]), 6000, static=keep(scores, own, 400))
    assert by_share[1.0] == static
    assert by_share[share] == min(by_share.values())


@pytest.mark.parametrize(
    ("knobs", "error", "told"),
    [
        ({"policy": "best"}, PlanError, "unknown cache policy 'best'; expected one of: vip"),
        ({"alpha": -0.1}, InputError, "alpha is -0.1"),
        ({"budgets": [3, 4]}, InputError, "expected 3, each of at least 0"),
        ({"budgets": [3, 4, -1]}, InputError, "at least 0 rows"),
    ],
)
def test_knobs_that_cannot_be_used(problem, knobs, error, told):
    with pytest.raises(error, match=told):
        plan(problem, **knobs)


def test_a_plan_for_another_partition_is_refused(problem):
    found = plan(problem, alpha=0.1)
    with pytest.raises(PlanError, match="another partition of 6000 nodes over 3 machines"):
        found.check_partition((problem.owner + 1) % 3)
