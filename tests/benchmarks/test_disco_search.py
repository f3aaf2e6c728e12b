"""The script about DisCo's search writes its page."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.mark.slow
@pytest.mark.exhaustive  # a minute of searches
def test_the_page_compares_the_search_with_baselines(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "disco_search")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out)])
    run.main()
    page = out.read_text()
    assert "| all but cupcake |" in page and "| 1.1 | 10 |" in page and "| mlp |" in page
    assert "Thresholds that were not met: 0." in page
