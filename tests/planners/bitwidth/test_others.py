"""Planners by name: static, drawn, as published, by integer programming, by all ranks together."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from wirewise.cost import ExchangeCosts
from wirewise.errors import PlanError
from wirewise.planners.bitwidth import PLANNERS, ChannelProblem, plan_own_channels
from wirewise.planners.bitwidth.distributed import run_ranks
from wirewise.planners.bitwidth.problem import ExchangeProblem, own_channels
from wirewise.planners.bitwidth.program import BitWidthProgram
from wirewise.planners.bitwidth.threshold import solve

from . import problems
from .problems import plan

SMALL = problems.problem(
    problems.exchange(3, 30), problems.exchange(3, 30, name="backward1", scale=1e-6, seed=1), ranks=3
)


@pytest.mark.parametrize("method", sorted(PLANNERS))
def test_every_planner_plans_all_messages_and_repeats_itself(method):
    first = plan(SMALL, problems.costs(3, ring=True), method=method, seed=5)
    assert first == plan(SMALL, problems.costs(3, ring=True), method=method, seed=5)
    first.check(SimpleNamespace(hosts=[0, 1, 2], devices=[0, 1, 2]), SMALL.messages())
    assert first.seed == 5
    assert set(first.predicted_s) == set(first.noise) == set(first.weight_sigma) == {"forward1", "backward1"}


@pytest.mark.parametrize("method", sorted(PLANNERS))
def test_every_planner_refuses_weights_that_are_not_numbers(method):
    bad = ChannelProblem(sender=0, receiver=1, weights=np.array([1.0, np.inf]))
    broken = problems.problem(ExchangeProblem(name="forward1", width=4, channels=[bad]), ranks=2)
    with pytest.raises(PlanError, match="message 1 is inf"):
        plan(broken, problems.costs(2), method=method)


def test_planners_and_simulator_run_without_torch():
    code = (
        "import sys, wirewise.planners.bitwidth, wirewise.sim, wirewise.plans; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_uniform():
    p = plan(SMALL, problems.costs(3), method="uniform", bits=2)
    assert p.counts("forward1") == {2: 180}
    with pytest.raises(PlanError, match="bits are"):
        plan(SMALL, problems.costs(3), method="uniform", bits=5)


def test_random_is_even_and_drawn_anew_each_epoch():
    big = problems.problem(problems.exchange(2, 6000), ranks=2)
    first = plan(big, problems.costs(2), method="random", seed=1)
    counts = first.counts("forward1")
    assert set(counts) == {2, 4, 8}
    assert all(abs(n - 4000) < 300 for n in counts.values())
    assert plan(big, problems.costs(2), method="random", seed=1, epoch=1).channels != first.channels
    assert plan(big, problems.costs(2), method="random", seed=2).channels != first.channels
    # The measured price of not looking at the weights: 8.7 times the variance of 4 bits for equal weights.
    equal = problems.problem(problems.exchange(2, 6000, sigma=0.0), ranks=2)
    noise = plan(equal, problems.costs(2), method="random").noise["forward1"]
    assert noise / plan(equal, problems.costs(2), method="uniform", bits=4).noise[
        "forward1"
    ] == pytest.approx(8.7, rel=0.05)


def test_paper_starts_with_eight_bits_and_then_solves_the_published_program():
    ring = problems.costs(3, ring=True)
    assert plan(SMALL, ring, method="paper", cycle=0).counts("forward1") == {8: 180}
    p = plan(SMALL, ring, method="paper", group_size=7)
    assert p.planner == "paper"
    program = BitWidthProgram(
        SMALL.exchanges[0], ring.links, group_size=7, normaliser="min", exact_bytes=False
    )
    bits = program.expand(solve(program))
    assert all(np.array_equal(bits[c.sender, c.receiver], c.array) for c in p.of("forward1"))
    assert plan(SMALL, ring, method="paper", group_size=15, solver="milp").planner == "paper"


def test_short_groups_change_what_the_published_prices_decide():
    """Charging a short group as a full one makes a small channel look as slow as a large one."""
    rng = np.random.default_rng(0)
    channels = [
        ChannelProblem(sender=0, receiver=1, weights=np.exp(rng.normal(size=100))),
        ChannelProblem(sender=1, receiver=0, weights=np.exp(rng.normal(size=3))),
    ]
    e = ExchangeProblem(name="forward1", width=16, channels=channels)
    links = problems.costs(2, ring=True).links
    exact = BitWidthProgram(e, links, lam=0.5, group_size=100)
    published = BitWidthProgram(e, links, lam=0.5, group_size=100, exact_bytes=False)
    assert exact.channel_bytes(solve(exact))[1] < 0.2 * exact.channel_bytes(solve(exact))[0]
    assert published.channel_bytes(solve(published))[1] == published.channel_bytes(solve(published))[0]


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


def test_highs_says_when_time_runs_out():
    hard = problems.problem(problems.exchange(4, 500), ranks=4)
    with pytest.raises(PlanError, match="found no assignment within"):
        plan(
            hard,
            ExchangeCosts(links=problems.random_links(4)),
            method="milp",
            group_size=1,
            time_limit_s=1e-3,
        )
