"""Link costs: robust fit, online fit."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost import LinkCost, LinkEstimator, PairEstimator, fit_link
from wirewise.errors import InputError


def noisy(latency, slope, n=200, seed=0, spoilt=0.0):
    rng = np.random.default_rng(seed)
    size = np.linspace(1e4, 2e6, n).round()
    seconds = (latency + slope * size) * rng.normal(1.0, 0.02, n)
    spoilt_ones = rng.random(n) < spoilt
    seconds[spoilt_ones] += rng.exponential(0.5, int(spoilt_ones.sum()))
    return list(zip(size.tolist(), seconds.tolist(), strict=True))


@pytest.mark.parametrize("spoilt", [0.0, 0.1, 0.25])
def test_fit_recovers_the_line_despite_stalls(spoilt):
    cost = fit_link(noisy(2e-4, 1 / 22.7e6, spoilt=spoilt))
    assert cost.s_per_byte == pytest.approx(1 / 22.7e6, rel=0.02)
    assert cost.r_squared >= 0.98
    assert cost.samples == 200
    assert (cost.outliers > 5) == (spoilt > 0)
    assert cost.bandwidth_bytes_per_s == pytest.approx(22.7e6, rel=0.02)


def test_fit_is_exact_on_a_line_and_predicts():
    cost = fit_link([(100, 1.1), (200, 1.2), (400, 1.4)])
    assert cost.latency_s == pytest.approx(1.0)
    assert cost.seconds(300) == pytest.approx(1.3)
    assert cost.outliers == 0


def test_fit_with_two_sizes_of_many_repeats():
    samples = [(1000, 0.010), (1000, 0.011), (1000, 0.010)] * 300 + [(9000, 0.09), (9000, 0.091)] * 300
    assert fit_link(samples).s_per_byte == pytest.approx(1e-5, rel=0.05)


def test_fit_never_gives_negative_costs():
    falling = fit_link([(100, 3.0), (200, 2.0), (300, 1.0)])
    assert falling.s_per_byte == 0.0
    assert falling.latency_s == pytest.approx(2.0)
    assert falling.bandwidth_bytes_per_s == float("inf")
    assert fit_link([(100, 0.0), (200, 1.0), (300, 2.0)]).latency_s == 0.0


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "0 distinct sizes"),
        ([(100, 1.0), (100, 2.0)], "1 distinct sizes.*measure a second size"),
        ([(100, 1.0), (200, float("nan"))], "sample 1"),
        ([(100, -1.0), (200, 1.0)], "sample 0"),
    ],
)
def test_fit_refuses(samples, words):
    with pytest.raises(InputError, match=words):
        fit_link(samples)


def test_online_follows_a_link_that_slows_down_at_constant_size():
    online = LinkEstimator(LinkCost(latency_s=1e-4, s_per_byte=1e-8))
    for _ in range(25):
        online.observe(1e6, 1e-4 + 5e-8 * 1e6)
    assert online.cost.s_per_byte == pytest.approx(5e-8, rel=0.02)
    assert online.cost.latency_s == 1e-4


def test_online_tells_latency_from_bandwidth_once_sizes_differ():
    online = LinkEstimator(LinkCost(latency_s=0.0, s_per_byte=1e-7))
    for i in range(40):
        size = 1e6 if i % 2 else 3e5
        online.observe(size, 2e-3 + 4e-8 * size)
    assert online.cost.s_per_byte == pytest.approx(4e-8, rel=0.02)
    assert online.cost.latency_s == pytest.approx(2e-3, rel=0.1)


def test_online_bounds_the_influence_of_one_stall():
    online = LinkEstimator(LinkCost(latency_s=0.0, s_per_byte=1e-8))
    for _ in range(10):
        online.observe(1e6, 1e-2)
    before = online.cost.seconds(1e6)
    online.observe(1e6, 100.0)
    assert online.cost.seconds(1e6) < 2.5 * before


def test_online_refuses_nonsense():
    with pytest.raises(InputError, match="decay"):
        LinkEstimator(LinkCost(latency_s=0, s_per_byte=0), decay=1.0)
    with pytest.raises(InputError, match="bytes above 0"):
        LinkEstimator(LinkCost(latency_s=0, s_per_byte=0)).observe(0, 1.0)


def test_table_takes_in_only_loaded_channels_that_it_knows():
    start = LinkCost(latency_s=0.0, s_per_byte=1e-8)
    table = PairEstimator({(0, 1): start, (1, 0): start})
    table.observe_round({(0, 1): 1e6, (1, 0): 0.0}, {(0, 1): 2e-2, (1, 0): 5.0, (2, 1): 1.0})
    assert table.costs()[1, 0] == start
    assert table.costs()[0, 1].s_per_byte == pytest.approx(2e-8)
