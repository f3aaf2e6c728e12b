"""The page about bounds and packed trees can be made, and nothing simulated in it fails."""

import pytest
from tests.benchmarks.test_benchmarks import load

TIMED = ("parts", "forests")


@pytest.fixture
def run(monkeypatch):
    return load(monkeypatch, "run", "tree_packing")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bounds", "parts", "forests", "all_reduces", "hybrid", "chunks", "servers", "uneven"]
)
def test_rows(run, name, capsys, monkeypatch):
    page = run.Page("Trees", "smoke", {})
    preset = run.PRESETS["smoke"] | {"machines": ["ndv2x2"], "probes": (18, 24)}
    # Three GPUs and four of a DGX-1: all parts take seconds.
    kinds = run.kinds("dgx-1p")[:4] if name == "parts" else []
    monkeypatch.setattr(run, "kinds", lambda _: kinds)
    run.ROWS[name](page, preset)
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) > 2
    if name not in TIMED and name not in ("uneven", "all_reduces"):
        assert "holds" in printed and "FAILS" not in printed
