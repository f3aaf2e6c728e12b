"""Exchange times, shared costs, epoch formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirewise.cost import (
    CodecCost,
    ExchangeCosts,
    LinkCost,
    Links,
    break_even_bytes_per_s,
    exposed_s,
    speedup_bound,
)
from wirewise.errors import InputError

FAST = LinkCost(latency_s=1.0, s_per_byte=0.01)


def full(ranks, size):
    return np.full((ranks, ranks), size, dtype=np.int64) * (1 - np.eye(ranks, dtype=np.int64))


def test_channels_of_a_host_share_its_interface():
    links = Links.of_pairs(FAST, 3)
    assert links.wire_s(full(3, 100)).tolist() == [3.0, 3.0, 3.0]
    only = np.zeros((3, 3), np.int64)
    only[0, 1] = 100
    assert links.wire_s(only).tolist() == [0.0, 2.0, 0.0]
    only[0, 2] = 300
    assert links.wire_s(only).tolist() == [0.0, 5.0, 5.0]


def test_ranks_of_one_host_share_its_interface_but_not_for_local_messages():
    slow_between = {
        (s, r): LinkCost(latency_s=0.0, s_per_byte=0.001 if s // 2 == r // 2 else 0.01)
        for s in range(4)
        for r in range(4)
        if s != r
    }
    links = Links.of_pairs(slow_between, 4, hosts=[0, 0, 1, 1])
    assert links.wire_s(full(4, 100)) == pytest.approx([4.0] * 4)
    local = np.zeros((4, 4), np.int64)
    local[0, 1] = 100
    assert links.wire_s(local) == pytest.approx([0.0, 0.1, 0.0, 0.0])


def test_a_slow_host_slows_what_enters_and_leaves_it_only():
    costs = {
        (s, r): LinkCost(latency_s=0.0, s_per_byte=0.05 if 2 in (s, r) else 0.01)
        for s in range(3)
        for r in range(3)
        if s != r
    }
    size = full(3, 100)
    assert Links.of_pairs(costs, 3).wire_s(size) == pytest.approx([10.0, 10.0, 10.0])
    size[2, :] = size[:, 2] = 0
    assert Links.of_pairs(costs, 3).wire_s(size) == pytest.approx([1.0, 1.0, 0.0])


def test_ring_is_the_sum_over_rounds_of_the_slowest_channel():
    size = full(3, 100)
    size[0, 1] = 300
    assert Links.of_pairs(FAST, 3, ring=True).wire_s(size) == pytest.approx([4.0 + 2.0] * 3)


@given(st.integers(2, 5), st.integers(0, 2**31))
def test_time_grows_with_bytes_and_the_load_predicts_it(ranks, seed):
    rng = np.random.default_rng(seed)
    costs = {
        (s, r): LinkCost(latency_s=rng.random(), s_per_byte=rng.random())
        for s in range(ranks)
        for r in range(ranks)
        if s != r
    }
    links = Links.of_pairs(costs, ranks)
    size = rng.integers(1, 1000, (ranks, ranks)) * (1 - np.eye(ranks, dtype=np.int64))
    more = size.copy()
    more[0, 1] += 500
    assert (links.wire_s(more) >= links.wire_s(size)).all()
    # One cost for all: a line through (load, arrival) is the link's own line.
    same = Links.of_pairs(FAST, ranks)
    slowest = 1.0 + 0.01 * same.load(size).max(axis=0)
    assert same.wire_s(size) == pytest.approx(slowest)


def test_wrong_shapes_are_named():
    with pytest.raises(InputError, match="no link cost from rank 0 to rank 2"):
        Links.of_pairs({(0, 1): FAST}, 3)
    with pytest.raises(InputError, match=r"hosts is \[0, 5\]"):
        Links.of_pairs(FAST, 2, hosts=[0, 5])
    with pytest.raises(InputError, match="those of 2 ranks"):
        Links.of_pairs(FAST, 2).wire_s(np.zeros((3, 3)))


def test_exposed_is_what_computing_does_not_hide_on_the_slowest_rank():
    assert exposed_s(np.array([3.0, 1.0]), np.array([2.0, 4.0]), np.array([0.5, 0.7])) == 1.5
    assert exposed_s(np.array([3.0, 1.0]), np.array([4.0, 4.0]), np.array([0.5, 0.7])) == 0.7


def test_share_makes_all_ranks_agree():
    def measured(rank):
        link = LinkCost(latency_s=rank + 1.0, s_per_byte=(rank + 1) * 1e-9)
        codec = CodecCost.of_rates({4: 1e9 * (rank + 1)}, {4: 2e9})
        hidden = {"forward1": np.full(3, 0.1 * rank)}
        return ExchangeCosts(links=Links.of_pairs(link, 3), codec=codec, hidden_s=hidden)

    sent = []
    for rank in range(3):
        measured(rank).share(rank, lambda own: sent.append(own) or [own] * 3)
    shared = [measured(rank).share(rank, lambda _: sent) for rank in range(3)]
    for one in shared:
        assert one.links.latency_s.tolist() == [[0.0, 2.0, 3.0], [1.0, 0.0, 3.0], [1.0, 2.0, 0.0]]
        assert one.hidden("forward1") == pytest.approx([0.0, 0.1, 0.2])
        assert one.codec.pack_s_per_value[4] == pytest.approx(4.0 / 2e9)
        assert one.hidden("backward1").tolist() == [0.0, 0.0, 0.0]
    assert (shared[0].links.pairs.s_per_byte == shared[2].links.pairs.s_per_byte).all()


def test_speedup_bounds_of_the_published_shares():
    assert speedup_bound(0.5) == pytest.approx(2.0)
    assert 1 - 1 / 3.01 == pytest.approx(0.668, abs=1e-3)
    for rho, expected in ((0.5, 1.77), (0.75, 2.88), (0.9, 4.63)):
        assert speedup_bound(rho, 7.76) == pytest.approx(expected, abs=0.01)
    assert speedup_bound(1.0) == float("inf")
    with pytest.raises(InputError):
        speedup_bound(1.5)


def test_break_even_rate_is_where_compressing_saves_nothing():
    rate = break_even_bytes_per_s(7.76, 1.2e9, 3.3e9)
    assert rate == pytest.approx(0.78e9, rel=0.02)
