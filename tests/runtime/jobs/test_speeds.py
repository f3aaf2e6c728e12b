"""Speeds of kinds: a table from a few measured amounts, and beliefs that follow what is measured."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.errors import InputError
from wirewise.runtime.jobs import SpeedModel, step_table


def true_s(c, g):
    return 0.02 + 0.4 / g + 0.05 * g / c


def test_amounts_between_measured_ones_are_fitted():
    measured = {(c, g): true_s(c, g) for c in (1, 2, 4) for g in (1, 2, 4)}
    table = step_table(measured, 4, 4)
    assert table.shape == (5, 5)
    assert table[3, 3] == pytest.approx(true_s(3, 3), rel=1e-6)
    # More accelerators hurt where processors are few.
    assert table[1, 3] < table[1, 4] * 1.05 and table[1, 4] > table[4, 4]


def test_what_was_measured_stays():
    assert step_table({(1, 1): 0.5, (2, 2): 0.3, (4, 4): 0.9}, 4, 4)[4, 4] == 0.9


def test_measurements_that_are_none_are_refused():
    for wrong in ({}, {(1, 1): 0.0}):
        with pytest.raises(InputError, match="expected at least one, all above 0"):
            step_table(wrong, 2, 2)
    with pytest.raises(InputError, match="got 0 s measured and 1 s expected"):
        SpeedModel(1).observe(0, 1, 1, 0, 1)


def test_beliefs_move_from_what_was_expected_to_what_is_measured():
    model, progress = SpeedModel(2), np.full((2, 3, 3), 0.1)
    assert (model.believed(progress) == progress).all()
    model.observe(0, 2, 2, measured_s=2.0, expected_s=1.0)
    once = model.factors(0, 2, 2)
    # The whole kind is believed to be slower, the measured amount most.
    assert 1 < once[1, 1] < once[2, 2] < 2
    for _ in range(50):
        model.observe(0, 2, 2, measured_s=2.0, expected_s=1.0)
    many = model.factors(0, 2, 2)
    assert many[2, 2] == pytest.approx(2.0, rel=0.02) and once[1, 1] < many[1, 1] < 2
    believed = model.believed(progress)
    assert believed[0, 2, 2] == pytest.approx(0.05, rel=0.02) and (believed[1] == 0.1).all()
