"""Codes of rows: the last one, and what random bits depend on."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.messages import assert_same_everywhere, decode, encode


@given(st.floats(2.0**-100, 2.0**100, width=32))
@settings(max_examples=200, deadline=None)
def test_largest_value_gets_the_last_code_at_most(value):
    # The 4-bit kernel leaves the clamp out, because rounding cannot lift it there; the reference has it.
    x = torch.tensor([[0.0, value, value / 3, value]])
    for bits in (1, 2, 4, 8):
        assert_same_everywhere(x, bits, "numba")


def test_random_bits_depend_on_the_global_row_only():
    x = torch.randn(10, 30)
    rows = np.arange(10) * 7 + 2**33
    layout, whole = encode(x, 4, rows=rows)
    expected = decode(whole, layout)
    order = torch.tensor([6, 2, 9])
    part, buffer = encode(x[order], [8, 4, 4], rows=rows[order.numpy()])
    assert torch.equal(decode(buffer, part)[1:], expected[order[1:]])
    other, differs = encode(x, 4, rows=rows, key=54321)
    assert not torch.equal(decode(differs, other), expected)
