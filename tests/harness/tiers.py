"""Cases of a test that `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest


def keep(kept: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases, of which those that are not kept are slow."""
    kept = list(kept)
    return [case if case in kept else slow(case) for case in cases]


def slow(case: Any) -> Any:
    """A case that only `make test-all` runs."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)


def leave_out_sweeps(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of tests marked `sweep` as slow, but for a few, spread over their list."""
    sweeps = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") and not item.get_closest_marker("slow"):
            sweeps[item.nodeid.partition("[")[0]].append(item)
    for cases in sweeps.values():
        marker = cases[0].get_closest_marker("sweep")
        assert marker is not None
        keep = marker.kwargs.get("keep", 3)
        kept = {len(cases) * (2 * i + 1) // (2 * keep) for i in range(keep)}
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.slow)
