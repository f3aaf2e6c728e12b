"""Rows that a machine holds."""

import numpy as np
import pytest
import torch

from tests.runtime.mini_batch.machines import Job, batches
from wirewise.errors import InputError
from wirewise.runtime.mini_batch import RowStore


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("machines", "alpha", "depth"),
    [(1, 0.1, 0), (2, 0.0, 3), (3, 1.0, 3), (4, 0.1, 1), (8, 0.0, 0), (8, 0.1, 3)],
)
def test_d1_rows_kept_as_halves_are_those_halves(machines, alpha, depth):
    job = Job(machines, alpha=alpha, depth=depth, dtype=torch.float16)
    whole = job.graph.x.astype(np.float16)
    for found in job.run(batches):
        for _, n_id, x, _, _ in found:
            assert x.dtype == torch.float32
            assert np.array_equal(x.numpy(), whole[n_id].astype(np.float32))


def test_rows_that_do_not_fit_a_machine():
    offsets = np.array([0, 3, 7])
    with pytest.raises(InputError, match="features are missing for a part"):
        RowStore(torch.zeros(3, 2), offsets, 1)
    with pytest.raises(InputError, match="some its own"):
        RowStore(torch.zeros(4, 2), offsets, 1, np.array([1, 4]))
