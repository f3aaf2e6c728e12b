"""The script about mini-batches writes its page from runs on a lab."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load

from wirewise import lab


@pytest.mark.lab
@pytest.mark.slow
def test_the_page_compares_modes(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "mini_batch")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out), "--only", "modes,alphas"])
    run.main()
    page = out.read_text()
    assert "| gradients over base, epoch time |" in page and "| N1 base: measured / model |" in page
    assert "## Speed by alpha (N3)" in page
    # What was run is not run again.
    kept = out.with_suffix(".json").read_bytes()
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out), "--only", "modes"])
    run.main()
    assert out.with_suffix(".json").read_bytes() == kept


@pytest.mark.dist
@pytest.mark.slow
def test_accuracy_needs_no_lab(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "mini_batch")
    out = tmp_path / "page.md"
    monkeypatch.setattr(lab, "available", lambda: (False, "none here"))
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out), "--only", "accuracy,sage"])
    run.main()
    page = out.read_text()
    assert "| machines over alone |" in page and "## GraphSAGE of 2 layers on one machine (D6)" in page
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "even"])
    with pytest.raises(SystemExit, match="none here"):
        run.main()
