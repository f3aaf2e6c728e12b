from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planners.pipeline.problems import random_trace
from tests.planners.recovery.problems import job, random_problem
from wirewise.cost import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS
from wirewise.planners.recovery import problem_of, problem_of_modules, trace_of_pipeline
from wirewise.sim import predict

SWIFT = PLANNERS["recovery"]["swift"]
CHAIN = job([0.09, 0.05, 0.07], [1e6, 2e6])
FAST = Links.uniform(3, 1e10, 1e-4)


def strategies(plan):
    return [stage.strategy for stage in plan.stages]


def test_a_replica_elsewhere_is_copied_and_logs_stand_for_the_others():
    mixed = job([0.09, 0.05, 0.07], [1e6, 2e6], ranks=[(0,), (1, 2), (3,)])
    plan = SWIFT(mixed, Links.uniform(4, 1e10, 1e-4), mtbf_s=60.0)
    assert strategies(plan) == ["log", "replica", "log"]
    assert {(log.source, log.target) for log in plan.logs} == {(1, 0), (1, 2)}
    # On one host of two, the replica is lost together with its stage.
    together = Links.uniform(2, 1e10, 1e-4, ranks_per_host=2)
    both = job([0.09, 0.05], [1e6], ranks=[(0, 1), (2, 3)])
    assert strategies(SWIFT(both, together, mtbf_s=60.0)) == ["log", "log"]


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("seed", range(6))
def test_no_strategy_and_no_interval_is_better(seed):
    problem = random_problem(seed, most=4)
    best = SWIFT(problem, least_interval=1, most_interval=400)
    for strategy in ("checkpoint", "log"):
        try:
            other = SWIFT(problem, strategy=strategy, least_interval=1, most_interval=400)
        except PlanError:
            continue
        assert other.goodput <= best.goodput * (1 + 1e-12)
    for steps in range(1, 400, 3):
        other = replace(best, interval_steps=steps)
        assert predict(other, problem.trace, problem.links).step_s >= best.predicted_s * (1 - 1e-12)


def test_logs_keep_to_their_budget_and_fewer_bytes_never_help():
    goodput = []
    for budget in (5e7, 1e8, 2e8, 4e8, 1e9):
        plan = SWIFT(CHAIN, FAST, mtbf_s=60.0, log_bytes=budget, disk_price=0.5)
        prices = {"memory": 1.0, "disk": 0.5}
        used = sum(prices[log.tier] * log.bytes_per_step for log in plan.logs) * plan.interval_steps
        assert used <= budget
        goodput.append(plan.goodput)
    assert goodput == sorted(goodput) and goodput[0] < goodput[-1]
    none = SWIFT(CHAIN, FAST, mtbf_s=60.0, log_bytes=1e6)
    assert strategies(none) == ["checkpoint"] * 3 and not none.logs
    with pytest.raises(PlanError, match=r"within 1 MB of logs for 20 steps"):
        SWIFT(CHAIN, FAST, mtbf_s=60.0, log_bytes=1e6, strategy="log")
    with pytest.raises(PlanError, match=r"10 MB of a spare's memory, of which a stage needs 30 MB"):
        SWIFT(CHAIN, FAST, strategy="log", spare_bytes=1e7)


def test_rules_of_thumb_are_near_the_best():
    best = SWIFT(CHAIN, FAST, mtbf_s=3600.0)
    for rule in ("young", "daly"):
        plan = SWIFT(CHAIN, FAST, mtbf_s=3600.0, rule=rule)
        assert plan.goodput <= best.goodput and plan.goodput > best.goodput - 1e-4
        assert plan.interval_steps == pytest.approx(best.interval_steps, rel=0.05)
    assert any("Young's rule says a checkpoint every" in note for note in best.notes)


def test_folding_in_order_gives_way_where_it_takes_long():
    few = SWIFT(CHAIN, FAST, helpers=2)
    assert (few.helpers, few.parallel_mode) == (2, "exact")
    slow = Links.uniform(3, 1e8, 1e-4)
    assert SWIFT(CHAIN, slow, helpers=2).parallel_mode == "fast"
    assert SWIFT(CHAIN, slow, helpers=2, parallel_mode="exact").parallel_mode == "exact"


def test_a_second_spare_is_named_where_it_pays():
    replicas = job([0.05], [], ranks=[(0, 1, 2)])
    links = Links.uniform(3, 1e9, 1e-4)
    often = SWIFT(replicas, links, mtbf_s=5.0)
    assert any(note.startswith("with 2 spares goodput is") for note in often.notes)
    assert not any("spares" in note for note in SWIFT(replicas, links, mtbf_s=1e5).notes)


def test_other_policies_are_priced_by_the_same_formula():
    replicas = job([0.05], [], ranks=[(0, 1, 2)])
    links = Links.uniform(3, 1e9, 1e-4)
    plan = SWIFT(replicas, links, mtbf_s=5.0, spares=3)
    goodput = {one.name: one.goodput for one in plan.others}
    assert list(goodput) == ["checkpoint", "checkfreq", "elastic-commit", "gemini"]
    assert plan.goodput > 1.5 * goodput["checkpoint"] and plan.goodput > max(goodput.values())
    # Snapshots under a launcher that takes no time to start again are our own way back to a checkpoint.
    figures = replace(
        replicas, restart_s=0.0, detect_s=0.3, fence_s=0.0, regroup_s=0.0, resume_s=0.0, spawn_s=0.0
    )
    steps = SWIFT(figures, links, mtbf_s=30.0).others[1].interval_steps
    same = SWIFT(
        figures, links, mtbf_s=30.0, strategy="checkpoint", least_interval=steps, most_interval=steps
    )
    assert same.interval_steps == steps and same.goodput == pytest.approx(same.others[1].goodput)
    alone = SWIFT(CHAIN, FAST)
    assert "elastic-commit" not in {one.name for one in alone.others}


def test_a_model_that_is_cut_into_stages():
    modules, links = random_trace(1, 9), Links.uniform(4, 800.0, 0.02)
    cut = PLANNERS["stages"]["1f1b"](modules, links, stages=4, batch=16)
    figures = trace_of_pipeline(modules, cut, links)
    assert figures.step_s == pytest.approx(cut.predicted_s) and figures.microbatches == cut.microbatches
    assert sum(stage.compute_s for stage in figures.stages) == pytest.approx(
        cut.microbatches * sum(sum(passes[:2]) for passes in cut.pass_s)
    )
    problem = problem_of_modules(modules, links, pipelined=cut, mtbf_s=1e4)
    plan = SWIFT(modules, links, pipelined=cut, mtbf_s=1e4)
    assert plan == SWIFT(problem) and [stage.ranks for stage in plan.stages] == [(0,), (1,), (2,), (3,)]
    assert predict(plan, figures, links).step_s == plan.predicted_s
    with pytest.raises(InputError, match="expected a StagePlan"):
        SWIFT(modules, links, pipelined=plan)
    interleaved = PLANNERS["stages"]["1f1b"](modules, links, stages=2, batch=16)
    assert len(SWIFT(modules, links, pipelined=interleaved).stages) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"strategy": "hope"}, "strategy is 'hope'; expected one of: auto, replica, log, checkpoint"),
        ({"rule": "old"}, "rule is 'old'"),
        ({"parallel_mode": "slow"}, "parallel_mode is 'slow'"),
        ({"least_interval": 0}, "checkpoints every 0 to 10000 steps"),
        ({"strategy": "replica"}, r"stage 0 on ranks \[0\] has no replica on another host"),
        ({"consistency": "undo"}, r"consistency is 'undo' - at `\$\.consistency`"),
        ({"spares": -1}, r"spares is -1 - at `\$\.spares`"),
        ({"heartbeat_s": 1.0, "silence_limit_s": 1.5}, "at least two heartbeats"),
        ({"mtbf_s": 1e-3}, "at a failure every 0.001 s no plan gets on"),
    ],
)
def test_what_cannot_be_planned_is_named(words, said):
    with pytest.raises(PlanError, match=said):
        SWIFT(CHAIN, FAST, **words)


def test_figures_that_are_none_are_refused():
    for change, said in (
        ({"mtbf_s": 0.0}, "mtbf_s is 0.0"),
        ({"log_bytes": -1.0}, "log_bytes is -1.0"),
        ({"disk_price": float("inf")}, "prices are"),
    ):
        with pytest.raises(InputError, match=said):
            problem_of(CHAIN, FAST, **change)
    with pytest.raises(InputError, match="the job has 3 ranks, the links 2"):
        problem_of(CHAIN, Links.uniform(2, 1e9, 1e-4))
