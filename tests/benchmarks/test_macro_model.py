"""The stall model over reductions and bytes."""

import numpy as np
import pytest
from benchmarks.stalls.macro_model import fit_macro

from wirewise.errors import InputError


def points(fixed=1e-3, alpha=3e-4, beta=8e-8, noise=0.0):
    rng = np.random.default_rng(0)
    grid = [(count, size) for count in (4, 16, 48, 96) for size in (2e5, 4e5, 8e5, 1.6e6)]
    return [(c, s, (fixed + alpha * c + beta * s) * rng.normal(1, noise)) for c, s in grid]


def test_the_model_is_recovered():
    model = fit_macro(points())
    assert (model.fixed_s, model.s_per_reduction, model.s_per_byte) == pytest.approx((1e-3, 3e-4, 8e-8))
    assert model.mape < 1e-9
    assert model.seconds(10, 1e6) == pytest.approx(1e-3 + 3e-3 + 0.08)


def test_noise_and_negative_terms_do_no_harm():
    noisy = fit_macro(points(noise=0.05))
    assert noisy.s_per_byte == pytest.approx(8e-8, rel=0.05) and 0.01 < noisy.mape < 0.1
    falling = fit_macro(points(alpha=-1e-5))
    assert falling.s_per_reduction == 0.0 and falling.s_per_byte > 0


@pytest.mark.parametrize(
    "bad", [points()[:2], [(c, 1e5 * c, 0.1 * c) for c in range(1, 9)], [(1, 2, 0.0), *points()]]
)
def test_points_that_tell_nothing_are_refused(bad):
    with pytest.raises(InputError, match="expected"):
        fit_macro(bad)
