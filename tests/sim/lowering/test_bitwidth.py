"""The simulated epoch against times computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost import CodecCost, LinkCost, Links
from wirewise.errors import InputError, PlanError
from wirewise.plans import BitWidthPlan, ChannelBits
from wirewise.sim import ExchangeTimes, predict


def plan(*exchanges):
    channels = tuple(
        ChannelBits(exchange=name, sender=s, receiver=1 - s, width=100, bits=bytes([32]))
        for name in exchanges
        for s in (0, 1)
    )
    return BitWidthPlan(world_size=2, planner="test", channels=channels)


# A message of 400 bytes takes 1 + 4 seconds; packing it takes 0.5, unpacking 0.25.
LINKS = Links.of_pairs(LinkCost(latency_s=1.0, s_per_byte=0.01), 2)
COSTS = CodecCost(pack_s_per_row={32: 0.5}, unpack_s_per_row={32: 0.25})


def compute(central, marginal=1.0):
    return ExchangeTimes(
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
    timeline = predict(plan("forward1"), compute(central), LINKS, costs=COSTS, overlap=overlap).timeline
    assert timeline.seconds == pytest.approx(expected)


def test_exchanges_follow_each_other_in_the_order_of_an_epoch():
    timeline = predict(plan("backward1", "forward2", "forward1"), None, LINKS, costs=COSTS).timeline
    assert timeline.seconds == pytest.approx(3 * 5.75)
    wires = [s.exchange for s in timeline.of(0) if s.phase == "wire"]
    assert wires == ["forward1", "forward2", "backward1"]


def test_a_slow_rank_delays_who_waits_for_it():
    late = ExchangeTimes(marginal_s={"forward1": np.array([0.0, 7.0])})
    timeline = predict(plan("forward1", "forward2"), late, LINKS, costs=COSTS).timeline
    second = [s for s in timeline.of(0) if s.exchange == "forward2" and s.phase == "wire"]
    assert second[0].start_s == pytest.approx(5.75 + 7.0 + 0.5)


def test_the_prediction_sums_up():
    found = predict(plan("forward1"), compute(3.0), LINKS, costs=COSTS)
    assert found.step_s == pytest.approx(6.75)
    assert found.phases_s == pytest.approx(
        {"pack": 0.5, "wire": 5.0, "central": 3.0, "unpack": 0.25, "marginal": 1.0}
    )
    parts = found.breakdown
    assert (parts.compute_s, parts.overlapped_communication_s) == pytest.approx((0.5 + 3.0 + 0.25 + 1.0, 3.0))
    assert (parts.exposed_communication_s, parts.wait_s) == pytest.approx((2.0, 0.0))
    assert found.summary().startswith(
        "simulated: epoch of 2 ranks under the bitwidth plan by 'test' takes 6750.000 ms"
    )
    late = predict(plan("forward1"), compute(3.0), LINKS, costs=COSTS, overlap=False)
    assert late.breakdown.overlapped_communication_s == 0.0


def test_links_and_times_of_another_job_are_refused():
    three = Links.of_pairs(LinkCost(latency_s=0, s_per_byte=0), 3)
    with pytest.raises(PlanError, match=r"world size 2.*3 ranks"):
        predict(plan("forward1"), None, three)
    with pytest.raises(
        InputError, match=r"\(3,\) times of exchange 'forward1'; expected one for each of 2 ranks"
    ):
        predict(plan("forward1"), ExchangeTimes(central_s={"forward1": np.zeros(3)}), LINKS)
    with pytest.raises(InputError, match=r"exchange 'forward7'; expected .* of the plan: forward1"):
        predict(plan("forward1"), ExchangeTimes(marginal_s={"forward7": np.zeros(2)}), LINKS)
