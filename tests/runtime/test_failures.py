"""Which rank failed first, told by what the others report."""

from __future__ import annotations

import pytest

from wirewise.runtime.failures import first_failed


@pytest.mark.sweep
@pytest.mark.parametrize(
    "waited_for, reports, first",
    [
        (1, {}, 1),
        (1, {1: 2}, 2),
        # Nobody knows which of the two silent ones it is.
        (1, {1: None}, 1),
        (1, {1: None, 3: 2}, 2),
        (1, {1: 3, 3: None}, 2),
        (None, {1: None, 3: None}, 2),
        (None, {1: 2}, 2),
        (None, {1: 3, 3: 1}, 2),
        (None, {1: None}, None),
        (None, {}, None),
        (1, {1: 0, 2: 1, 3: 1}, 1),
    ],
)
def test_who_failed_first_has_reported_nothing(
    waited_for: int | None, reports: dict[int, int | None], first: int | None
) -> None:
    """Seen from rank 0 of four."""
    assert first_failed(waited_for, reports, [1, 2, 3]) == first
