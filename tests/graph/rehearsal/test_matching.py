"""Kernel mean matching against a solver of quadratic programs, and what its weights must keep (E1)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from wirewise.errors import InputError
from wirewise.graph.rehearsal import (
    effective_size,
    gram,
    kernel_sums,
    matched_weights,
    median_distance,
    raise_effective_size,
    solve_matching,
)


def rows(seed, n, width=3, shift=0.0):
    return np.random.default_rng(seed).normal(shift, 1, (n, width))


def reference(inner, kappa, most, slack, groups):
    # Unscaled, the line search gives up in one case of a hundred.
    n, scale = len(kappa), max(np.abs(kappa).max(), 1)
    found = optimize.minimize(
        lambda b: (b @ inner @ b / 2 - kappa @ b) / scale,
        np.ones(n),
        jac=lambda b: (inner @ b - kappa) / scale,
        bounds=[(0, most)] * n,
        constraints=[
            {
                "type": "ineq",
                "fun": lambda b, g=g, s=s: (groups == g).sum() * slack + s * (b[groups == g] - 1).sum(),
            }
            for g in np.unique(groups)
            for s in (1, -1)
        ],
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-12},
    )
    assert found.success
    return found.fun * scale


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 16), st.sampled_from(["linear", "rbf"]), st.booleans())
def test_e1_weights_are_as_good_as_those_of_a_solver(seed, n, kernel, by_class):
    rng = np.random.default_rng(seed)
    most, slack = rng.uniform(1, 4), rng.uniform(0, 0.5)
    groups = rng.integers(0, 2, n) if by_class else np.zeros(n, int)
    z, x = rows(seed, n), rows(seed + 1, 40, shift=1.0)
    inner, kappa = gram(z, z, kernel=kernel), kernel_sums(z, x, kernel=kernel) * n / 40
    b = solve_matching(inner, kappa, maximum=most, slack=slack, groups=groups if by_class else None)
    assert b.min() >= 0 and b.max() <= most + 1e-9
    for g in np.unique(groups):
        assert abs(b[groups == g].sum() - (groups == g).sum()) <= (groups == g).sum() * slack + 1e-8
    objective, best = b @ inner @ b / 2 - kappa @ b, reference(inner, kappa, most, slack, groups)
    assert objective <= best + 1e-4 * max(abs(best), 1)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_e1_rows_that_are_their_own_target_weigh_one(kernel):
    z = rows(0, 30)
    assert np.abs(matched_weights(z, z, kernel=kernel, maximum=3.0) - 1).max() < 1e-3


def test_e1_a_shift_is_followed():
    z, x = rows(0, 200, 1), rows(1, 2000, 1, shift=0.7)
    b = matched_weights(z, x, kernel="rbf", sigma=1.0, maximum=20.0, slack=0.1, least_effective=0.0)
    gap = abs(z.mean() - x.mean())
    assert gap > 0.5
    assert abs((b @ z).item() / b.sum() - x.mean()) <= 0.1 * gap


def test_no_class_is_left_out():
    """Defect 6 of the released code: it never passed its balance of classes on."""
    z = np.concatenate([rows(0, 10, shift=3), rows(1, 10, shift=-3)])
    x, groups = rows(2, 200, shift=3), np.repeat([0, 1], 10)
    free, kept = (
        matched_weights(z, x, maximum=2.0, slack=0.1, groups=g, least_effective=0) for g in (None, groups)
    )
    assert free[groups == 1].sum() < 2 and kept[groups == 1].sum() >= 9 - 1e-8


def test_weights_differ_by_row():
    """Defect 2 of the released code: the mean of the weights scaled the whole loss, whatever they were."""
    b = matched_weights(rows(0, 20), rows(1, 100, shift=1.0), kernel="rbf", maximum=3.0)
    assert b.std() > 0.2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 5), min_size=1, max_size=30), st.floats(0, 1))
def test_few_large_weights_are_evened_out(values, least):
    b = np.array(values)
    found = raise_effective_size(b, least)
    assert effective_size(found) >= least * len(b) * (1 - 1e-9)
    if effective_size(b) >= least * len(b):
        assert np.array_equal(found, b)


def test_sums_over_parts_of_the_target_add_up():
    z, x = rows(0, 8), rows(1, 5000)
    for kernel in ("linear", "rbf"):
        parts = sum(kernel_sums(z, part, kernel=kernel) for part in np.array_split(x, 3))
        assert np.allclose(parts, kernel_sums(z, x, kernel=kernel), rtol=1e-12)


def test_the_bandwidth_is_never_zero():
    assert median_distance(np.ones((1, 3))) == median_distance(np.ones((5, 3))) == 1
    assert median_distance(np.array([[0.0], [2.0], [6.0]])) == 4


def test_wrong_settings_are_named():
    with pytest.raises(InputError, match="'cubic' is unknown; expected one of: linear, rbf"):
        gram(rows(0, 2), rows(0, 2), kernel="cubic")
    with pytest.raises(InputError, match=r"largest weight of 0.5 .* expected at least 1"):
        solve_matching(np.eye(2), np.ones(2), maximum=0.5)
    with pytest.raises(InputError, match="no target rows to match"):
        matched_weights(rows(0, 2), rows(0, 0))
    with pytest.raises(InputError, match="rows of the same width"):
        matched_weights(rows(0, 2), rows(0, 2, width=4))
