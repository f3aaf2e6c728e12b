"""The script about cached rows writes its page."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.mark.slow
def test_the_page_compares_policies(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "cache_volume")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out), "--only", "volume,ahead"])
    run.main()
    page = out.read_text()
    assert "| oracle |" in page and "| reverse-pagerank |" in page and "all batches known" in page
    assert "Thresholds that were not met: 0." in page
