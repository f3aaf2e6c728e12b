"""Piecewise linear functions of a size."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost.curve import ZERO, Curve
from wirewise.errors import InputError


class TestCurve:
    def test_is_flat_then_linear_then_goes_on(self):
        curve = Curve(((10.0, 1.0), (20.0, 3.0), (30.0, 4.0)))
        assert curve([0, 10, 15, 20, 25, 40]).tolist() == [1, 1, 2, 3, 3.5, 5]
        assert Curve(((5.0, 2.0),))([0, 100]).tolist() == [2, 2]
        assert Curve.line(1.0, 0.5)([0, 4, 1e10]).tolist() == [1, 3, 5e9 + 1]

    def test_sums_and_chains_are_curves(self):
        random = np.random.default_rng(1)
        sizes = np.concatenate([random.uniform(0, 60, 50), [1e4]])
        for _ in range(50):
            one, other = (
                Curve(
                    tuple(zip(np.cumsum(random.uniform(1, 9, 4)), np.cumsum(random.random(4)), strict=True))
                )
                for _ in range(2)
            )
            assert (one + other)(sizes) == pytest.approx(one(sizes) + other(sizes))
            scaled = other.times(20)
            assert one.after(scaled)(sizes) == pytest.approx(one(scaled(sizes)))
            assert one.of_share(0.25)(sizes) == pytest.approx(one(sizes / 4))

    def test_knows_straight_lines(self):
        assert Curve.line(2.0, 3.0).linear_coefficients(1e6) == pytest.approx((2.0, 3.0))
        assert Curve(((0.0, 1.0), (5.0, 2.0), (10.0, 3.0))).linear_coefficients(100) == pytest.approx(
            (1.0, 0.2)
        )
        assert Curve(((5.0, 2.0), (10.0, 3.0))).linear_coefficients(100) is None
        assert ZERO.linear_coefficients(10.0) == (0.0, 0.0)

    @pytest.mark.parametrize(
        "knots", [(), ((1.0, -1.0),), ((2.0, 1.0), (1.0, 2.0)), ((1.0, np.nan),), ((1.0, 2.0), (2.0, 1.0))]
    )
    def test_wrong_knots_are_refused(self, knots):
        with pytest.raises(InputError, match=r"expected one or more|measure it again"):
            Curve(knots)
