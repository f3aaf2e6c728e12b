"""Cases of a test that `make test` leaves to `make test-all`."""

from __future__ import annotations

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
