from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from wirewise.errors import GraphError, InputError
from wirewise.graph.ops import Csr


def dense(csr):
    return csr.to_scipy().toarray()


def test_blocks_share_arrays_and_are_made_once(make_csr):
    csr = make_csr(9, 7)
    block = csr.rows(3, 8)
    assert block is csr.rows(3, 8)
    assert block.indices.data_ptr() == csr.indices.data_ptr()
    np.testing.assert_array_equal(dense(block), dense(csr)[3:8])
    np.testing.assert_array_equal(dense(block.rows(1, 3)), dense(csr)[4:6])
    assert block.shape == (5, 7)


@pytest.mark.parametrize("shape", [(9, 7), (0, 4), (4, 0), (0, 0), (1, 6)])
def test_transposed_is_the_transpose_and_is_cached(make_csr, shape):
    csr = make_csr(*shape)
    assert csr.transposed is csr.transposed
    np.testing.assert_array_equal(dense(csr.transposed), dense(csr).T)
    block = csr.rows(shape[0] // 2, shape[0])
    np.testing.assert_array_equal(dense(block.transposed), dense(block).T)


def test_no_weight_means_ones():
    csr = Csr([0, 2, 3], [0, 2, 1], num_columns=3)
    np.testing.assert_array_equal(dense(csr), [[1, 0, 1], [0, 1, 0]])
    assert csr.weight.dtype == torch.float32


def test_columns_are_sorted_with_their_weights():
    csr = Csr([0, 3, 4], [2, 0, 1, 0], np.array([1.0, 2.0, 3.0, 4.0]), num_columns=3)
    assert csr.indices.tolist() == [0, 1, 2, 0]
    assert csr.weight.tolist() == [2.0, 3.0, 1.0, 4.0]


def test_duplicate_edges_both_count():
    csr = Csr([0, 2], [1, 1], np.array([1.0, 2.0]), num_columns=2)
    assert csr.num_entries == 2
    assert csr.transposed.num_entries == 2


def test_from_scipy_takes_any_format():
    matrix = sp.random(5, 6, 0.4, format="coo", random_state=0)
    np.testing.assert_array_equal(dense(Csr.from_scipy(matrix)), matrix.toarray())


@pytest.mark.parametrize(
    ("indptr", "indices", "weight", "message"),
    [
        ([0, 2, 1], [0, 1], None, "ascending"),
        ([0, 1, 5], [0, 1], None, "over 2 entries"),
        ([0, 1, 2], [0, 3], None, "neither own nor halo"),
        ([0, 1, 2], [-1, 0], None, "columns -1"),
        ([0, 1, 2], [0, 1], np.ones(3), "one float32 or float64 weight"),
        ([0, 1, 2], [0, 1], np.ones(2, np.int32), "one float32 or float64 weight"),
        ([], [], None, "num_rows"),
    ],
)
def test_unsound_arrays_are_named(indptr, indices, weight, message):
    with pytest.raises(GraphError, match=message):
        Csr(np.array(indptr, np.int64), np.array(indices, np.int32), weight, num_columns=3)


def test_ranges_outside_are_refused(make_csr):
    with pytest.raises(InputError, match="rows 2 to 9"):
        make_csr(5, 5).rows(2, 9)
