"""All implementations write the same bytes, for any number of threads and any batching of rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.messages import adversarial, assert_same_everywhere, decode, encode
from wirewise import codec
from wirewise.codec.kernels import cpu
from wirewise.errors import CodecError


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 130),
    param_bytes=st.sampled_from([4, 6]),
    stochastic=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_numba_writes_the_bytes_of_the_reference(width, param_bytes, stochastic, seed):
    bits = np.random.default_rng(seed).choice(codec.BITS, 60)
    x = adversarial(60, width, seed)
    assert_same_everywhere(x, bits, "numba", param_bytes=param_bytes, stochastic=stochastic)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_numba_agrees_on_many_ordinary_rows(bits):
    assert_same_everywhere(torch.randn(2000, 256) + 0.3, bits, "numba")


def test_bytes_do_not_depend_on_threads(monkeypatch):
    x = adversarial(500, 64)
    bits = np.resize(codec.BITS, 500)
    layout, expected = encode(x, bits)
    rows = decode(expected, layout)
    monkeypatch.setattr(cpu, "_MIN_BYTES", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    _, buffer = encode(x, bits)
    assert torch.equal(buffer, expected)
    assert torch.equal(decode(buffer, layout).view(torch.int32), rows.view(torch.int32))


def test_rows_are_split_over_threads_without_gaps(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    ranges = cpu.split(lambda lo, hi: (lo, hi), (), 10, cpu._MIN_BYTES)
    assert ranges == [(0, 3), (3, 6), (6, 10)]
    assert cpu.split(lambda lo, hi: (lo, hi), (), 10, 1) == [(0, 10)]
    assert cpu.split(lambda lo, hi: (lo, hi), (), 10, cpu._MIN_BYTES, serial=True) == [(0, 10)]


def test_the_first_bad_message_is_named_with_threads_too(monkeypatch):
    monkeypatch.setattr(cpu, "_MIN_BYTES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    x = torch.randn(40, 8)
    x[[11, 25, 38]] = torch.inf
    with pytest.raises(CodecError, match="message 11 "):
        encode(x, np.resize([8, 4], 40))


def test_warm_leaves_nothing_to_compile():
    from wirewise.codec.kernels import cpu

    codec.warm()
    kernels = (cpu.pack_rows, cpu.pack_wide, cpu.unpack_rows, cpu.aggregate_rows)
    before = [len(kernel.signatures) for kernel in kernels]
    x, index = torch.randn(12, 40), torch.arange(12)
    for chosen in (None, index, index.to(torch.int32)):
        layout, buffer = encode(x, np.resize(codec.BITS, 12), index=chosen)
    decode(buffer, layout)
    codec.unpack_add(buffer, layout, index, x)
    codec.unpack_aggregate(buffer, layout, torch.arange(13), index, torch.ones(12), x)
    assert [len(kernel.signatures) for kernel in kernels] == before
