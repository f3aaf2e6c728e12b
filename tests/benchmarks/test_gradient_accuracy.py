"""The script about compressed training writes its page."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.mark.slow
@pytest.mark.dist
def test_the_page_compares_codecs(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "gradient_accuracy")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out)])
    run.main()
    page = out.read_text()
    assert "## mlp" in page and "| efsign, no feedback |" in page and "| D3 terngrad: " in page
    assert len(page.splitlines()) > 30
    assert out.with_suffix(".json").exists()
