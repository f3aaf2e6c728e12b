"""The row of predicted recoveries, with one kill of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.dist]


def test_a_killed_stage_is_recomputed_and_predicted(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "recovery"))
    from predicted import predicted_recoveries

    (found,) = predicted_recoveries(1, (3,), ((1,),))
    assert found["stages"] == [1] and found["updates"] == 3
    assert found["error"] == found["predicted_s"] / found["measured_s"] - 1 and found["step_s"] > 0
