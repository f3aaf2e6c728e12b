from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wirewise.errors import InputError
from wirewise.graph.ops import Csr, aggregate, aggregate_into, aggregate_transposed


def reference(csr, x, self_weight=None):
    z = torch.from_numpy(csr.to_scipy().toarray()).to(x.dtype) @ x
    return z if self_weight is None else z + self_weight[:, None] * x[: csr.num_rows]


@pytest.mark.sweep
@pytest.mark.parametrize("with_self", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(7, 12), (7, 7), (4, 9), (0, 0), (0, 3), (1, 1)])
def test_value_and_gradients_equal_the_dense_product(make_csr, implementation, rows, columns, with_self):
    csr = make_csr(rows, columns)
    x = torch.randn(columns, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(rows, dtype=torch.float64) if with_self else None
    z = aggregate(csr, x, self_weight=weight, implementation=implementation)
    expected = reference(csr, x, weight)
    torch.testing.assert_close(z, expected)
    g = torch.randn_like(z)
    torch.testing.assert_close(
        torch.autograd.grad(z, x, g), torch.autograd.grad(expected, x, g, materialize_grads=True)
    )


def test_gradcheck(make_csr, implementation):
    csr = make_csr(5, 8)
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda a: aggregate(csr, a, self_weight=weight, implementation=implementation), (x,)
    )


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 12), columns=st.integers(0, 20), width=st.integers(1, 40),
    density=st.floats(0, 1), seed=st.integers(0, 99),
)  # fmt: skip
def test_numba_equals_torch(rows, columns, width, density, seed):
    rng = np.random.default_rng(seed)
    pattern = rng.random((rows, columns)) < density
    indptr = np.concatenate([[0], np.cumsum(pattern.sum(1))])
    weight = rng.normal(size=pattern.sum()).astype(np.float32)
    csr = Csr(indptr, np.nonzero(pattern)[1], weight, num_columns=columns)
    x = torch.from_numpy(rng.normal(size=(columns, width)).astype(np.float32))
    a, b = (aggregate(csr, x, implementation=i) for i in ("numba", "torch"))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_row_blocks_give_the_same_bits(make_csr):
    csr = make_csr(20, 33, dtype=np.float32)
    x = torch.randn(33, 70)
    parts = [aggregate(csr.rows(*rows), x) for rows in ((0, 6), (6, 20))]
    assert torch.equal(aggregate(csr, x), torch.cat(parts))


def test_column_blocks_added_in_order_give_the_same_bits(make_csr):
    csr = make_csr(20, 33, dtype=np.float32)
    x = torch.randn(33, 70)
    whole = aggregate_into(csr, x, torch.empty(20, 70))
    out = torch.full((20, 70), float("nan"))
    for low, high in ((0, 11), (11, 20), (20, 20), (20, 33)):
        block = Csr.from_scipy(csr.to_scipy()[:, low:high])
        aggregate_into(block, x[low:high], out, accumulate=low > 0)
    assert torch.equal(whole, out)


def test_transposed_overwrites(make_csr, implementation):
    csr = make_csr(6, 9)
    g = torch.randn(6, 4, dtype=torch.float64)
    out = torch.full((9, 4), float("nan"), dtype=torch.float64)
    assert aggregate_transposed(csr, g, out, implementation=implementation) is out
    torch.testing.assert_close(out, torch.from_numpy(csr.to_scipy().toarray().T) @ g)


def test_strided_inputs_and_outputs(make_csr, implementation):
    csr = make_csr(6, 10)
    base = torch.randn(5, 10, dtype=torch.float64).t()
    x = base.detach().requires_grad_()
    z = aggregate(csr, x, implementation=implementation)
    torch.testing.assert_close(z, reference(csr, x))
    z.sum(0).sum().backward()  # an expanded gradient
    torch.testing.assert_close(x.grad, torch.autograd.grad(reference(csr, x).sum(), x)[0])
    out = torch.zeros(5, 6, dtype=torch.float64).t()
    aggregate_into(csr, base, out, implementation=implementation)
    torch.testing.assert_close(out, z.detach())


def test_float32_weights_serve_float64_rows(make_csr, implementation):
    csr = make_csr(4, 4, dtype=np.float32)
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(aggregate(csr, x, implementation=implementation), reference(csr, x))


def test_nan_of_a_neighbour_arrives(implementation):
    csr = Csr([0, 1, 2], [1, 0], num_columns=2)
    z = aggregate(csr, torch.tensor([[1.0], [float("nan")]]), implementation=implementation)
    assert z[0].isnan().all()
    assert z[1, 0] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: aggregate(c, torch.zeros(4, 2)), "one row a column"),
        (lambda c: aggregate(c, torch.zeros(5)), "expected a float32 or float64 matrix"),
        (lambda c: aggregate(c, torch.zeros(5, 2, dtype=torch.bfloat16)), "bfloat16"),
        (lambda c: aggregate_into(c, torch.zeros(5, 2), torch.zeros(5, 2).double()), "float64"),
        (lambda c: aggregate(c, torch.zeros(5, 2), self_weight=torch.zeros(4)), "one weight a row"),
        (lambda c: aggregate(c, torch.zeros(5, 2), implementation="cuda"), "auto, numba or torch"),
        (lambda c: aggregate_into(c, torch.zeros(4, 2), torch.zeros(5, 2)), "x with 4 rows"),
        (lambda c: aggregate_into(c, torch.zeros(5, 2), torch.zeros(5, 3)), "out of width 3"),
        (lambda c: aggregate_transposed(c, torch.zeros(4, 2), torch.zeros(5, 2)), "grad with 4 rows"),
    ],
)
def test_misfits_are_named(make_csr, call, message):
    with pytest.raises(InputError, match=message):
        call(make_csr(5, 5))
