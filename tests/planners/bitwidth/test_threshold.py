"""The exact solver against brute force, HiGHS and its own laws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirewise.cost import ExchangeCosts, LinkCost, Links
from wirewise.planners.bitwidth.frontier import frontier, order_upgrades
from wirewise.planners.bitwidth.milp import solve as solve_by_milp
from wirewise.planners.bitwidth.problem import noise_factor
from wirewise.planners.bitwidth.program import BitWidthProgram
from wirewise.planners.bitwidth.threshold import solve

from . import problems
from .problems import plan


def brute_force(program):
    sizes = [len(g.weights) for g in program.groups]
    best = np.inf
    for flat in itertools.product(program.bits, repeat=sum(sizes)):
        parts = np.split(np.array(flat, np.uint8), np.cumsum(sizes)[:-1])
        best = min(best, program.objective(parts))
    return best


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31),
    st.floats(0.0, 1.0),
    st.sampled_from([(2, 4, 8), (1, 2, 4), (2, 8), (4, 16), (1, 4, 32)]),
    st.sampled_from(["max", "min"]),
    st.integers(1, 41),
)
def test_equals_brute_force(seed, lam, bits, normaliser, width):
    e = problems.exchange(2, (7, 13), width=width, sigma=2.0, seed=seed)
    program = BitWidthProgram(
        e, problems.random_links(2, seed), lam=lam, bits=bits, group_size=3, normaliser=normaliser
    )
    assert sum(len(g.weights) for g in program.groups) <= 10
    if not program.decided:
        assert program.objective(solve(program)) == pytest.approx(brute_force(program), abs=1e-9)


def test_equals_brute_force_over_two_rounds():
    program = BitWidthProgram(problems.exchange(3, (1, 3), seed=6), problems.random_links(3, 6), lam=0.4)
    assert len(np.unique(program.rounds)) == 2
    assert sum(len(g.weights) for g in program.groups) <= 10
    assert program.objective(solve(program)) == pytest.approx(brute_force(program), abs=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_is_never_worse_than_highs_on_1800_binaries(seed):
    e = problems.exchange(4, 5000, width=256, seed=seed)
    program = BitWidthProgram(e, problems.random_links(4, seed), group_size=100)
    assert 3 * sum(len(g.weights) for g in program.groups) == 1800
    by_highs = program.objective(solve_by_milp(program, time_limit_s=10.0, relative_gap=1e-6))
    ours = program.objective(solve(program))
    assert ours <= by_highs + 1e-9
    assert ours == pytest.approx(by_highs, rel=1e-3)


def test_lambda_ends():
    e = problems.exchange(4, (40, 120), seed=3)
    links = problems.random_links(4, 3)
    most = BitWidthProgram(e, links, lam=1.0, group_size=10)
    assert all((b == 8).all() for b in solve(most))
    least = BitWidthProgram(e, links, lam=0.0, group_size=10)
    found = solve(least)
    assert least.seconds(found) == pytest.approx(least.t_best)
    times = least.channel_seconds(found)
    for number in np.unique(least.rounds):
        members = np.flatnonzero(least.rounds == number)
        binding = members[np.argmax(times[members])]
        assert (found[binding] == 2).all()


def test_lambda_one_channel_pair_is_all_two_bits_at_zero():
    e = problems.exchange(2, 50)
    links = Links.of_pairs(LinkCost(latency_s=1e-3, s_per_byte=1e-6), 2, ring=True)
    assert all((b == 2).all() for b in solve(BitWidthProgram(e, links, lam=0.0, group_size=10)))


def test_monotone_in_lambda():
    e, links = problems.exchange(4, (40, 120), seed=4), problems.random_links(4, 4)
    noise, seconds = [], []
    for lam in np.linspace(0, 1, 21):
        program = BitWidthProgram(e, links, lam=float(lam), group_size=10)
        found = solve(program)
        noise.append(program.variance(found))
        seconds.append(program.seconds(found))
    assert (np.diff(noise) <= 1e-9).all()
    assert (np.diff(seconds) >= -1e-12).all()
    assert noise[0] > 2 * noise[-1]


def test_heavier_messages_never_get_fewer_bits():
    e = problems.exchange(3, 200, sigma=2.0)
    p = plan(
        problems.problem(e, ranks=3),
        ExchangeCosts(links=problems.random_links(3)),
        method="threshold",
        group_size=1,
    )
    for c, planned in zip(e.channels, p.of("forward1"), strict=True):
        assert (np.diff(planned.array[np.argsort(c.weights)].astype(int)) >= 0).all()
    assert p.planner == "threshold"


def test_without_a_price_of_bits_all_get_the_most():
    e = problems.exchange(2, 20)
    free = Links.of_pairs(LinkCost(latency_s=1e-3, s_per_byte=0.0), 2, ring=True)
    assert all((b == 8).all() for b in solve(BitWidthProgram(e, free)))


def test_a_slow_link_gets_fewer_bits():
    slow = {(s, r): LinkCost(latency_s=1e-4, s_per_byte=1e-6) for s in range(3) for r in range(3) if s != r}
    slow[0, 1] = LinkCost(latency_s=1e-4, s_per_byte=5e-6)
    e = problems.exchange(3, 300, sigma=1.0)
    p = plan(
        problems.problem(e, ranks=3),
        ExchangeCosts(links=Links.of_pairs(slow, 3, ring=True)),
        method="threshold",
        group_size=10,
    )
    mean = {(c.sender, c.receiver): c.array.mean() for c in p.of("forward1")}
    assert all(mean[0, 1] < bits for ends, bits in mean.items() if ends != (0, 1))


@pytest.mark.parametrize(
    ("sigma", "limit"), [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (1.5, 0.75), (2.0, 0.35), (3.0, 0.1)]
)
def test_at_equal_bytes_noise_is_below_uniform_and_far_below_when_weights_spread(sigma, limit):
    rng = np.random.default_rng(0)
    weights = np.sort(np.exp(sigma * rng.normal(size=2000)))[::-1].copy()
    bits = (2, 4, 8)
    factor, size = np.array([noise_factor(b) for b in bits]), np.array([64 + 6, 128 + 6, 256 + 6])
    curve = frontier(weights, np.ones(2000, np.int64), size, factor, bits)
    uniform_noise, uniform_bytes = weights.sum() / 225, 2000 * 134
    at = int(np.searchsorted(curve.size_bytes, uniform_bytes, side="right")) - 1
    assert curve.noise[at] <= uniform_noise * (1 + 1e-12) * limit
    drawn = rng.choice(factor, 2000)
    assert curve.noise[at] < (drawn * weights).sum()


def test_frontier_of_many_single_messages_is_within_one_message_of_the_exact_one():
    rng = np.random.default_rng(2)
    weights = np.sort(np.exp(rng.normal(size=200)))[::-1].copy()
    bits, size = (1, 2, 4, 8), np.array([2, 4, 8, 16])
    factor = np.array([noise_factor(b) for b in bits])
    exact = frontier(weights, np.ones(200, np.int64), size, factor, bits)
    _, extra, curve, _ = order_upgrades(weights, size, factor)
    at = np.searchsorted(exact.size_bytes, extra + 400, side="right") - 1
    assert curve == pytest.approx(exact.noise[at], abs=1e-9)
