from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from wirewise.errors import InputError
from wirewise.graph.ops import keep_mask, norm_act_drop

KEY = 0xC0FFEE11


def reference(x, gain, bias, p, rows, norm, relu):
    y = functional.layer_norm(x, x.shape[1:], gain, bias) if norm else x
    y = torch.relu(y) if relu else y
    return y * keep_mask(KEY, rows, x.shape[1], p) / (1 - p) if p else y


@pytest.mark.sweep
@pytest.mark.parametrize("p", [0.0, 0.5, 0.3])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(9, 6), (130, 7), (1, 1), (0, 5)])
def test_value_and_gradients_equal_torch(implementation, shape, p, norm, relu):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.randn(shape[1], dtype=torch.float64, requires_grad=True)
    rows = torch.randint(0, 2**40, shape[:1])
    y = norm_act_drop(
        x, gain, bias, p=p, key=KEY, rows=rows, norm=norm, relu=relu, implementation=implementation
    )
    expected = reference(x, gain, bias, p, rows, norm, relu)
    torch.testing.assert_close(y, expected)
    g = torch.randn_like(y)
    inputs = [x, gain, bias] if norm else [x]
    torch.testing.assert_close(torch.autograd.grad(y, inputs, g), torch.autograd.grad(expected, inputs, g))


@pytest.mark.parametrize("relu", [False, True])
def test_gradcheck(implementation, relu):
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    gain = torch.rand(6, dtype=torch.float64, requires_grad=True)
    bias = torch.rand(6, dtype=torch.float64, requires_grad=True)
    rows = torch.arange(5)
    assert torch.autograd.gradcheck(
        lambda *a: norm_act_drop(*a, p=0.4, key=KEY, rows=rows, relu=relu, implementation=implementation),
        (x, gain, bias),
    )


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(0, 150), width=st.integers(1, 70), p=st.sampled_from([0.0, 0.1, 0.9]), norm=st.booleans()
)
def test_numba_equals_torch_with_the_same_mask(n, width, p, norm):
    values = []
    rows = torch.arange(n) * 977
    for implementation in ("numba", "torch"):
        torch.manual_seed(n * 100 + width)
        x = (3 * torch.randn(n, width) + 5).requires_grad_()
        gain, bias = torch.rand(2, width).unbind()
        gain.requires_grad_()
        y = norm_act_drop(x, gain, bias, p=p, key=KEY, rows=rows, norm=norm, implementation=implementation)
        (y * torch.linspace(-1, 1, width)).sum().backward()
        values.append((y.detach(), x.grad, gain.grad if norm else None))
    # A row with a tiny deviation loses digits in x - mean, in both implementations; of width 1 it loses all of them.
    atol = (2e-2 if width == 1 else 2e-3) if norm else 1e-6
    torch.testing.assert_close(*values, rtol=1e-4, atol=atol)


def test_mask_does_not_depend_on_the_batch(implementation):
    x, rows = torch.randn(40, 33), torch.randperm(10**6)[:40]
    args = {"p": 0.5, "key": KEY, "implementation": implementation}
    whole = norm_act_drop(x, rows=rows, **args)
    order = torch.randperm(40)
    assert torch.equal(whole[order], norm_act_drop(x[order], rows=rows[order], **args))


def test_gradient_sums_keep_their_digits_over_many_rows():
    x = torch.randn(20000, 3)
    gain, bias = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    norm_act_drop(x, gain, bias, relu=False).backward(torch.full((20000, 3), 0.1))
    torch.testing.assert_close(bias.grad, torch.full((3,), 2000.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("training", [False, True])
def test_no_dropout_needs_no_rows(implementation, training):
    x = torch.randn(4, 5)
    y = norm_act_drop(x, p=0.0 if training else 0.5, training=training, implementation=implementation)
    torch.testing.assert_close(y, reference(x, None, None, 0.0, None, True, True))


def test_nan_stays_nan(implementation):
    x = torch.tensor([[1.0, float("nan")], [1.0, -1.0]])
    for norm in (False, True):
        y = norm_act_drop(x, norm=norm, implementation=implementation)
        assert y[0, 1].isnan()
        assert not y[1].isnan().any()


def test_inputs_are_not_changed_and_may_be_strided(implementation):
    x = torch.randn(5, 8).t()
    before, rows = x.clone(), torch.arange(16)[::2]
    y = norm_act_drop(x, p=0.5, key=KEY, rows=rows, norm=False, relu=False, implementation=implementation)
    torch.testing.assert_close(y, reference(before, None, None, 0.5, rows, False, False))
    same = norm_act_drop(x, norm=False, relu=False, implementation=implementation)
    assert same.data_ptr() != x.data_ptr()
    assert torch.equal(x, before)


def test_dropout_alone(implementation):
    x = torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
    rows = torch.arange(6) + 2**33
    options = {"norm": False, "relu": False, "implementation": implementation}
    y = norm_act_drop(x, p=0.25, key=KEY, rows=rows, **options)
    torch.testing.assert_close(y, x * keep_mask(KEY, rows, 7, 0.25) / 0.75)
    assert torch.autograd.gradcheck(lambda t: norm_act_drop(t, p=0.25, key=KEY, rows=rows, **options), x)
    assert torch.equal(norm_act_drop(x, p=0.25, training=False, **options), x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: norm_act_drop(x[0]), "float32 or float64 matrix"),
        (lambda x: norm_act_drop(x, p=0.5), "global number of each row"),
        (lambda x: norm_act_drop(x, p=0.5, rows=torch.arange(3)), r"got torch.int64 \(3,\)"),
        (lambda x: norm_act_drop(x, p=0.5, rows=torch.arange(4, dtype=torch.int32)), "int32"),
        (lambda x: norm_act_drop(x, p=1.0), "expected 0 <= p < 1"),
        (lambda x: norm_act_drop(x, torch.ones(4)), "got gain"),
        (lambda x: norm_act_drop(x, None, torch.ones(5).double()), "got bias"),
    ],
)
def test_misfits_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call(torch.zeros(4, 5))
