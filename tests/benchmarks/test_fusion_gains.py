"""The page about measured plans says what was measured."""

import pytest
from tests.benchmarks.test_benchmarks import load

MB = 1_000_000


@pytest.fixture
def run(monkeypatch):
    return load(monkeypatch, "run", "fusion_gains")


def found(plan_s, predicted_s=0.8, **more):
    return {
        "wire_s": 0.1,
        "fixed_s": 1e-4,
        "compute_s": 0.5,
        "recorded": 1,
        "buckets": [3, 4],
        "baseline_s": 1.0,
        "predicted_s": predicted_s,
        "best_s": 0.79,
        "tried": 32,
        "ddp_s": [1.0, 1.1, 1.0, 1.1],
        "plan_s": plan_s,
        "tuned": {"kept": True, "gain": 0.2, "ci95": [0.1, 0.3]},
        **more,
    }


def test_a_gain_is_due_only_where_it_is_predicted(run):
    rows = []
    good = run.gains_cells(found([0.8, 0.9, 0.8, 0.9]), rows)
    assert any("19.0 (19.0 to 19.0)" in cell for cell in good) and ">= 0.1: holds" in good
    little = run.gains_cells(found([1.0, 1.05, 1.0, 1.05]), rows)
    assert ">= 0.1: FAILS" in little
    none_due = run.gains_cells(found([1.0, 1.05, 1.0, 1.05], predicted_s=0.95), rows)
    assert not any(">= 0.1" in cell for cell in none_due) and "<= 0.02: FAILS" in none_due
    assert len(rows) == 3


def test_errors_of_passes_are_those_against_the_measured(run):
    worst = {"time": 0.0, "memory": 0.0}
    one = {"predicted_s": 1.1, "measured_s": [0.9, 1.1], "predicted_bytes": 9 * MB, "measured_bytes": 10 * MB}
    cells = run.passes_cells({**one, "always_bytes": 5 * MB}, worst)
    assert cells[2] == "+10.0" and cells[5:7] == ["-10.0", "-20.0"]
    assert cells[-2:] == ["<= 0.05: FAILS", "<= 0.06: FAILS"]
    assert worst == pytest.approx({"time": 0.1, "memory": 0.1})


def test_jobs_that_were_measured_are_not_measured_again(run, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(run, "run", lambda *job: asked.append(job) or {"ddp_s": [1.0]})
    for _ in range(2):
        kept = run.Kept(tmp_path / "page.json")
        assert kept.job("50mbit", 2, model="mlp")["found"] == {"ddp_s": [1.0]}
    kept.job("50mbit", 4, model="mlp")
    assert [job[:2] for job in asked] == [("50mbit", 2), ("50mbit", 4)]
