from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirewise.errors import InputError
from wirewise.units import format_rate, format_size, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("200mbit", 25e6),
        ("1gbit/s", 125e6),
        (" 2.5 Gbit ", 312.5e6),
        ("1 Mibit", 2**20 / 8),
        ("25MB/s", 25e6),
        ("3.5 GiB/s", 3.5 * 2**30),
        ("8bit", 1.0),
        ("100", 100.0),
        (1e6, 1e6),
        (7, 7.0),
        (0.25, 0.25),
    ],
)
def test_rates_as_people_write_them(text: str | float, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize(
    "text", ["", "fast", "0", "0mbit", "-1gbit", "1 xbit", "nan", "inf", "1,5gbit", "1gbit 2", float("nan")]
)
def test_what_is_no_rate_is_refused(text: str | float) -> None:
    with pytest.raises(InputError, match="is not understood; expected"):
        parse_rate(text)


def test_sizes_as_people_write_them() -> None:
    assert [parse_size(t) for t in ("64KiB", "1.5MB", "10", 12, "1.5 B")] == [65536, 1_500_000, 10, 12, 2]
    with pytest.raises(InputError, match="is in bits; expected bytes"):
        parse_size("8mbit")
    with pytest.raises(InputError, match="size 'big'"):
        parse_size("big")


def test_formats() -> None:
    assert format_rate(25e6) == "200 Mbit/s"
    assert format_rate(312.5e6) == "2.5 Gbit/s"
    assert format_size(45_678_901) == "45.7 MB"
    assert format_size(0) == "0 B"


@given(st.floats(1, 1e14))
def test_a_formatted_rate_reads_back_to_three_digits(bytes_per_s: float) -> None:
    assert parse_rate(format_rate(bytes_per_s)) == pytest.approx(bytes_per_s, rel=5.1e-3)


@given(st.floats(1e-9, 1e18))
def test_numbers_are_rates_as_they_are(bytes_per_s: float) -> None:
    assert parse_rate(bytes_per_s) == pytest.approx(bytes_per_s, rel=1e-12)
