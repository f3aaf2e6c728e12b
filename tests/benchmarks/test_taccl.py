"""The script about TACCL writes its page."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.mark.slow
def test_the_page_says_what_was_proved(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "taccl")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "routing,together", "--out", str(out)])
    monkeypatch.setitem(run.PRESETS["smoke"], "limit_s", 2.0)
    run.main()
    page = out.read_text()
    assert "| ndv2-sk-1 | all_gather | 1 |" in page and ">= 856 and <= 856: holds" in page
    assert "Thresholds that were not met: 0." in page
