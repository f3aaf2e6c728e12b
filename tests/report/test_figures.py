import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirewise.report import figures


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 s"), (2.5e-5, "25.0 us"), (0.0404, "40.4 ms"), (0.404, "0.404 s"), (1.184, "1.18 s"),
        (9.996, "10.0 s"), (27.19, "27.2 s"), (3000.0, "3000 s"), (5700.0, "95.0 min"), (36000.0, "10.0 h"),
        (None, figures.MISSING), (math.nan, figures.MISSING),
    ],
)  # fmt: skip
def test_seconds(value: float | None, shown: str) -> None:
    assert figures.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_999, "1.00 MB"),
        (146_739_006, "147 MB"),
        (1.06e9, "1.06 GB"),
        (-33_300, "\u221233.3 kB"),
    ],
)
def test_size(value: float, shown: str) -> None:
    assert figures.size(value) == shown


def test_points_show_a_sign_unless_zero() -> None:
    assert [figures.points(v) for v in (0.1, -0.1, -0.001, None)] == [
        "+0.10",
        "\u22120.10",
        "0.00",
        figures.MISSING,
    ]


@given(st.floats(1e-4, 1e5))
def test_significant_is_near_the_value(value: float) -> None:
    assert float(figures.significant(value)) == pytest.approx(value, rel=5.1e-3)


@given(st.one_of(st.none(), st.floats()), st.one_of(st.none(), st.floats()))
def test_ratio_is_positive_or_none(top: float | None, bottom: float | None) -> None:
    found = figures.ratio(top, bottom)
    if all(value is not None and 0 < value < math.inf for value in (top, bottom)):
        assert found == top / bottom
    else:
        assert found is None
