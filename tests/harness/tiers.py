"""Cases of a test that `make test` leaves to `make test-all`, and this to `make test-exhaustive`."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

EXHAUSTIVE = bool(os.environ.get("WIREWISE_EXHAUSTIVE"))
"""Whether all cases are tried, in hours (`make test-exhaustive`), not a fixed sample of them."""


def keep(kept: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases, of which those that are not kept are slow."""
    kept = list(kept)
    return [case if case in kept else slow(case) for case in cases]


def slow(case: Any) -> Any:
    """A case that only `make test-all` runs."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)


def spread(cases: Iterable[Any], distance: int, first: int = 0) -> list[Any]:
    """Every n-th case, and all of them in `make test-exhaustive`."""
    return list(cases)[0 if EXHAUSTIVE else first :: 1 if EXHAUSTIVE else distance]


def leave_out_exhaustive(items: list[pytest.Item]) -> list[pytest.Item]:
    """Take out the cases that only `make test-exhaustive` runs, and return them; call it after `leave_out_sweeps`."""
    if EXHAUSTIVE:
        return []
    left = [item for item in items if item.get_closest_marker("exhaustive")]
    slow_items = (item for item in items if item.get_closest_marker("slow"))
    for marker, cases in _cases_of_tests(slow_items, "sample"):
        left += [
            case for number, case in enumerate(cases) if number not in _spread(len(cases), marker.args[0])
        ]
    gone = set(map(id, left))
    items[:] = [item for item in items if id(item) not in gone]
    return left


def leave_out_sweeps(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of tests marked `sweep` as slow, but for a few, spread over their list."""
    fast = (item for item in items if not item.get_closest_marker("slow"))
    for marker, cases in _cases_of_tests(fast, "sweep"):
        kept = _spread(len(cases), marker.kwargs.get("keep", 3))
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.slow)


def _cases_of_tests(
    items: Iterable[pytest.Item], marker: str
) -> Iterator[tuple[pytest.Mark, list[pytest.Item]]]:
    """The cases of each test that has the marker."""
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker(marker):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker(marker)
        assert mark is not None
        yield mark, cases


def _spread(number: int, kept: int) -> set[int]:
    """The places of a few in a list, equally far apart."""
    return {number * (2 * i + 1) // (2 * kept) for i in range(kept)}
