"""The script about rehearsal writes its page, and makes no run twice."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.mark.slow
def test_the_page_compares_methods(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "incremental")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out), "--only", "decoupled"])
    run.main()
    page = out.read_text()
    assert "| er-random |" in page and "| coverage |" in page
    assert "Thresholds that were not met: 0." in page
    monkeypatch.setattr(run, "train", None)
    run.main()
    assert out.read_text().split("##")[1].split("Whole")[0] == page.split("##")[1].split("Whole")[0]


def test_a_failed_gate_is_told(monkeypatch, capsys):
    run = load(monkeypatch, "run", "incremental")
    page = run.Page("Page", "paper", {})
    ap = {"bare": 0.8, "er-random": 0.9, "coverage": 0.85}
    run.claims(page, "task-5", ap)
    printed = capsys.readouterr().out
    assert "| E7 bare | 0.8000 | >= 0.74 and <= 0.82: holds |" in printed
    assert printed.count("FAILS") == 2 and "| may not be the default | coverage |" in printed


@pytest.mark.slow
def test_caches_grow_as_if_planned_anew(monkeypatch, capsys):
    run = load(monkeypatch, "run", "incremental")
    monkeypatch.setattr(sys, "argv", ["run.py", "--preset", "smoke", "--only", "caches"])
    run.main()
    printed = capsys.readouterr().out
    assert "| mean |" in printed and "<= 1e-12: holds" in printed
