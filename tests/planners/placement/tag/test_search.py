"""Tree search against enumeration, and what it may never do."""

from __future__ import annotations

import itertools
from math import inf

import numpy as np
import pytest

from wirewise.planners.placement.tag import StrategyTimes, descend, tree_search
from wirewise.planners.placement.tag.search import fill_undecided, value
from wirewise_papers.tag.random_models import random_problem


def optimum(times):
    return min(
        times.of(one) for one in itertools.product(*(range(len(own)) for own in times.problem.actions))
    )


@pytest.mark.slow
def test_it_comes_within_two_percent_of_enumeration():
    close = 0
    for seed in range(6):
        problem = random_problem(seed, hosts=2, groups=4)
        every = StrategyTimes(problem)
        best = optimum(every)
        assert 4**4 < len(every.known) <= 10**5
        if best == inf:
            close += 1
            continue
        close += best / tree_search(StrategyTimes(problem), playouts=500, seed=seed).seconds >= 0.98
    assert close >= 5


def test_a_small_tree_is_seen_whole():
    problem = random_problem(3, hosts=2, groups=2)
    times = StrategyTimes(problem)
    best = optimum(StrategyTimes(problem))
    found = tree_search(times, playouts=5000, seed=1)
    assert found.seconds == best
    assert len(found.trail) < 5000
    assert found.trail == sorted(found.trail, reverse=True)
    assert tree_search(StrategyTimes(problem), playouts=60, seed=1) == tree_search(
        StrategyTimes(problem), playouts=60, seed=1
    )


def test_a_policy_that_knows_leads_there():
    problem = random_problem(5, hosts=2, groups=3)
    best = min(itertools.product(*(range(len(own)) for own in problem.actions)), key=problem.seconds_of)

    def knows(_, strategy, place):
        group = problem.order[place]
        likely = np.full(len(problem.actions[group]), 1e-3)
        likely[best[group]] = 1.0
        return likely

    until_s = problem.seconds_of(best) * 1.0001
    led = tree_search(StrategyTimes(problem), playouts=400, policy=knows, until_s=until_s)
    assert led.seconds <= until_s
    assert len(led.trail) <= 12


def test_a_policy_that_is_sure_and_wrong_is_left_soon():
    problem = random_problem(115, hosts=2, most_devices=1, groups=4)
    alone = [
        tuple(own.index(one) for own in problem.actions) for one in problem.actions[0] if len(one.groups) == 1
    ]
    best_s = min(map(problem.seconds_of, alone))

    def spreads(_, strategy, place):
        own = problem.actions[problem.order[place]]
        return np.array([0.9 if one.communication == "allreduce" else 0.1 / len(own) for one in own])

    found = tree_search(StrategyTimes(problem), playouts=300, policy=spreads, until_s=best_s)
    assert found.seconds <= best_s


def test_descent_keeps_to_what_is_allowed_and_to_its_limit():
    problem = random_problem(7, groups=4)
    start, times = problem.baseline(), StrategyTimes(problem, 50)
    found = descend(times, start)
    assert times.of(found) <= times.of(start)
    assert len(times.known) == 50
    with pytest.raises(StrategyTimes.BudgetExhausted):
        times.of(tuple(0 for _ in start) if tuple(0 for _ in start) not in times.known else (1, *start[1:]))
    assert (
        descend(StrategyTimes(problem), start, allowed=lambda group, action: action == start[group]) == start
    )


def test_values_and_what_is_inherited():
    assert value(inf, 1.0) == -1.0
    assert value(0.8, 1.0) == pytest.approx(0.25)
    assert value(0.1, 1.0) == pytest.approx(9**0.25)
    problem = random_problem(7, groups=4)
    assert fill_undecided(problem, ()) == problem.baseline()
    first = fill_undecided(problem, (0,))
    chosen = [problem.actions[g][a].groups for g, a in enumerate(first)]
    assert chosen == [problem.actions[problem.order[0]][0].groups] * len(chosen)
