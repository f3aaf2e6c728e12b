"""Choices in pairs: the best of all, against trying everything; limits of memory and bounds."""

import itertools

import numpy as np
import pytest

from wirewise.planners.parallel.rhino.choices import ChoiceProblem


def drawn(seed: int) -> ChoiceProblem:
    """Up to 6 variables of 2 to 4 values, half of the pairs joined, some pairs of values impossible."""
    rng = np.random.default_rng(seed)
    problem = ChoiceProblem()
    count = int(rng.integers(2, 7))
    for _ in range(count):
        values = int(rng.integers(2, 5))
        problem.add(rng.integers(0, 20, values).astype(float), rng.integers(0, 10, values).astype(float))
    for a, b in itertools.combinations(range(count), 2):
        if rng.random() < 0.7:
            table = rng.integers(0, 20, (len(problem.cost[a]), len(problem.cost[b]))).astype(float)
            table[rng.random(table.shape) < 0.1] = np.inf
            problem.join(*((a, b, table) if rng.random() < 0.5 else (b, a, table.T)))
    return problem


def tried(problem: ChoiceProblem, memory: float = np.inf) -> float:
    every = itertools.product(*(range(len(cost)) for cost in problem.cost))
    totals = (problem.total(values) for values in every)
    return min((cost for cost, needed in totals if needed <= memory), default=np.inf)


@pytest.mark.slow
def test_p3_the_programme_finds_the_best_of_200_drawn_problems():
    for seed in range(200):
        problem = drawn(seed)
        found, best = problem.solve(), tried(problem)
        if found is None:
            assert not np.isfinite(best)
        else:
            assert (found.cost, found.bound) == (pytest.approx(best), pytest.approx(best))


@pytest.mark.slow
def test_under_a_limit_of_memory_values_fit_and_the_bound_holds():
    near = 0
    for seed in range(16):
        problem = drawn(seed)
        free = problem.solve()
        if free is None:
            continue
        limit = 0.8 * free.memory
        found, best = problem.solve(memory=limit), tried(problem, limit)
        if found is None:
            assert not np.isfinite(best)
            continue
        assert found.memory <= limit and found.bound <= best * (1 + 1e-9) <= found.cost * (1 + 1e-9)
        near += found.cost <= 1.15 * best
    assert near >= 11


def test_the_programme_finds_the_best_of_some_drawn_problems():
    for seed in range(12):
        found, best = drawn(seed).solve(), tried(drawn(seed))
        assert best == pytest.approx(np.inf if found is None else found.cost)


def test_a_variable_joined_with_itself_pays_its_diagonal():
    problem = ChoiceProblem()
    one = problem.add(np.zeros(2))
    problem.join(one, one, np.array([[3.0, 0.0], [0.0, 1.0]]))
    assert problem.solve()[:2] == ([1], 1.0)


def test_fixed_values_are_kept_and_what_cannot_be_is_none():
    problem = ChoiceProblem()
    a, b = problem.add(np.array([0.0, 5.0])), problem.add(np.zeros(2))
    problem.join(a, b, np.array([[1.0, np.inf], [2.0, 0.0]]))
    assert problem.solve().values == [0, 0]
    assert problem.solve(fixed={b: 1}).values == [1, 1]
    assert problem.solve(fixed={a: 0, b: 1}) is None
