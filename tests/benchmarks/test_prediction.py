"""The script about predictions judges what it measured."""

import sys

import msgspec
import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.fixture
def script(monkeypatch):
    return load(monkeypatch, "run", "prediction")


def test_errors_are_judged_by_mean_and_worst(script, capsys):
    common = sys.modules["common"]
    one = script.Setting(
        family="fusion", where="2 ranks", plan="even", predicted_s=0.99, quartiles_s=(0.9, 1.0, 1.2)
    )
    assert one.measured_s == 1.0
    assert one.error == pytest.approx(-0.01)
    page = common.Page("Title", "smoke", {})
    script.claim(page, [one] * 39 + [msgspec.structs.replace(one, predicted_s=1.09)])
    said = capsys.readouterr().out
    assert "| settings | 40 | >= 40: holds |" in said
    assert "| mean error | 1.2 % | <= 0.05: holds |" in said
    assert "| worst error | 9.0 % | <= 0.08: FAILS |" in said


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.dist
def test_predicted_epochs_and_batches_are_carried_out(script, monkeypatch, tmp_path):
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "exchanges,batches", "--out", str(out)])
    script.main()
    page = out.read_text()
    for plan in ("fp32", "8 bits", "2 bits", "auto"):
        assert f"| full-graph bits | 200mbit | {plan} |" in page
    assert "| cache | 200mbit | vip, alpha 0.1 |" in page
