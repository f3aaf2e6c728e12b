"""When to plan again."""

import pytest

from tests.planners.collective.networks import four_unequal, ring
from wirewise.collective.bounds import bound
from wirewise.errors import InputError
from wirewise.planners.collective import CollectiveProblem, greedy
from wirewise.planners.collective.drift import DriftDetector, degraded
from wirewise.sim.programs import simulate


def test_small_changes_are_noise():
    net = ring(4)
    assert degraded(net, {0: 0.85e9, 1: 1.15e9}) is None
    changed = degraded(net, {0: 0.7e9, 1: 0.9e9})
    assert changed.edges[0].bandwidth_bytes_per_s == 0.7e9
    assert changed.edges[1:] == net.edges[1:]


def test_a_change_must_last():
    watch = DriftDetector(ring(4), times=3)
    for rate in (0.5e9, 0.5e9, 1e9, 0.5e9, 0.5e9):
        assert watch.observe({0: rate}) is None
    assert watch.observe({0: 0.5e9}).edges[0].bandwidth_bytes_per_s == 0.5e9


def test_swings_about_the_threshold_start_one_plan():
    watch = DriftDetector(ring(4), times=2)
    plans = [watch.observe({0: rate}) for rate in (0.78e9, 0.78e9) + (0.82e9, 0.78e9, 0.82e9, 0.76e9) * 5]
    assert sum(plan is not None for plan in plans) == 1


def test_recovery_starts_a_plan_too():
    watch = DriftDetector(ring(4), times=1)
    assert watch.observe({2: 0.2e9}) is not None
    assert watch.observe({2: 1e9}).edges == ring(4).edges


def test_new_plan_avoids_the_slow_link():
    net = four_unequal()
    fast = next(n for n, e in enumerate(net.edges) if (e.source, e.target) == (0, 2))
    slower = degraded(net, {fast: 5e6})
    old, new = (
        greedy.synthesize(CollectiveProblem(network=n, collective="all_gather", size_bytes=16e6), runs=30)
        for n in (net, slower)
    )
    old_s, new_s = (simulate(program, slower, 16e6).finish_s for program in (old, new))
    assert new_s < 0.8 * old_s
    assert new_s <= 1.2 * bound(slower, "all_gather", 16e6).seconds


def test_what_cannot_be_is_told():
    with pytest.raises(InputError, match="edge 99"):
        degraded(ring(3), {99: 1e9})
    with pytest.raises(InputError, match="above 0"):
        degraded(ring(3), {0: 0.0})
    with pytest.raises(InputError, match="threshold"):
        DriftDetector(ring(3), threshold=0.0).observe({})
