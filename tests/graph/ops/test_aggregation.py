from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wirewise.errors import InputError
from wirewise.graph.ops import Csr, aggregate, aggregate_into, aggregate_transposed


def reference(csr, own, halo, self_weight, rows):
    x = own if halo is None else torch.cat([own, halo])
    z = torch.from_numpy(csr.to_scipy().toarray()).to(x.dtype) @ x
    if self_weight is not None:
        z = z + self_weight[:, None] * own[: csr.num_rows]
    return z[slice(*rows)] if rows else z


CASES = [
    # rows, own, halo, range
    (7, 7, 5, None),
    (7, 7, None, None),
    (7, 7, 5, (0, 3)),
    (7, 7, 5, (3, 7)),
    (7, 7, 5, (2, 5)),
    (7, 7, 0, (3, 3)),
    (0, 0, 0, None),
    (4, 6, 3, (1, 4)),
]


@pytest.mark.parametrize("with_self", [False, True])
@pytest.mark.parametrize(("rows", "own", "halo", "block"), CASES)
def test_value_and_gradients_equal_the_dense_product(
    make_csr, implementation, rows, own, halo, block, with_self
):
    csr = make_csr(rows, own + (halo or 0))
    x = torch.randn(own, 5, dtype=torch.float64, requires_grad=True)
    h = None if halo is None else torch.randn(halo, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(rows, dtype=torch.float64) if with_self else None
    inputs = [x] if h is None else [x, h]
    z = aggregate(csr, x, h, self_weight=weight, rows=block, implementation=implementation)
    expected = reference(csr, x, h, weight, block)
    torch.testing.assert_close(z, expected)
    g = torch.randn_like(z)
    torch.testing.assert_close(
        torch.autograd.grad(z, inputs, g),
        torch.autograd.grad(expected, inputs, g, materialize_grads=True),
    )


def test_gradcheck(make_csr, implementation):
    csr = make_csr(5, 8)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    h = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(5, dtype=torch.float64)
    for rows in (None, (2, 5)):
        assert torch.autograd.gradcheck(
            lambda a, b, rows=rows: aggregate(
                csr, a, b, self_weight=weight, rows=rows, implementation=implementation
            ),
            (x, h),
        )


def test_only_the_asked_gradient_is_computed(make_csr):
    csr = make_csr(5, 8)
    x, h = torch.randn(5, 2), torch.randn(3, 2, requires_grad=True)
    aggregate(csr, x, h).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(
        h.grad, torch.from_numpy(csr.to_scipy().toarray()[:, 5:].sum(0)).float()[:, None].expand(3, 2)
    )


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 12), own=st.integers(0, 12), halo=st.integers(0, 9), width=st.integers(1, 40),
    density=st.floats(0, 1), seed=st.integers(0, 99),
)  # fmt: skip
def test_numba_equals_torch(rows, own, halo, width, density, seed):
    rng = np.random.default_rng(seed)
    pattern = rng.random((rows, own + halo)) < density
    indptr = np.concatenate([[0], np.cumsum(pattern.sum(1))])
    weight = rng.normal(size=pattern.sum()).astype(np.float32)
    csr = Csr(indptr, np.nonzero(pattern)[1], weight, num_columns=own + halo)
    x = torch.from_numpy(rng.normal(size=(own, width)).astype(np.float32))
    h = torch.from_numpy(rng.normal(size=(halo, width)).astype(np.float32))
    a, b = (aggregate(csr, x, h, implementation=i) for i in ("numba", "torch"))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_row_blocks_give_the_same_bits(make_csr):
    csr = make_csr(20, 33, dtype=np.float32)
    x, h = torch.randn(20, 70), torch.randn(13, 70)
    whole = aggregate(csr, x, h)
    parts = [aggregate(csr, x, h, rows=r) for r in ((0, 6), (6, 20))]
    assert torch.equal(whole, torch.cat(parts))


def test_column_blocks_added_in_order_give_the_same_bits(make_csr):
    csr = make_csr(20, 33, dtype=np.float32)
    x = torch.randn(33, 70)
    whole = aggregate_into(csr, x, torch.empty(20, 70))
    out = torch.full((20, 70), float("nan"))
    aggregate_into(csr.columns(0, 11), x[:11], out)
    for low, high in ((11, 20), (20, 20), (20, 33)):
        aggregate_into(csr.columns(low, high), x[low:high], out, accumulate=True)
    assert torch.equal(whole, out)


def test_transposed_overwrites_or_adds(make_csr, implementation):
    csr = make_csr(6, 9)
    g = torch.randn(6, 4, dtype=torch.float64)
    expected = torch.from_numpy(csr.to_scipy().toarray().T) @ g
    torch.testing.assert_close(aggregate_transposed(csr, g, implementation=implementation), expected)
    out = torch.ones(9, 4, dtype=torch.float64)
    aggregate_transposed(csr, g, out, accumulate=True, implementation=implementation)
    torch.testing.assert_close(out, expected + 1)


def test_out_is_written_and_refused_under_autograd(make_csr, implementation):
    csr = make_csr(4, 4)
    x, out = torch.randn(4, 3), torch.empty(4, 3)
    assert aggregate(csr, x, out=out, implementation=implementation) is out
    torch.testing.assert_close(out, reference(csr, x, None, None, None))
    with pytest.raises(InputError, match="drop out="):
        aggregate(csr, x.requires_grad_(), out=out)


def test_strided_inputs_and_outputs(make_csr, implementation):
    csr = make_csr(6, 10)
    base = torch.randn(5, 10, dtype=torch.float64).t()
    x, h = base[:6].detach().requires_grad_(), base[6:]
    z = aggregate(csr, x, h, implementation=implementation)
    torch.testing.assert_close(z, reference(csr, x, h, None, None))
    z.sum(0).sum().backward()  # an expanded gradient
    torch.testing.assert_close(x.grad, torch.autograd.grad(reference(csr, x, h, None, None).sum(), x)[0])
    out = torch.zeros(5, 6, dtype=torch.float64).t()
    aggregate_into(csr, base, out, implementation=implementation)
    torch.testing.assert_close(out, z.detach())


def test_float32_weights_serve_float64_rows(make_csr, implementation):
    csr = make_csr(4, 4, dtype=np.float32)
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(
        aggregate(csr, x, implementation=implementation), reference(csr, x, None, None, None)
    )


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
        (lambda c: aggregate(c, torch.zeros(3, 2), torch.zeros(2, 3)), "x_halo of width 3"),
        (lambda c: aggregate(c, torch.zeros(3, 2), torch.zeros(2, 2).double()), "float64"),
        (lambda c: aggregate(c, torch.zeros(5, 2), rows=(2, 6)), r"rows \(2, 6\)"),
        (lambda c: aggregate(c, torch.zeros(5, 2), self_weight=torch.zeros(4)), "one weight a row"),
        (lambda c: aggregate(c, torch.zeros(5, 2), implementation="cuda"), "auto, numba or torch"),
        (lambda c: aggregate_into(c, torch.zeros(4, 2), torch.zeros(5, 2)), "x with 4 rows"),
        (lambda c: aggregate_into(c, torch.zeros(5, 2), torch.zeros(5, 3)), "out of width 3"),
        (lambda c: aggregate_transposed(c, torch.zeros(4, 2)), "grad with 4 rows"),
    ],
)
def test_misfits_are_named(make_csr, call, message):
    with pytest.raises(InputError, match=message):
        call(make_csr(5, 5))
