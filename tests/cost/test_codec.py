"""Codec costs."""

from __future__ import annotations

import pytest

from wirewise.cost import CodecCost, fit_codec
from wirewise.errors import InputError


def test_fit_tells_rows_from_values():
    def seconds(rows, width):
        return rows * (1e-8 + 2e-9 * width)

    samples = [(4, n, d, seconds(n, d)) for n in (100, 1000) for d in (16, 64, 256)]
    cost = fit_codec(samples, [(4, 100, 16, 1.6e-5)])
    assert cost.pack_s({4: 500}, 128) == pytest.approx(seconds(500, 128))
    assert cost.unpack_s({4: 200}, 32) == pytest.approx(6.4e-5)


def test_rates_are_in_float32_bytes():
    cost = CodecCost.of_rates({4: 1.2e9}, {4: 3.3e9})
    assert cost.pack_s({4: 10}, 256) == pytest.approx(10 * 256 * 4 / 1.2e9)
    assert cost.unpack_s({4: 10, 32: 99}, 256) == pytest.approx(10 * 256 * 4 / 3.3e9)


def test_fit_refuses_a_broken_sample():
    with pytest.raises(InputError, match="pack sample of 8 bits has 0 rows"):
        fit_codec([(8, 0, 16, 1.0)], [])
    with pytest.raises(InputError, match="unpack sample"):
        fit_codec([], [(8, 1, 16, float("inf"))])
