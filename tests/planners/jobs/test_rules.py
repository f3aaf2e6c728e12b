"""Rules of schedulers: calibration against published figures, and what no rule may do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from wirewise.planners.jobs import RULES, JobProblem, problem_of, tune
from wirewise.planners.jobs.problem import simulate_rule
from wirewise.planners.jobs.rules import REALLOTTING, expected_queue, knowledge
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue
from wirewise.sim.jobs.engine import LOGGED
from wirewise.trace import EdgeCluster, JobKind, JobQueue, QueuedJob

SEEDS = range(10)


def mean_times(clusters, rate, rule, known=None, **more):
    problems = [problem_of(draw_queue(clusters, rate, seed=seed), kept=1.0, **more) for seed in SEEDS]
    return np.array(
        [
            (
                simulate_rule(one, rule, known or knowledge(expected_queue(one.arrays)), seed).finish
                - one.arrays.arrival
            ).mean()
            for seed, one in enumerate(problems)
        ]
    )


@pytest.mark.parametrize(
    ("clusters", "rate", "rule", "mean", "spread"),
    [(EVEN, 3.0, "min", 29.3, 3.6), (EVEN, 3.0, "random", 20.5, 3.5), (UNEVEN, 6.0, "min", 28.7, 2.2)],
)
def test_s1_queues_are_those_of_the_paper(clusters, rate, rule, mean, spread):
    assert abs(mean_times(clusters, rate, rule).mean() - mean) <= spread


@pytest.mark.parametrize(("clusters", "rate", "most"), [(EVEN, 3.0, 3.91 + 0.40), (UNEVEN, 6.0, 4.27 + 0.25)])
def test_two_numbers_for_each_kind_are_as_good_as_known(clusters, rate, most):
    trained = tune([problem_of(draw_queue(clusters, rate, seed=100 + seed), kept=1.0) for seed in SEEDS])
    assert mean_times(clusters, rate, "threshold", trained).mean() <= most
    assert trained.due[1, 1] >= 4 * trained.due[0, 1]


@pytest.mark.sweep
@pytest.mark.parametrize("rule", RULES)
def test_s2_no_rule_gives_what_is_not_there(rule):
    for seed in range(6):
        queue = draw_queue(((3, 2), (8, 8), (12, 5)), 2.0 + seed, jobs=60, noise=0.5, swing=0.5, seed=seed)
        problem = JobProblem(queue, kept=0.5, window=4)
        state = simulate_rule(problem, rule, knowledge(expected_queue(problem.arrays), 4), seed)
        arrays, log = problem.arrays, state.log[: state.counts[LOGGED]]
        given = np.zeros((int(state.finish.max()) + 1, *arrays.room.shape), np.int64)
        times = np.zeros((len(given), len(arrays.kind)), np.int64)
        for job, cluster, cpus, gpus, start, end in log.tolist():
            assert arrays.arrival[job] <= start < end and arrays.reach[job, cluster]
            assert ([cpus, gpus] >= arrays.least[arrays.kind[job]]).all()
            given[start:end, cluster] += [cpus, gpus]
            times[start:end, job] += 1
        assert (given <= arrays.room).all() and times.max() == 1
        assert (state.free == arrays.room).all()
        assert (state.finish > arrays.arrival).all()
        if rule not in REALLOTTING:
            assert len(log) == len(arrays.kind)


def alone(jobs, cpus):
    """Jobs of so many slots that use one processor each, on one cluster."""
    return JobQueue(
        queue=tuple(
            QueuedJob(name=str(n), kind=f"of{slots}", arrival=arrival)
            for n, (arrival, slots) in enumerate(jobs)
        ),
        kinds={f"of{slots}": JobKind(progress=((0.0,), (1 / slots,))) for _, slots in jobs},
        clusters=(EdgeCluster(name="x", cpus=cpus, gpus=0),),
    )


def best_of_orders(jobs):
    """Least mean time of one machine over all orders without stopping, which may keep it idle only for arrivals."""
    best = np.inf
    for order in itertools.permutations(jobs):
        now = total = 0
        for arrival, slots in order:
            now = max(now, arrival) + slots
            total += now - arrival
        best = min(best, total / len(jobs))
    return best


def test_the_shortest_job_first_is_optimal_where_it_is_known_to_be():
    random = np.random.default_rng(5)
    for _ in range(20):
        jobs = [(0, int(slots)) for slots in random.integers(1, 9, 6)]
        problem = problem_of(alone(jobs, 1))
        found = {
            rule: simulate_rule(problem, rule, knowledge(expected_queue(problem.arrays))).finish.mean()
            for rule in ("sjf", "srpt")
        }
        assert found["sjf"] == found["srpt"] == best_of_orders(jobs)


def test_the_shortest_remaining_time_is_no_worse_than_any_order_where_stopping_costs_nothing():
    random = np.random.default_rng(6)
    for _ in range(20):
        jobs = sorted((int(arrival), int(slots)) for arrival, slots in random.integers(1, 9, (6, 2)))
        problem = problem_of(alone(jobs, 1), kept=1.0)
        state = simulate_rule(problem, "srpt", knowledge(expected_queue(problem.arrays)))
        assert (state.finish - problem.arrays.arrival).mean() <= best_of_orders(jobs) + 1e-9


def test_rules_do_not_see_a_jobs_own_pace():
    slow, fast = (
        JobQueue(
            queue=tuple(
                QueuedJob(name=name, kind="k", arrival=0, pace=pace)
                for name, pace in zip("ab", paces, strict=True)
            ),
            kinds={"k": JobKind(progress=((0.0,), (0.25,)))},
            clusters=(EdgeCluster(name="x", cpus=1, gpus=0),),
        )
        for paces in ((0.5, 1.0), (1.0, 0.5))
    )
    first = []
    for queue in (slow, fast):
        problem = problem_of(queue)
        state = simulate_rule(problem, "sjf", knowledge(expected_queue(problem.arrays)))
        first.append(int(state.log[0, 0]))
    assert first == [0, 0]
