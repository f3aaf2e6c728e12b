"""Bit widths that all ranks decide together."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost import ExchangeCosts
from wirewise.errors import PlanError
from wirewise.planners.bitwidth import plan_own_channels
from wirewise.planners.bitwidth.distributed import run_ranks
from wirewise.planners.bitwidth.problem import own_channels
from wirewise.planners.bitwidth.program import BitWidthProgram
from wirewise.planners.bitwidth.threshold import solve

from . import problems
from .problems import plan

SMALL = problems.problem(
    problems.exchange(3, 30), problems.exchange(3, 30, name="backward1", scale=1e-6, seed=1), ranks=3
)


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("lam", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_together_is_within_one_message_a_channel_of_the_exact_optimum(ranks, lam):
    e = problems.exchange(ranks, (30, 90), seed=ranks)
    links = problems.random_links(ranks, ranks)
    found = plan(problems.problem(e, ranks=ranks), ExchangeCosts(links=links), method="distributed", lam=lam)
    program = BitWidthProgram(e, links, lam=lam)
    together = [c.array[g.order] for c, g in zip(found.of("forward1"), program.groups, strict=True)]
    exact = solve(program)
    largest = max(float(g.weights.max()) for g in program.groups) * (program.noise[0] - program.noise[-1])
    one_message = program.noise_price * largest
    assert program.objective(together) <= program.objective(exact) + len(program.groups) * one_message
    # Measured to be far closer than the bound.
    assert program.objective(together) <= program.objective(exact) + 0.02


def test_together_needs_under_20_kilobytes():
    whole = problems.problem(
        *(problems.exchange(8, 20, name=f"forward{i}", seed=i) for i in range(5)), ranks=8
    )
    sent = []

    def own(rank, allgather):
        def allreduce(vector):
            if rank == 0:
                sent.append(vector.nbytes)
            return np.sum(allgather(vector), axis=0)

        links = problems.random_links(8)
        return plan_own_channels(own_channels(whole, rank), links, rank=rank, allreduce=allreduce)

    parts = run_ranks(8, own)
    assert sum(sent) < 20_000
    assert sum(len(p) for p in parts) == 5 * 56


def test_together_ignores_channels_without_messages_and_refuses_those_of_others():
    whole = problems.problem(problems.exchange(3, (0, 3), seed=8), ranks=3)
    found = plan(whole, problems.costs(3, ring=True), method="distributed")
    assert sum(len(c.bits) for c in found.channels) == sum(whole.messages().values())
    with pytest.raises(PlanError, match="given to rank 2"):
        plan_own_channels(own_channels(SMALL, 0), problems.random_links(3), rank=2, allreduce=lambda v: v)


def test_an_error_of_one_rank_is_raised_and_the_others_are_released():
    def body(rank, allgather):
        if rank == 1:
            raise ValueError("rank 1 broke")
        return allgather(np.zeros(1))

    with pytest.raises(ValueError, match="rank 1 broke"):
        run_ranks(3, body)
