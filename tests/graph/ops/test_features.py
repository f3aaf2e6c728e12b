from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from wirewise.errors import InputError
from wirewise.graph import SparseRows
from wirewise.graph.ops import Csr, aggregate_features, sparse_linear


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "features"), [(9, 4), (4, 9), (1, 3), (0, 3), (3, 0)])
def test_value_and_gradients_equal_the_dense_layer(make_csr, implementation, rows, features, with_bias):
    x = make_csr(rows, features)
    weight = torch.randn(6, features, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True) if with_bias else None
    inputs = [weight] if bias is None else [weight, bias]
    y = sparse_linear(x, weight, bias, implementation=implementation)
    expected = torch.nn.functional.linear(torch.from_numpy(x.to_scipy().toarray()), weight, bias)
    torch.testing.assert_close(y, expected)
    g = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, inputs, g), torch.autograd.grad(expected, inputs, g))


def test_gradcheck(make_csr, implementation):
    x = make_csr(7, 5)
    weight = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda w, b: sparse_linear(x, w, b, implementation=implementation), (weight, bias)
    )


def test_row_blocks_and_transposed_weights(make_csr, implementation):
    x = make_csr(9, 5)
    weight = torch.randn(5, 4, dtype=torch.float64).t().requires_grad_()
    y = sparse_linear(x.rows(4, 9), weight, implementation=implementation)
    dense = torch.from_numpy(x.to_scipy().toarray()[4:])
    torch.testing.assert_close(y, dense @ weight.t())
    y.sum().backward()
    torch.testing.assert_close(weight.grad, torch.ones(4, 5, dtype=torch.float64) @ dense)


def test_float32_is_close_to_float64(make_csr):
    x = make_csr(200, 50)
    weight = torch.randn(8, 50)
    a, b = sparse_linear(x, weight), sparse_linear(x, weight.double())
    torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("with_self", [False, True])
def test_aggregated_features_equal_the_product(make_csr, binary, with_self):
    csr = make_csr(5, 8)
    matrix = sp.random(8, 6, 0.4, format="csr", random_state=1, dtype=np.float32)
    if binary:
        matrix.data[:] = 1
    rows = SparseRows(
        indptr=matrix.indptr, indices=matrix.indices, data=None if binary else matrix.data, num_columns=6
    )
    weight = torch.rand(5, dtype=torch.float64) if with_self else None
    expected = csr.to_scipy() @ matrix.toarray()
    if weight is not None:
        expected += weight.numpy()[:, None] * matrix.toarray()[:5]
    for x in (rows, matrix):
        out = aggregate_features(csr, x, weight)
        assert isinstance(out, Csr)
        np.testing.assert_allclose(out.to_scipy().toarray(), expected, rtol=1e-6)


def test_misfits_are_named(make_csr):
    x = make_csr(4, 3)
    with pytest.raises(InputError, match="expected a Csr"):
        sparse_linear(x.to_scipy(), torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"weight \(3, 2\) for 3 features"):
        sparse_linear(x, torch.zeros(3, 2))
    with pytest.raises(InputError, match="got bias"):
        sparse_linear(x, torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(InputError, match="features of 2 rows"):
        aggregate_features(x, sp.csr_matrix((2, 5)))
    with pytest.raises(InputError, match="got self_weight"):
        aggregate_features(x, sp.csr_matrix((3, 5)), torch.zeros(3))
