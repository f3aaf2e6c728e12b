"""Peaks, and the least to compute again below a budget."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from tests.planners.fusion.problems import random_problem
from wirewise.errors import PlanError
from wirewise.planners.fusion import PLANNERS, Decision, dpro, peak_bytes
from wirewise.planners.fusion.memory import fit_memory

RECOMPUTE = ("recompute",)


def problem(seed=0, modules=7, **more):
    made = random_problem(seed, gradients=modules, **more)
    random = np.random.default_rng(seed)
    return replace(
        made,
        modules=[
            replace(m, input_bytes=m.saved_bytes * random.uniform(0.05, 0.6), workspace_bytes=1e5)
            for m in made.modules
        ],
    )


def subsets(count):
    return [frozenset(chosen) for k in range(count + 1) for chosen in combinations(range(count), k)]


def test_the_peak_of_a_small_chain():
    one = random_problem(0, gradients=2)
    modules = [
        replace(one.modules[0], saved_bytes=100.0, input_bytes=10.0, workspace_bytes=5.0, gradient_bytes=8.0),
        replace(one.modules[1], saved_bytes=50.0, input_bytes=20.0, workspace_bytes=1.0, gradient_bytes=2.0),
    ]
    one = replace(one, modules=modules, other_bytes=1000.0)
    always = 1000 + 4 * 10
    assert peak_bytes(one, Decision(())) == always + 100 + 50 + 1
    assert peak_bytes(one, Decision((), recompute=frozenset({0}))) == always + max(105, 10 + 51)
    assert peak_bytes(one, Decision((), accumulation=2)) == always + 151 / 2
    assert peak_bytes(one, Decision((), precision="bfloat16")) == always + 151 / 2 + 0.5 * 10
    measured = replace(one, modules=[replace(modules[0], bfloat16_bytes=(60.0, 9.0, 4.0)), modules[1]])
    bfloat16 = Decision((), precision="bfloat16", accumulation=2)
    assert peak_bytes(measured, bfloat16) == always + (60 + 25 + 0.5) / 2 + 0.5 * 10
    again = replace(bfloat16, recompute=frozenset({0}))
    assert peak_bytes(measured, again) == always + max(64, 9 + 25.5) / 2 + 0.5 * 10


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.55, 0.7, 0.9])
def test_what_is_computed_again_takes_the_least_time(seed, share):
    one = problem(seed)
    plain = Decision(())
    always = peak_bytes(one, plain) - max(sum(m.saved_bytes for m in one.modules), 0)
    budget = always + share * (peak_bytes(one, plain) - always)
    times = {
        s: sum(one.modules[i].forward_s for i in s)
        for s in subsets(7)
        if peak_bytes(one, Decision((), recompute=s)) <= budget
    }
    if not times:
        with pytest.raises(PlanError, match="least possible peak"):
            fit_memory(one, plain, budget, RECOMPUTE)
        return
    (found,) = fit_memory(one, plain, budget, RECOMPUTE)
    assert peak_bytes(one, found) <= budget
    # Sizes are rounded to 1/2048 of all that is saved.
    slack = budget - 8 / 2048 * sum(m.saved_bytes for m in one.modules)
    rounded = [t for s, t in times.items() if peak_bytes(one, Decision((), recompute=s)) <= slack]
    assert min(times.values()) <= times[found.recompute] <= min(rounded, default=np.inf)


def test_more_memory_never_computes_more_again():
    one = problem(3, modules=12)
    top = peak_bytes(one, Decision(()))
    least = peak_bytes(one, Decision((), recompute=frozenset(range(12))))
    again = []
    for budget in np.linspace(least, top, 9).tolist():
        (found,) = fit_memory(one, Decision(()), budget, RECOMPUTE)
        assert peak_bytes(one, found) <= budget
        again.append(sum(one.modules[i].forward_s for i in found.recompute))
    assert again[0] > 0 and again[-1] == 0
    assert all(a >= b - 1e-12 for a, b in pairwise(again))


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("method", ["dpro", "mcmc"])
def test_a_plan_keeps_to_the_budget(method):
    one = problem(1)
    top = peak_bytes(one, Decision(()))
    always = 4 * sum(one.sizes)
    budget = always + 0.6 * (top - always)
    made = PLANNERS[method](one, memory_budget_bytes=budget)
    assert 0 < made.predicted_memory_bytes <= budget
    assert made.recompute or made.accumulation > 1
    free = PLANNERS[method](one, memory_budget_bytes=2 * top)
    assert not free.recompute and free.accumulation == 1
    assert free.predicted_step_s <= made.predicted_step_s


def test_accumulation_alone_fits_where_it_may():
    one = problem(2)
    always = 4 * sum(one.sizes)
    budget = always + 0.3 * (peak_bytes(one, Decision(())) - always)
    found = fit_memory(one, Decision(()), budget, ("accumulation",))
    assert [d.accumulation for d in found] == [4, 8]


def test_the_least_peak_is_named_where_nothing_fits():
    one = problem(2)
    least = min(
        peak_bytes(one, Decision((), accumulation=k, recompute=s)) for k in (1, 2, 4, 8) for s in subsets(7)
    )
    with pytest.raises(PlanError, match=r"least possible peak is .* \((\d+) bytes\)") as caught:
        dpro(one, memory_budget_bytes=0.5 * least)
    named = int(str(caught.value).partition("(")[2].partition(" bytes")[0])
    assert named == pytest.approx(least, rel=1e-6)
    made = dpro(one, memory_budget_bytes=named + 1)
    assert made.predicted_memory_bytes <= named + 1
