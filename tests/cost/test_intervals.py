"""Intervals of gains and of resampled values."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost.intervals import gain_of, percentiles95


def test_gain_and_interval_by_hand() -> None:
    gain = gain_of([0.1, 0.2, 0.3])
    assert gain.mean == pytest.approx(0.2)
    # Student's t with two degrees of freedom: 4.303 * 0.1 / sqrt(3).
    assert gain.ci95 == (pytest.approx(0.2 - 0.2484, abs=1e-4), pytest.approx(0.2 + 0.2484, abs=1e-4))
    assert not gain.kept


def test_the_interval_covers_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    intervals = [gain_of(random.normal(1.0, 1.0, 6)).ci95 for _ in range(600)]
    assert 0.92 <= np.mean([low <= 1.0 <= high for low, high in intervals]) <= 0.98


def test_equal_windows_give_a_gain_without_doubt() -> None:
    gain = gain_of(np.full(4, 3.0) - np.full(4, 1.0))
    assert gain == (2.0, (2.0, 2.0)) and gain.kept


def test_resampled_values_lie_in_their_interval() -> None:
    assert percentiles95(np.arange(1001)) == (25.0, 975.0)
