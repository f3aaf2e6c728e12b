"""The rules against replay of both choices, on random chains."""

from dataclasses import replace

import numpy as np
import pytest

from tests.planners.fusion.problems import random_problem
from wirewise.cost.link import LinkCost
from wirewise.planners.fusion import BucketSpan, Decision, Scorer
from wirewise.planners.fusion.rules import (
    apply_rules,
    best_chunks,
    op_fusion_pays,
    stages,
    sync_s,
    tensor_fusion_pays,
)
from wirewise.planners.fusion.score import step_of
from wirewise.sim import replay

MARGIN = 0.01


def spans(cuts, gradients):
    lasts = [i for i in range(gradients - 1) if cuts[i]] + [gradients - 1]
    return tuple(BucketSpan(a + 1, b) for a, b in zip([-1, *lasts], lasts, strict=False))


def transfer_ends(problem, decision):
    """End of each bucket's transfer and of the backward op that completes it."""
    result = replay(step_of(problem, decision, simulated=[0]), problem.links)
    flow = result.dataflow
    sent = [op for op in range(len(flow.names)) if flow.size_bytes[op] > 0]
    return [float(result.end_s[op]) for op in sent]


def last_pair(seed):
    """Rule and replay on whether to fuse the last two buckets: (fuses, fusing is faster, margin)."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 7))
    kind = ["latency", "bandwidth"][seed % 2]
    problem = random_problem(seed, gradients=count, kind=kind)
    cuts = [*(random.random(count - 2) < 0.7), True]
    apart = spans(cuts, count)
    together = (*apart[:-2], BucketSpan(apart[-2].first, count - 1))
    scorer = Scorer(problem)
    times = scorer(Decision(apart)), scorer(Decision(together))
    through = stages(problem)
    ready = sum(m.forward_s + m.backward_s for m in problem.modules)
    fuses = tensor_fusion_pays(
        transfer_ends(problem, Decision(apart))[-2],
        ready,
        sync_s(problem.size_of(together[-1]), 1, through),
        sync_s(problem.size_of(apart[-1]), 1, through),
    )
    return fuses, times[1] < times[0], abs(times[1] - times[0]) / min(times)


def test_the_tensor_fusion_rule_agrees_with_replay():
    cases = [last_pair(seed) for seed in range(200)]
    clear = [fuses == faster for fuses, faster, margin in cases if margin > MARGIN]
    assert len(clear) >= 40
    assert np.mean(clear) >= 0.95
    assert {faster for _, faster, margin in cases if margin > MARGIN} == {True, False}


def op_pair(seed):
    """Rule and replay on whether to fuse two ops, each with a gradient, and their buckets."""
    random = np.random.default_rng(seed)
    problem = random_problem(seed, gradients=2, kind=["latency", "bandwidth"][seed % 2])
    modules = [replace(m, forward_s=0.0) for m in problem.modules]
    whole = sum(m.backward_s for m in modules)
    fused = whole * random.uniform(0.3, 1.0)
    problem = replace(problem, modules=modules, fused_s={(0, 1): (0.0, fused)})
    apart = Decision(spans([True], 2))
    together = Decision(spans([False], 2), fused=((0, 1),))
    scorer = Scorer(problem)
    times = scorer(apart), scorer(together)
    sync = sync_s(problem.sizes[0], 1, stages(problem))
    pays = op_fusion_pays(sync, modules[1].backward_s, modules[0].backward_s, fused)
    return pays, times[1] < times[0], abs(times[1] - times[0]) / min(times)


def test_what_the_op_fusion_rule_fuses_is_faster():
    cases = [case for case in map(op_pair, range(200)) if case[2] > MARGIN]
    chosen = [faster for pays, faster, _ in cases if pays]
    assert len(chosen) >= 20 and all(chosen)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("kind", ["latency", "bandwidth"])
def test_k_star_is_the_best_number_of_chunks(kind):
    for seed in range(20):
        problem = random_problem(seed, gradients=1, stages=True, kind=kind)
        scorer = Scorer(problem)
        seconds = {chunks: scorer(Decision((BucketSpan(0, 0, chunks),))) for chunks in range(1, 65)}
        chosen, best = best_chunks(problem.sizes[0], stages(problem)), min(seconds, key=seconds.__getitem__)
        assert abs(chosen - best) <= 1 or seconds[chosen] <= 1.01 * seconds[best]


def test_k_star_follows_the_formula():
    through = [
        LinkCost(latency_s=1e-4, s_per_byte=1e-9),
        LinkCost(latency_s=2e-4, s_per_byte=4e-9),
        LinkCost(latency_s=0.0, s_per_byte=2e-9),
    ]
    # sqrt(16e6 * 3e-9 / 2e-4)
    assert best_chunks(16e6, through) in (15, 16)
    assert best_chunks(1.0, through) == 1
    assert (
        best_chunks(
            16e6,
            [
                LinkCost(latency_s=0.0, s_per_byte=0.0),
                LinkCost(latency_s=2e-4, s_per_byte=4e-9),
                LinkCost(latency_s=0.0, s_per_byte=0.0),
            ],
        )
        == 1
    )
    assert sync_s(16e6, 1, through) == pytest.approx(3e-4 + 16e6 * 7e-9)


def test_the_walk_fuses_what_queues_and_keeps_what_hides():
    problem = random_problem(0, gradients=6)
    slow = replace(problem, links=problem.links.scaled(1e-3))
    fast = replace(problem, links=problem.links.scaled(1e3))
    assert len(apply_rules(fast, Decision(())).buckets) == 6
    assert len(apply_rules(slow, Decision(())).buckets) <= 3


def test_the_walk_couples_ops_and_tensors():
    problem = random_problem(1, gradients=4, kind="latency", fused_share=0.1)
    found = apply_rules(problem, Decision(()))
    assert found.fused
    for first, last in found.fused:
        own = {g for g, module in enumerate(problem.gradients) if first <= module <= last}
        assert any(own <= set(range(s.first, s.last + 1)) for s in found.buckets)
    assert apply_rules(problem, Decision(()), op_fusion=False).fused == ()
