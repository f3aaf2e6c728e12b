"""Searches against all bucketings, their short-cuts against the whole graph, and when they stop."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.planners.fusion.problems import random_problem
from wirewise import work
from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.planners import PLANNERS, planner
from wirewise.planners.fusion import Decision, Scorer, dpro, exhaustive, mcmc
from wirewise.planners.fusion.dpro import random_search, search
from wirewise.planners.fusion.exhaustive import all_bucketings, try_all
from wirewise.planners.fusion.score import step_of
from wirewise.planners.fusion.search import Stop, baseline, capped, dynamic
from wirewise.sim import replay
from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.sim.lowering.recorded import with_plan

KINDS = ["latency", "bandwidth"]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("extra", [{}, {"launch": True}, {"stages": True}])
def test_the_search_is_within_two_percent_of_all_bucketings(kind, slots, extra):
    for seed in range(4):
        problem = random_problem(seed, gradients=5 + seed, kind=kind, slots=slots, **extra)
        found = search(problem, passes=("tensor_fusion",))
        best = try_all(problem)
        assert best.step_s <= found.step_s * (1 + 1e-12)
        assert found.step_s <= 1.02 * best.step_s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launch", [False, True])
def test_the_dynamic_programme_is_exact_where_collectives_run_one_at_a_time(kind, launch):
    for seed in range(6):
        problem = random_problem(seed, gradients=7, kind=kind, launch=launch)
        found = dynamic(problem, baseline(problem))
        assert Scorer(problem)(found) == pytest.approx(try_all(problem).step_s, rel=1e-9)


def test_all_bucketings_are_different_and_whole():
    found = set(all_bucketings(5))
    assert len(found) == 16
    for spans in found:
        assert [i for s in spans for i in range(s.first, s.last + 1)] == list(range(5))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("extra", [{}, {"launch": True, "stages": True}])
def test_short_cuts_do_not_change_a_score(slots, extra):
    for seed in range(4):
        slow = 1 + 0.3 * np.random.default_rng(seed).random(4)
        problem = random_problem(
            seed, gradients=6, slots=slots, slowdown=slow.tolist(), fused_share=0.8, **extra
        )
        fast, full = Scorer(problem), Scorer(problem, coarsen=False, one_rank=False)
        options = [Decision(spans) for spans in all_bucketings(6)]
        options += [replace(option, fused=((1, 2),), accumulation=2) for option in options[::5]]
        options += [replace(option, recompute=frozenset({0, 3})) for option in options[::7]]
        for number, option in enumerate(options):
            if number % 8 == 0:
                fast.rebase(option)
            assert fast(option) == pytest.approx(full(option), rel=1e-9)
        assert fast.events < full.events / 3


def test_the_graph_is_that_of_the_simulator():
    problem = random_problem(0, gradients=6, slots=2)
    layers = [LayerCost(m.name, m.forward_s, m.backward_s, m.gradient_bytes) for m in problem.modules]
    flow = data_parallel_step(layers, problem.hosts, bucket_bytes=2e6, comm_slots=2)
    same = replay(step_of(problem, capped(problem, 2e6, 2**20)), problem.links).step_s
    assert same == pytest.approx(replay(flow, problem.links).step_s, rel=1e-12)
    made = dpro(problem, passes=("tensor_fusion", "partition"))
    # A plan holds whole bytes.
    put_in = replay(with_plan(flow, problem.links, made), problem.links).step_s
    assert put_in == pytest.approx(made.predicted_step_s, rel=1e-6)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("method", ["dpro", "mcmc", "exhaustive", "rules", "ddp"])
def test_every_planner_makes_a_sound_plan(method):
    problem = random_problem(3, gradients=6, kind="latency", slots=2)
    made = PLANNERS["fusion"][method](problem)
    made.check_itself()
    assert made.planner == method
    assert sorted(made.parameters) == sorted(m.name for m in problem.modules)
    assert made.size_bytes == pytest.approx(sum(problem.sizes), abs=len(made.buckets))
    assert made.predicted_step_s > 0
    if method in ("dpro", "mcmc", "exhaustive"):
        assert made.predicted_step_s <= made.baseline_step_s


def test_the_chain_gets_better_and_repeats_with_its_seed():
    problem = random_problem(1, gradients=9, kind="latency")
    one, two = (random_search(problem, seed=5, steps=300) for _ in range(2))
    assert one.decision == two.decision
    assert one.step_s < Scorer(problem)(baseline(problem))


def test_faster_links_never_make_the_best_step_longer():
    problem = random_problem(2, gradients=8)
    steps = [
        search(replace(problem, links=problem.links.scaled(factor))).step_s for factor in (0.25, 0.5, 1, 2, 4)
    ]
    # Buckets that gain less than 1e-4 are left out.
    assert all(slower >= faster * (1 - 2e-4) for slower, faster in pairwise(steps))


def test_fused_ops_are_used_where_they_pay():
    fast, slow = (
        random_problem(4, gradients=6, kind="latency", fused_s={(1, 2): times})
        for times in ((1e-6, 1e-6), (1.0, 1.0))
    )
    assert search(fast).decision.fused == ((1, 2),)
    assert search(slow).decision.fused == ()


def test_bfloat16_only_where_asked_for():
    problem = random_problem(5, gradients=5)
    half = [replace(m, bfloat16_s=(m.forward_s / 2, m.backward_s / 2)) for m in problem.modules]
    problem = replace(problem, modules=half)
    assert search(problem).decision.precision == "float32"
    assert search(problem, passes=("tensor_fusion", "precision")).decision.precision == "bfloat16"


def test_buckets_that_gain_nothing_are_left_out():
    problem = random_problem(6, gradients=9)
    free = replace(problem, links=Links.uniform(4, 1e15))
    found = search(free).decision
    assert len(found.buckets) == 1
    many = search(replace(problem, links=problem.links.scaled(0.2))).decision
    assert len(many.buckets) > 1


def test_without_passes_the_buckets_stay():
    problem = random_problem(6, gradients=6)
    assert search(problem, passes=()).decision == baseline(problem)


def test_the_search_stops_by_time_and_by_rounds():
    now = iter(np.arange(100) * 1.0)
    stop = Stop(3.5, clock=lambda: next(now))
    assert [stop.round(1.0 - 0.1 * i) for i in range(4)] == [False, False, False, True]
    stop = Stop(1e9)
    assert [stop.round(1.0) for _ in range(6)] == [False] * 5 + [True]
    stop.restart()
    assert not any(stop.round(0.9**i) for i in range(20))


def test_late_searches_return_what_they_have():
    problem = random_problem(7, gradients=10, slots=2)
    found = search(problem, time_budget_s=1e-9)
    assert found.step_s <= Scorer(problem)(baseline(problem))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"time_budget_s": 0.0}, "time budget is 0.0 s"),
        ({"passes": ("tensor", "partition")}, "unknown passes.*tensor.*expected some of"),
        ({"memory_budget_bytes": 1.0}, r"least possible peak is .*bytes"),
    ],
)
def test_wrong_knobs_are_named(knobs, message):
    with pytest.raises(PlanError, match=message):
        dpro(random_problem(0, gradients=3), **knobs)


def test_unknown_planners_and_too_many_gradients_are_refused():
    with pytest.raises(PlanError, match="unknown fusion planner 'best'"):
        planner("fusion", "best")
    with pytest.raises(PlanError, match="13 gradients have"):
        exhaustive(random_problem(0, gradients=13))
    with pytest.raises(PlanError, match="beta is 0"):
        mcmc(random_problem(0), beta=0)


def test_caps_stand_in_for_all_bucketings():
    problem = random_problem(0, gradients=13, kind="latency")
    caps = [1.0, 1e6, 1e9]
    found = try_all(problem, caps=caps)
    scorer = Scorer(problem)
    assert found.step_s == min(
        scorer(one) for one in [baseline(problem), *(capped(problem, c) for c in caps)]
    )


def test_a_busy_machine_searches_as_long():
    """The budget counts work of scores, not seconds in which others have the processor."""
    problem = random_problem(1, gradients=12, kind="latency")
    stop = Stop(1e-3)
    time.sleep(0.01)
    assert not stop.late
    before_s = work.spent_s()
    Scorer(problem)(baseline(problem))
    assert work.spent_s() > before_s
    work.charge(1e-3)
    assert stop.late
