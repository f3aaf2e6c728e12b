"""Which program is fastest for which size."""

from __future__ import annotations

import math

import pytest

from tests.report.test_collective_view import LATENCY_S, RATE, network_of
from wirewise.collective.builders import build
from wirewise.report.collective_chart import Range, SizeTimes, crossover_chart, curves, fastest
from wirewise.report.collective_view import (
    titles,
)


def test_the_fastest_of_each_size():
    sizes = (1.0, 10.0, 100.0)
    early, late = SizeTimes("a", sizes, (1.0, 2.0, 90.0)), SizeTimes("b", sizes, (4.0, 2.0, 10.0))
    found = fastest([early, late, SizeTimes("bound", sizes, (0.1, 0.1, 0.1))])
    assert found == [
        Range(("a",), 1.0, 10.0),
        Range(("a", "b"), 10.0, 100.0),
    ]
    steep = SizeTimes("c", sizes, (0.5, 1.0, 100.0))
    first, second = fastest([steep, late, SizeTimes("bound", sizes, (0.1, 0.1, 0.1))])
    assert (first.titles, second.titles) == (("c",), ("b",))
    # Ahead by a factor of 2 at 10, behind by 10 at 100.
    assert first.to_bytes == second.from_bytes == pytest.approx(10 ** (1 + math.log(2) / math.log(20)))


def test_small_buffers_want_few_rounds_and_large_ones_few_bytes():
    found = [network_of(build("all_reduce", name, 8)) for name in ("recursive_doubling", "ring")]
    drawn = curves(found, titles(found))
    ranges = fastest(drawn)
    assert [one.titles for one in ranges] == [("recursive_doubling",), ("ring",)]
    # 3 (a + n b) = 14 a + 1.75 n b
    assert ranges[0].to_bytes == pytest.approx(11 * LATENCY_S * RATE / 1.25, rel=0.1)
    assert crossover_chart(drawn).count("data-tip") == 2 * len(drawn[0].sizes)
