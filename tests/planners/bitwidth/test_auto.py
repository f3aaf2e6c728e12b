"""Automatic bits: the noise budget, the time law, the direction law, agreement between ranks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirewise.cost import ExchangeCosts, LinkCost, Links
from wirewise.errors import PlanError
from wirewise.planners.bitwidth import ChannelProblem, ExchangeProblem, noise_factor, plan_channels
from wirewise.planners.bitwidth.distributed import run_ranks
from wirewise.planners.bitwidth.frontier import CandidatePoints, menu_points
from wirewise.planners.bitwidth.problem import BitWidthProblem, own_channels
from wirewise.plans import BITS

from . import problems
from .problems import plan


def decide(whole, costs, **knobs):
    """Decisions of all ranks, each knowing its own channels only."""

    def own(rank, allgather):
        return plan_channels(own_channels(whole, rank), costs, rank=rank, allgather=allgather, **knobs)

    return run_ranks(whole.world_size, own)


def noise_of(whole, decisions, name):
    e = next(e for e in whole.exchanges if e.name == name)
    return sum(c.noise(decisions[c.sender].bits[name, c.receiver]) for c in e.channels)


def budget_of(whole, name, bits=4):
    e = next(e for e in whole.exchanges if e.name == name)
    return noise_factor(bits) * sum(c.weights.sum() for c in e.channels)


def layers(ranks, messages, *, sigma=1.5, seed=0, width=64):
    names = ("forward0", "forward1", "forward2", "backward2", "backward1")
    return problems.problem(
        *(
            problems.exchange(
                ranks, messages, name=n, width=width, sigma=sigma, seed=seed, scale=1.0 if n < "c" else 1e6
            )
            for n in names
        ),
        ranks=ranks,
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ranks=st.sampled_from([2, 3, 4]),
    sigma=st.sampled_from([0.0, 0.8, 2.0]),
    bandwidth=st.sampled_from([5e6, 22e6, 114e6, 1e9, 10e9]),
    spread=st.booleans(),
    hidden=st.floats(0.0, 2e-3),
    ring=st.booleans(),
    accuracy_bits=st.sampled_from([2, 4, 8]),
)
def test_never_slower_than_the_best_static_width_within_the_budget(
    seed, ranks, sigma, bandwidth, spread, hidden, ring, accuracy_bits
):
    whole = layers(ranks, (0, 120), sigma=sigma, seed=seed)
    rng = np.random.default_rng(seed)
    links = {
        (s, r): LinkCost(latency_s=1e-5, s_per_byte=(1 + 9 * spread * rng.random()) / bandwidth)
        for s in range(ranks)
        for r in range(ranks)
        if s != r
    }
    costs = ExchangeCosts(
        links=Links.of_pairs(links, ranks, hosts=rng.integers(0, ranks, ranks), ring=ring),
        codec=problems.CODEC,
        hidden_s={e.name: hidden * rng.random(ranks) for e in whole.exchanges},
    )
    decisions = decide(whole, costs, accuracy_bits=accuracy_bits)
    for e in whole.exchanges:
        assert (
            noise_of(whole, decisions, e.name) <= budget_of(whole, e.name, accuracy_bits) * (1 + 1e-6) + 1e-12
        )
    one = decisions[0]
    static = min(t for b, t in one.static_exposed_s.items() if b >= accuracy_bits)
    assert sum(one.exposed_s.values()) <= 1.05 * static + 1e-12
    for layer in ("1", "2"):
        assert one.mean_bits["forward" + layer] >= one.mean_bits["backward" + layer] - 1e-9
    assert all(d.exposed_s == one.exposed_s and d.mean_bits == one.mean_bits for d in decisions)


def test_fast_networks_get_floats_because_encoding_costs_more_than_it_saves():
    whole = layers(4, 500)
    assert set(decide(whole, problems.costs(4, 10e9))[0].mean_bits.values()) == {32.0}
    assert min(decide(whole, problems.costs(4, 1e9))[0].mean_bits.values()) >= 16.0


def test_slow_networks_get_fewer_bytes_than_the_static_width_when_weights_spread():
    whole = layers(4, 2000, sigma=2.5)
    one = decide(whole, problems.costs(4, 5e6))[0]
    assert max(one.mean_bits.values()) < 3.2
    assert sum(one.exposed_s.values()) < 0.85 * one.static_exposed_s[4]
    assert one.weight_sigma["forward1"] == pytest.approx(2.5, rel=0.05)


def test_equal_weights_get_the_static_width():
    one = decide(layers(3, 300, sigma=0.0), problems.costs(3, 5e6))[0]
    assert all(3.9 <= b <= 4.3 for b in one.mean_bits.values())


def test_hidden_wire_time_is_spent_on_accuracy():
    whole = problems.problem(problems.exchange(3, 1000, width=64), ranks=3)
    free = problems.costs(3, 20e6, codec=problems.CodecCost())
    exposed = decide(whole, free)[0]
    covered = decide(whole, problems.costs(3, 20e6, codec=problems.CodecCost(), hidden={"forward1": 1.0}))[0]
    assert exposed.mean_bits["forward1"] < 5
    assert covered.mean_bits["forward1"] == 32.0
    assert covered.exposed_s["forward1"] == 0.0


def test_channels_that_do_not_bind_keep_more_bits():
    links = {(s, r): LinkCost(latency_s=1e-5, s_per_byte=5e-8) for s in range(3) for r in range(3) if s != r}
    links[0, 1] = LinkCost(latency_s=1e-5, s_per_byte=5e-7)
    whole = problems.problem(problems.exchange(3, 400, width=64), ranks=3)
    decisions = decide(whole, ExchangeCosts(links=Links.of_pairs(links, 3), codec=problems.CODEC))
    slow = decisions[0].bits["forward1", 1].mean()
    others = [
        decisions[s].bits["forward1", r].mean()
        for s in range(3)
        for r in range(3)
        if s != r and (s, r) != (0, 1)
    ]
    assert slow < min(others) - 0.5


def test_channels_inside_a_host_choose_for_themselves():
    near, far = LinkCost(latency_s=0, s_per_byte=1e-11), LinkCost(latency_s=0, s_per_byte=1e-7)
    links = {(s, r): near if s // 2 == r // 2 else far for s in range(4) for r in range(4) if s != r}
    costs = ExchangeCosts(links=Links.of_pairs(links, 4, hosts=[0, 0, 1, 1]), codec=problems.CODEC)
    decisions = decide(problems.problem(problems.exchange(4, 400, width=64), ranks=4), costs)
    assert (decisions[0].bits["forward1", 1] == 32).all()
    assert decisions[0].bits["forward1", 2].mean() < 8


def test_before_anything_is_traced_messages_count_equally():
    channels = [ChannelProblem(sender=s, receiver=1 - s, weights=np.zeros(100)) for s in (0, 1)]
    whole = problems.problem(ExchangeProblem(name="forward1", width=64, channels=channels), ranks=2)
    one = decide(whole, problems.costs(2, 1e6))[0]
    assert one.mean_bits["forward1"] == pytest.approx(4.0, abs=0.2)
    assert one.weight_sigma["forward1"] == 0.0


def test_accuracy_bits_32_sends_floats_whatever_the_network():
    one = decide(layers(2, 50), problems.costs(2, 1e6), accuracy_bits=32)[0]
    assert set(one.mean_bits.values()) == {32.0}


def test_whole_problem_in_one_process_decides_what_the_ranks_decide():
    whole, costs = layers(3, (20, 200)), problems.costs(3, 50e6, hidden={"forward1": 1e-4})
    p = plan(whole, costs)
    decisions = decide(whole, costs)
    for c in p.channels:
        assert np.array_equal(c.array, decisions[c.sender].bits[c.exchange, c.receiver])
    for name in p.exchanges:
        assert np.array_equal(p.bytes_matrix(name), decisions[1].size_bytes[name])
    assert p.forward_covers_backward
    p.check(SimpleNamespace(hosts=[0, 1, 2], devices=[0, 1, 2]), whole.messages())


def test_what_is_shared_is_small_and_holds_no_weights():
    whole = layers(4, 5000)
    sent = []

    def share(own):
        sent.append(own)
        return [own] * 4

    plan_channels(own_channels(whole, 0), problems.costs(4), rank=0, allgather=share)
    assert len(sent) == 1
    assert sent[0].nbytes < 100_000
    weights = np.concatenate([c.weights for e in whole.exchanges for c in e.channels])
    assert not np.isin(sent[0], weights[weights != 0]).any()


def test_ranks_that_disagree_are_told():
    whole = layers(2, 10)
    with pytest.raises(PlanError, match="all ranks must plan the same exchanges"):
        plan_channels(own_channels(whole, 0), problems.costs(2), rank=0, allgather=lambda v: [v, v[:-1]])


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"bits": ()}, "bits are"),
        ({"bits": (2, 3)}, "bits are"),
        ({"bits": (1, 2)}, "accuracy_bits is 4"),
        ({"accuracy_bits": 5}, "accuracy_bits is 5"),
        ({"costs": problems.costs(3)}, "those of 3 ranks, the problem has 2"),
        ({"rank": 1}, "given to rank 1"),
    ],
)
def test_knobs_are_checked(knobs, words):
    given_ = {"costs": problems.costs(2), "rank": 0, **knobs}
    with pytest.raises(PlanError, match=words):
        plan_channels(
            own_channels(layers(2, 10), 0), given_.pop("costs"), allgather=lambda v: [v, v], **given_
        )


def test_a_budget_out_of_reach_gets_the_most_bits():
    values = np.ones(50)
    channels = [
        ChannelProblem(sender=s, receiver=1 - s, weights=values, energies=1e9 * values) for s in (0, 1)
    ]
    whole = problems.problem(ExchangeProblem(name="forward1", width=64, channels=channels), ranks=2)
    one = decide(whole, problems.costs(2), bits=(16,))[0]
    assert (one.bits["forward1", 1] == 16).all()
    assert one.noise_share["forward1"] > 1
    assert set(decide(whole, problems.costs(2), bits=(16, 32))[0].bits["forward1", 1].tolist()) == {32}


def test_no_messages_at_all():
    empty = BitWidthProblem(exchanges=[ExchangeProblem(name="forward1", width=4, channels=[])], world_size=2)
    one = decide(empty, problems.costs(2))[0]
    assert one.bits == {}
    assert one.exposed_s == {"forward1": 0.0}


@given(
    st.integers(0, 2**31),
    st.integers(0, 200),
    st.sampled_from([1, 3, 16, 64, 256]),
    st.sampled_from([BITS, (2, 4, 8), (16, 32), (4,)]),
)
@settings(max_examples=40, deadline=None)
def test_a_menu_tells_the_truth_about_its_points(seed, count, width, bits):
    rng = np.random.default_rng(seed)
    weights = np.exp(rng.normal(size=count)) * rng.integers(0, 2, count)
    channel = ChannelProblem(sender=0, receiver=1, weights=weights, energies=weights * rng.random(count))
    size = ExchangeProblem(name="forward1", width=width, channels=[]).sizes(bits, 6)
    menu = CandidatePoints.of(channel, size, bits)
    assert len(menu.counts) == menu_points(size, bits)
    for point in range(len(menu.counts)):
        chosen = menu.message_bits(point)
        assert [(chosen == b).sum() for b in bits] == menu.counts[point].tolist()
        assert channel.noise(chosen) == pytest.approx(menu.noise[point], abs=1e-9)
        if point >= len(bits):
            assert (np.diff(chosen[np.argsort(-weights, kind="stable")].astype(int)) <= 0).all()
