from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wirewise import rng
from wirewise.errors import InputError
from wirewise.graph.ops import keep_mask, uniform16


@given(
    key=st.integers(0, 2**32 - 1),
    rows=st.lists(st.integers(0, 2**63 - 1), max_size=6),
    width=st.integers(1, 33),
)
def test_bits_equal_the_reference(key, rows, width):
    ids = np.array(rows, np.int64)
    ours = uniform16(key, torch.from_numpy(ids), width)
    assert ours.shape == (len(rows), width)
    np.testing.assert_array_equal(ours.numpy(), rng.uniform16(key, ids, width))


def test_share_kept_is_one_minus_p():
    kept = keep_mask(7, torch.arange(2000), 64, 0.3).double().mean()
    assert abs(kept - 0.7) < 0.006  # five standard deviations


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_probability_outside_is_refused(p):
    with pytest.raises(InputError, match="expected 0 <= p < 1"):
        keep_mask(7, torch.arange(2), 4, p)
