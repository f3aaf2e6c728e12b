"""The simulated epoch against times computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost import CodecCost, ExchangeCosts, LinkCost, Links
from wirewise.errors import PlanError
from wirewise.plans import BitWidthPlan, ChannelBits
from wirewise.sim import ComputeTimes, predict_epoch, simulate_epoch


def plan(*exchanges):
    channels = tuple(
        ChannelBits(exchange=name, sender=s, receiver=1 - s, width=100, bits=bytes([32]))
        for name in exchanges
        for s in (0, 1)
    )
    return BitWidthPlan(world_size=2, planner="test", channels=channels)


# A message of 400 bytes takes 1 + 4 seconds; packing it takes 0.5, unpacking 0.25.
COSTS = ExchangeCosts(
    links=Links.of_pairs(LinkCost(latency_s=1.0, s_per_byte=0.01), 2),
    codec=CodecCost(pack_s_per_row={32: 0.5}, unpack_s_per_row={32: 0.25}),
)


def compute(central, marginal=1.0):
    return ComputeTimes(
        central_s={"forward1": np.full(2, central)}, marginal_s={"forward1": np.full(2, marginal)}
    )


@pytest.mark.parametrize(
    ("central", "overlap", "expected"),
    [
        (3.0, True, 0.5 + 5.0 + 0.25 + 1.0),
        (8.0, True, 0.5 + 8.0 + 0.25 + 1.0),
        (3.0, False, 0.5 + 5.0 + 0.25 + 3.0 + 1.0),
    ],
)
def test_one_exchange(central, overlap, expected):
    timeline = simulate_epoch(plan("forward1"), COSTS, compute(central), overlap=overlap)
    assert timeline.seconds == pytest.approx(expected)


def test_exchanges_follow_each_other_in_the_order_of_an_epoch():
    timeline = simulate_epoch(plan("backward1", "forward2", "forward1"), COSTS)
    assert timeline.seconds == pytest.approx(3 * 5.75)
    wires = [s.exchange for s in timeline.of(0) if s.phase == "wire"]
    assert wires == ["forward1", "forward2", "backward1"]


def test_a_slow_rank_delays_who_waits_for_it():
    late = ComputeTimes(marginal_s={"forward1": np.array([0.0, 7.0])})
    timeline = simulate_epoch(plan("forward1", "forward2"), COSTS, late)
    second = [s for s in timeline.of(0) if s.exchange == "forward2" and s.phase == "wire"]
    assert second[0].start_s == pytest.approx(5.75 + 7.0 + 0.5)


def test_prediction_sums_up_and_says_that_it_is_simulated():
    prediction = predict_epoch(plan("forward1"), COSTS, compute(3.0))
    assert prediction.epoch_s == pytest.approx(6.75)
    assert prediction.hidden_s == pytest.approx(3.0)
    assert (prediction.pack_s, prediction.wire_s, prediction.unpack_s) == pytest.approx((0.5, 5.0, 0.25))
    assert prediction.size_bytes == 800
    assert prediction.summary().startswith("simulated: epoch 6750.000 ms (pack 500.000, wire 5000.000")
    assert predict_epoch(plan("forward1"), COSTS, compute(3.0), overlap=False).hidden_s == 0.0


def test_costs_of_another_job_are_refused():
    with pytest.raises(PlanError, match=r"2 ranks.*of 3"):
        simulate_epoch(
            plan("forward1"), ExchangeCosts(links=Links.of_pairs(LinkCost(latency_s=0, s_per_byte=0), 3))
        )
