"""Duplicated ops: the linear programme finds what enumeration finds, and what a dense layer is known to want."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from wirewise.planners.placement.tag import FactorProblem, duplicated_ops, problem_of
from wirewise.planners.placement.tag.factors import gain_s
from wirewise.sim import predict
from wirewise.topology.unequal import UnequalHost, unequal_hosts
from wirewise.trace import StageModule, StageTrace


def test_the_linear_programme_is_as_good_as_enumeration():
    for seed in range(60):
        random = np.random.default_rng(seed)
        n = int(random.integers(2, 10))
        gradient = random.random(n) < 0.4
        edges = [(a, b) for a, b in itertools.combinations(range(n), 2) if random.random() < 0.4]
        problem = FactorProblem(
            extra_s=random.uniform(0, 1, n).tolist(),
            saved_s=(gradient * random.uniform(0, 4, n)).tolist(),
            broadcast_s=random.uniform(0, 2, n).tolist(),
            edges=edges,
            fixed=np.flatnonzero(random.random(n) < 0.2).tolist(),
        )
        free = [op for op in range(n) if op not in problem.fixed]
        best = max(
            gain_s(problem, some)
            for size in range(len(free) + 1)
            for some in itertools.combinations(free, size)
        )
        found = duplicated_ops(problem)
        assert set(found) <= set(free)
        assert gain_s(problem, found) == pytest.approx(best, abs=1e-7)


def dense(samples):
    """One layer of 2048 x 2048 on two devices at 100 Mbit/s, so many samples on each of them."""
    module = StageModule(
        name="dense",
        forward_s=(1e-6,),
        backward_s=(2e-6,),
        weight_gradient_s=(1e-6,),
        parameter_bytes=4.0 * 2048**2,
        factor_bytes=4.0 * 2 * 2048,
        factored_bytes=4.0 * 2048**2,
    )
    hosts = [UnequalHost(1, "cpu", 1.0, 12.5e6)] * 2
    return problem_of(StageTrace(modules=(module,)), unequal_hosts(hosts), batch=2 * samples)


def test_factors_are_exchanged_where_batches_are_small():
    problem = dense(8)
    ways = [action.communication for action in problem.actions[0] if len(action.groups) == 2]
    assert "duplicate" in ways
    summed, spread = (
        problem.plan(problem.uniform_strategy(way, proportional=False), "by-hand", 0)
        for way in ("allreduce", "duplicate")
    )
    assert spread.groups[0].duplicated == ("dense",)
    exchanged = []
    for plan in (summed, spread):
        told = predict(plan, problem.trace, problem.links)
        spans = [s for s in told.timeline.spans if s.rank == 0 and s.phase in ("communication", "wire")]
        exchanged.append(sum(span.seconds for span in spans))
    # 16.8 MB against 0.13 MB.
    assert exchanged[0] >= 5 * exchanged[1]
    assert summed.predicted_step_s > 5 * spread.predicted_step_s
    many = dense(8192)
    assert "duplicate" not in [action.communication for action in many.actions[0]]


def test_what_shares_an_output_pays_for_it_once():
    apart = FactorProblem([0.0, 0.1, 0.1], [0.0, 1.0, 1.0], [1.5, 0.0, 0.0], [(0, 1), (0, 2)], [0])
    assert duplicated_ops(apart) == [1, 2]
    assert duplicated_ops(apart._replace(saved_s=[0.0, 1.0, 0.2])) == []
    assert msgspec.to_builtins(duplicated_ops(FactorProblem([1.0], [0.0], [0.0], []))) == []
