"""The benchmark of the checks of PyG models."""

from __future__ import annotations

import pytest
from tests.benchmarks.test_benchmarks import load


@pytest.mark.dist
@pytest.mark.slow
def test_seconds_inside_checks_are_found(monkeypatch):
    run = load(monkeypatch, "run", "pyg_checks")
    found = run.measured({"nodes": 300, "features": 8, "width": 8, "layers": 2, "pairs": 10})
    assert len(found["processor_s"]) == 10 and len(found["proof_s"]) == 2
    kinds = [found[name] for name in ("full_s", "brief_s", "rest_s")]
    assert sum(map(len, kinds)) == 18 and all(seconds > 0 for kind in kinds for seconds in kind)
