"""The script about Cupcake's planner writes its page."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.mark.slow
def test_the_page_compares_rules_with_the_best(monkeypatch, tmp_path, wirewise_data):
    monkeypatch.setenv("WIREWISE_DATA", str(wirewise_data))
    run = load(monkeypatch, "run", "compression_planners")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out)])
    run.main()
    page = out.read_text()
    assert "| vgg16 | 10 | dgc |" in page and "| best two groups |" in page and "| 50 | any |" in page
    assert "| vgg16 | 1 | dgc | 246.9 | 231.8 |" in page
    assert "Thresholds that were not met: 0." in page
