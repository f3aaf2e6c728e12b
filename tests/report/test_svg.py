"""Ticks and labels of charts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirewise.report.svg import spread_labels, ticks


@given(st.integers(0, 50), st.integers(1, 5000), st.integers(2, 12))
def test_whole_ticks_are_whole_and_not_many(low, width, count):
    found = ticks(low, low + width, count, whole=True)
    assert found and all(value == round(value) and low <= value <= low + width for value in found)
    assert len(found) <= count / 0.7 + 1


@given(st.lists(st.floats(0, 300), min_size=1, max_size=15))
def test_names_keep_apart(heights):
    placed = spread_labels(heights, 300.0)
    order = sorted(placed)
    assert all(below - above >= 14 - 1e-9 for above, below in pairwise(order))
    assert order[-1] <= 300 + 1e-9
    if len(heights) == 1:
        assert placed == pytest.approx(heights)
