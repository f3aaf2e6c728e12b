"""The script about tensors between meshes writes its page."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_page_has_all_rows(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "reshard")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out)])
    run.main()
    page = out.read_text()
    for way in (
        "ring, 2 hosts",
        "torch broadcast, 2 hosts",
        "case 3",
        "100 tensors, one plan",
        "there",
        "back",
    ):
        assert f"| {way} | " in page
    assert "| 2x2:R,S0 to 2x2@4-7:S0,R |" in page and "error, worst %" in page
    assert "| R6: seconds of a plan |" in page and "| False |" not in page
