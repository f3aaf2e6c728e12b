"""Work of the main operations grows no faster than was recorded."""

import runpy

import numpy as np
import pytest
from tests.benchmarks.test_benchmarks import ROOT, load
from tests.harness.tiers import spread

OPERATIONS = runpy.run_path(str(ROOT / "cost_growth" / "operations.py"))["OPERATIONS"]


@pytest.fixture
def growth(monkeypatch):
    return load(monkeypatch, "growth", "cost_growth")


def test_exponents_and_extrapolation_of_a_known_law(growth, monkeypatch):
    sizes = np.array([10, 30, 100, 300, 1000])
    slope, half = growth.fitted(sizes, 3e-4 * sizes**1.5)
    assert slope == pytest.approx(1.5) and half < 1e-6
    found = {int(size): {"seconds": 1e-3 * size, "bytes": 2**20 * size, "idle": 0} for size in sizes}
    operation = load(monkeypatch, "operations", "cost_growth").Operation("ranks", tuple(found), 1, None, 2000)
    told = growth.told(operation, found)
    assert told[5:7] == ("2.5e+04 ranks", "2,000 ranks: 2 s, 2.1 GB")
    assert told[7:] == ("<= 1.25: holds", "<= 1.25: holds")
    quadratic = {size: {**one, "seconds": 1e-6 * size**2} for size, one in found.items()}
    assert growth.told(operation, quadratic)[7:] == ("<= 1.25: FAILS", "<= 1.25: holds")


@pytest.mark.slow
@pytest.mark.parametrize("name", spread((name for name, one in OPERATIONS.items() if one.counted), 2))
@pytest.mark.sample(4)
def test_v1_work_grows_as_recorded(growth, name):
    recorded = growth.OPERATIONS[name].recorded
    calls, allocated, seconds = growth.exponents(name)
    assert calls <= recorded.calls + growth.RISE
    assert allocated <= recorded.allocated + growth.RISE
    assert seconds is None or seconds <= recorded.seconds + growth.RISE
