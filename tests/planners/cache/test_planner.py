"""Cache plans: budgets, predictions, and caches that look ahead."""

import numpy as np
import pytest

from tests.planners.cache.problems import block_problem
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.graph.sampling import seed_batches
from wirewise.planners.cache import (
    PLANNERS,
    POLICIES,
    count_misses,
    plans,
)
from wirewise.sim import BatchTimes, predict


@pytest.fixture(scope="module")
def problem():
    return block_problem(16)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_keeps_remote_nodes_within_its_budget(problem, policy):
    found = PLANNERS[policy](problem, alpha=0.3)
    found.check_itself()
    found.check_partition(problem.owner)
    assert found.planner == policy
    for number, machine in enumerate(found.machines):
        assert len(machine.ids) == machine.budget == 600
        assert (problem.owner[machine.ids] != number).all()
        assert machine.needed[number] == machine.fetched[number] == 0
    assert 0 < found.remote_fraction < 1


def test_predicted_rows_are_those_that_batches_fetch(problem):
    found = PLANNERS["vip"](problem, alpha=0.5)
    for number, machine in enumerate(found.machines):
        counts, own = problem.counts(number, range(30, 50)), problem.owner == number
        batches = 20 * -(-len(problem.train[number]) // problem.batch_size)
        assert sum(machine.needed) == pytest.approx(counts[~own].sum() / batches, rel=0.05)
        assert sum(machine.fetched) == pytest.approx(
            count_misses(counts, own, machine.ids) / batches, rel=0.07
        )


def test_imbalance_is_that_of_batches_that_were_not_planned_with(problem):
    found = PLANNERS["vip"](problem, alpha=0.2)
    sampler, fetched = problem.sampler(), []
    for epoch in (40, 41, 42):
        cuts = [seed_batches(own, problem.batch_size, epoch=epoch, seed=0) for own in problem.train]
        for number, seeds in enumerate(zip(*cuts, strict=False)):
            rows = np.zeros((3, 3))
            for machine, own in enumerate(seeds):
                ids = sampler.sample(own, epoch=epoch, batch=3 * number + machine).n_id
                lacking = np.setdiff1d(ids[problem.owner[ids] != machine], found.machines[machine].ids)
                rows[machine] = np.bincount(problem.owner[lacking], minlength=3)
            fetched.append(np.concatenate([rows.sum(axis=0), rows.sum(axis=1)]))
    links = np.array(fetched)
    assert 1.0 < found.imbalance < 1.5
    assert found.imbalance == pytest.approx(links.max(axis=1).mean() / links.mean(axis=0).max(), rel=0.05)


def test_plans_of_all_policies(problem):
    found = plans(problem, [0.0, 0.2, 2.0], list(POLICIES))
    for by_alpha in found.values():
        left = [by_alpha[alpha].remote_fraction for alpha in (0.0, 0.2, 2.0)]
        assert left[0] == 1.0
        assert left[0] > left[1] > left[2]
    assert found["vip"][2.0].remote_fraction == pytest.approx(0.0, abs=1e-6)


def test_links_decide_what_a_batch_takes(problem):
    found = PLANNERS["vip"](problem, alpha=0.2)
    links = Links.uniform(3, 1e7, 1e-3)
    rows = found.fetched
    busiest = max(rows.sum(axis=1).max(), rows.sum(axis=0).max())
    batch = predict(found, BatchTimes(row_bytes=100), links)
    assert batch.step_s == pytest.approx(2e-3 + found.imbalance * busiest * 104 / 1e7)
    assert set(batch.phases_s) == {"ids", "rows"}
    whole = predict(found, BatchTimes(row_bytes=100, sample_s=0.5, train_s=2.0), links)
    assert whole.step_s == pytest.approx(2.5 + batch.step_s)
    with pytest.raises(PlanError, match="the links have 1 ranks"):
        predict(found, BatchTimes(row_bytes=100), Links.uniform(1, 1e7))


@pytest.mark.parametrize(
    ("knobs", "error", "told"),
    [
        ({"alpha": -0.1}, InputError, "alpha is -0.1"),
        ({"budgets": [3, 4]}, InputError, "expected 3, each of at least 0"),
        ({"budgets": [3, 4, -1]}, InputError, "at least 0 rows"),
    ],
)
def test_knobs_that_cannot_be_used(problem, knobs, error, told):
    with pytest.raises(error, match=told):
        PLANNERS["vip"](problem, **knobs)


def test_a_plan_for_another_partition_is_refused(problem):
    found = PLANNERS["vip"](problem, alpha=0.1)
    with pytest.raises(PlanError, match="another partition of 6000 nodes over 3 machines"):
        found.check_partition((problem.owner + 1) % 3)
