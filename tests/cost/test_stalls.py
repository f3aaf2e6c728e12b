"""Stash's arithmetic: differences, intervals, its own formulas, caching."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from wirewise.cost.stalls import (
    COMPONENTS,
    DataTimes,
    StashTimes,
    decompose,
    fetch_rate,
    stash_formulas,
)
from wirewise.errors import InputError

FIXTURE = Path(__file__).parent / "fixtures" / "stash.json"
LEVELS = {"compute": 40.0, "machine": 50.0, "network": 90.0, "cached": 120.0, "cold": 125.0, "whole": 126.0}
TRUTH = {"compute": 40, "interconnect": 10, "network": 40, "prep": 30, "fetch": 5, "residual": 1}


def noisy(levels, repeats=3, steps=50, spread=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: [rng.normal(level, spread, steps) for _ in range(repeats)] for name, level in levels.items()
    }


def test_parts_are_found_and_add_up():
    found = decompose(noisy(LEVELS))
    for name, true in TRUTH.items():
        assert found[name].mean_s == pytest.approx(true, abs=0.5)
    assert sum(found[name].mean_s for name in COMPONENTS) == pytest.approx(found["total"].mean_s, rel=1e-12)


@pytest.mark.slow
def test_intervals_hold_the_truth_about_as_often_as_they_say():
    hits = 0
    for seed in range(200):
        low, high = decompose(noisy(LEVELS, repeats=5, seed=seed))["network"].ci95_s
        hits += low <= 40 <= high
    # 190 are expected; intervals that always hold the truth would be too wide.
    assert 185 <= hits < 200


def test_one_bad_repeat_of_three_moves_no_part_but_its_interval():
    runs = noisy(LEVELS)
    runs["cached"][1] += 30.0
    found = decompose(runs)
    assert found["prep"].mean_s == pytest.approx(30, abs=0.7)
    assert found["prep"].ci95_s[1] > 50
    assert sum(found[name].mean_s for name in COMPONENTS) == pytest.approx(found["total"].mean_s, rel=1e-12)


def test_intervals_grow_with_the_spread_between_repeats():
    steady, shaken = noisy(LEVELS), noisy(LEVELS)
    for run in shaken.values():
        for shift, series in zip((-5.0, 0.0, 5.0), run, strict=True):
            series += shift * np.random.default_rng(len(series)).normal()
    shaken["cold"][0] += 9.0
    width = [np.diff(decompose(runs)["fetch"].ci95_s)[0] for runs in (steady, shaken)]
    assert width[1] > 3 * width[0]


def test_what_was_not_run_is_zero():
    levels = {name: LEVELS[name] for name in ("compute", "cached", "cold", "whole")}
    found = decompose(noisy(levels))
    assert found["interconnect"].mean_s == found["network"].mean_s == 0.0
    assert found["prep"].mean_s == pytest.approx(80, abs=0.5)
    assert sum(found[name].mean_s for name in COMPONENTS) == pytest.approx(found["total"].mean_s, rel=1e-12)


def test_a_bursty_loader_is_measured_by_its_mean():
    bursts = np.tile([10.0, 10.0, 10.0, 50.0], 13)[:50]
    flat = {name: [np.full(50, 10.0)] * 3 for name in ("compute", "cached")}
    found = decompose(flat | {"cold": [bursts] * 3, "whole": [bursts] * 3})
    assert found["fetch"].mean_s == pytest.approx(bursts.mean() - 10)
    low, high = found["fetch"].ci95_s
    assert low < found["fetch"].mean_s < high


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda runs: runs.pop("cold"), "no run 'cold'"),
        (lambda runs: runs["cold"].pop(), "repeats"),
        (lambda runs: runs["whole"][0].__setitem__(0, np.nan), "not finite"),
    ],
)
def test_unusable_runs_are_named(change, words):
    runs = noisy(LEVELS)
    change(runs)
    with pytest.raises(InputError, match=words):
        decompose(runs)


def test_the_formulas_are_those_of_stash_bit_for_bit():
    for case in json.loads(FIXTURE.read_text()):
        found = stash_formulas(StashTimes(**case["times"]))
        for form in ("as_published", "as_coded"):
            expected = {name: float.fromhex(value) for name, value in case[form].items()}
            assert found[form] == expected


def test_the_coded_fetch_stall_holds_the_whole_computing():
    times = StashTimes(synthetic_one_s=10, synthetic_s=20, cold_s=60, cached_s=50, factor=1.0)
    found = stash_formulas(times)
    assert found["as_published"]["fetch_stall_s"] == 10
    assert found["as_coded"]["fetch_stall_s"] - found["as_published"]["fetch_stall_s"] == 20


def test_the_rate_of_a_cache_runs_from_storage_to_memory():
    assert fetch_rate(0.0, 1000.0, 100.0) == pytest.approx(100)
    assert fetch_rate(1.0, 1000.0, 100.0) == pytest.approx(1000)
    assert fetch_rate(0.5, 1000.0, 100.0) == pytest.approx(1 / (0.0005 + 0.005))
    with pytest.raises(InputError, match=r"cached=1\.5"):
        fetch_rate(1.5, 1.0, 1.0)


def pipeline(workers, ranks=1, **ends):
    """Computing 50 ms, preparing 40, fetching 80 or 1; the ends are what a loader without losses would show."""
    serial = {
        0: lambda data: 0.05 + data,
        1: lambda data: max(0.05, data),
        2: lambda data: max(0.05, data / 2),
    }
    ends = {"cached_step_s": serial[workers](0.041), "cold_step_s": serial[workers](0.12)} | ends
    return DataTimes(
        step_s=0.05,
        prep_s=0.04,
        storage_s=0.08,
        memory_s=0.001,
        workers=workers,
        batch=64,
        ranks=ranks,
        **ends,
    )


def test_a_loader_without_workers_overlaps_nothing():
    assert pipeline(0).predicted_step_s(0.0) == pytest.approx(0.05 + 0.04 + 0.08)
    assert pipeline(0).predicted_step_s(0.5) == pytest.approx(0.05 + 0.04 + 0.0405, rel=0.01)
    assert pipeline(0).least_useful() > 0.97


def test_a_worker_fetches_and_prepares_in_turn():
    assert pipeline(1).predicted_step_s(0.0) == pytest.approx(0.12)
    assert pipeline(1).predicted_step_s(0.5) == pytest.approx(0.0805, rel=0.01)
    assert pipeline(2).predicted_step_s(0.0) == pytest.approx(0.06, rel=0.01)
    assert pipeline(2).predicted_step_s(0.9) == pytest.approx(0.05, rel=0.01)


def test_the_slowest_rank_holds_up_all():
    # Of 64 items 32 are fetched in the mean, with a deviation of 4; the mean of the largest of two is 0.564 of
    # a deviation above that.
    one, two = (pipeline(0, ranks=ranks).predicted_step_s(0.5) for ranks in (1, 2))
    assert two - one == pytest.approx(0.564 * 4 / 64 * 0.079, rel=0.15)
    assert pipeline(0, ranks=16).predicted_step_s(0.5) > two


def test_the_prediction_is_true_at_both_measured_ends():
    data = pipeline(1, ranks=4, cached_step_s=0.07, cold_step_s=0.15)
    assert data.predicted_step_s(0.0) == pytest.approx(0.15)
    assert data.predicted_step_s(1.0) == pytest.approx(0.07)
    with pytest.raises(InputError, match="cached=2"):
        data.predicted_step_s(2)


def test_caching_more_than_useful_makes_nothing_faster():
    # (0.04 + 0.001 x + 0.08 (1-x)) / 2 is the step at x = 0.25.
    least = pipeline(2).least_useful()
    assert least == pytest.approx((0.12 - 0.1) / 0.079, abs=0.06)
    assert pipeline(2).predicted_step_s(least - 0.1) > 0.0505
    assert pipeline(2, cold_step_s=0.05, cached_step_s=0.05).least_useful() <= least


def test_ds_analyzer_takes_the_slowest_stage():
    assert pipeline(1).published_step_s(0.0) == pytest.approx(0.08)
    assert pipeline(1).published_step_s(1.0) == pytest.approx(0.05)
    assert pipeline(2).published_step_s(0.0) == pytest.approx(0.05)
