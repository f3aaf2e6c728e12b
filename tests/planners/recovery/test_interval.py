from __future__ import annotations

import math

import pytest

from wirewise.planners.recovery.interval import best_interval, daly_s, young_s
from wirewise.sim.recovery import Loss, efficiency


def test_young_and_daly_by_hand():
    assert young_s(5000.0, 10.0) == pytest.approx(math.sqrt(100_000))
    assert young_s(5000.0, 10.0, 0.25) == pytest.approx(2 * young_s(5000.0, 10.0))
    ratio = math.sqrt(10 / 10_000)
    assert daly_s(5000.0, 10.0) == pytest.approx(math.sqrt(100_000) * (1 + ratio / 3 + ratio**2 / 9) - 10)
    assert daly_s(4.0, 10.0) == 4.0
    assert young_s(10.0, 1.0, 0.0) == daly_s(10.0, 1.0, 0.0) == math.inf


@pytest.mark.parametrize(("mtbf_s", "checkpoint_s"), [(1e4, 5.0), (600.0, 2.0), (60.0, 1.0)])
def test_the_best_interval_is_the_best_and_near_dalys(mtbf_s, checkpoint_s):
    def goodput(steps):
        losses = [Loss(1.0, 3.0, 0.1)]
        return efficiency(0.1, losses, mtbf_s, interval_steps=steps, checkpoint_s=checkpoint_s).goodput

    found = best_interval(goodput, 1, 20_000)
    assert goodput(found) == max(map(goodput, range(1, 20_000)))
    assert found * 0.1 == pytest.approx(daly_s(mtbf_s, checkpoint_s), rel=0.03)
    assert best_interval(goodput, 1, 3) == 3 and best_interval(goodput, 10_000, 20_000) == 10_000
