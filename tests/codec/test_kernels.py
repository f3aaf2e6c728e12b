"""All implementations write the same bytes, for any number of threads and any batching of rows."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.messages import adversarial, decode, encode
from wirewise import codec
from wirewise.codec.kernels import cpu
from wirewise.errors import CodecError

has_cuda = torch.cuda.is_available()


def assert_same_everywhere(x, bits, other, device="cpu", **options):
    """Bytes, ranges and decoded rows of an implementation are those of the torch reference."""
    rows = np.arange(len(x)) * 0x1234567
    layout, expected = encode(x, bits, rows=rows, implementation="torch", **options)
    spans, spans_expected = torch.empty(len(x), device=device), torch.empty(len(x))
    encode(x, bits, rows=rows, implementation="torch", ranges=spans_expected, **options)
    out = torch.empty(layout.size_bytes, dtype=torch.uint8, device=device)
    options.pop("param_bytes", None)
    codec.pack(
        x.to(device), None, layout, out, key=12345, rows=rows, implementation=other, ranges=spans, **options
    )
    assert torch.equal(out.cpu(), expected)
    assert torch.equal(spans.cpu(), spans_expected)
    decoded = torch.empty(len(x), x.shape[1], device=device)
    codec.unpack(out, layout, decoded, scale=0.7, implementation=other)
    assert torch.equal(decoded.cpu(), decode(expected, layout, scale=0.7, implementation="torch"))


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


@given(st.floats(2.0**-100, 2.0**100, width=32))
@settings(max_examples=200, deadline=None)
def test_largest_value_gets_the_last_code_at_most(value):
    # The 4-bit kernel leaves the clamp out, because rounding cannot lift it there; the reference has it.
    x = torch.tensor([[0.0, value, value / 3, value]])
    for bits in (1, 2, 4, 8):
        assert_same_everywhere(x, bits, "numba")


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


_INTERPRETED = """
import numpy as np, torch
from tests.codec.messages import adversarial
from tests.codec.test_kernels import assert_same_everywhere
from wirewise import codec
for width in (1, 5, 33):
    for param_bytes, stochastic in ((4, False), (6, True)):
        bits = np.resize(codec.BITS, 24)
        x = adversarial(24, width, width)
        assert_same_everywhere(x, bits, "triton", param_bytes=param_bytes, stochastic=stochastic)
"""


@pytest.mark.slow
@pytest.mark.triton
def test_interpreted_triton_writes_the_bytes_of_the_reference():
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", _INTERPRETED], check=True, timeout=110, env=environment)


def test_missing_triton_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CodecError, match="triton is not installed"):
        encode(torch.randn(2, 4), 4, implementation="triton")


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda, reason="needs a CUDA device")
@pytest.mark.parametrize("implementation", ["torch", "triton"])
@pytest.mark.parametrize("width", [1, 7, 41, 256, 602, 5000])
def test_cuda_writes_the_bytes_of_the_cpu(width, implementation):
    bits = np.random.default_rng(width).choice(codec.BITS, 600)
    for param_bytes in (4, 6):
        for stochastic in (True, False):
            options = {"param_bytes": param_bytes, "stochastic": stochastic}
            assert_same_everywhere(adversarial(600, width), bits, implementation, "cuda", **options)


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda, reason="needs a CUDA device")
def test_cuda_adds_and_aggregates_like_the_cpu():
    layout, buffer = encode(torch.randn(60, 50), np.resize(codec.BITS, 60))
    index, indptr = torch.randperm(60), torch.arange(0, 61, 4)
    for device in ("cpu", "cuda"):
        added, summed = torch.ones(60, 50, device=device), torch.ones(15, 50, device=device)
        moved = [t.to(device) for t in (buffer, index, indptr, torch.linspace(0, 1, 60))]
        codec.unpack_add(moved[0], layout, moved[1], added)
        codec.unpack_aggregate(moved[0], layout, moved[2], moved[1], moved[3], summed)
        if device == "cpu":
            expected = added, summed
    assert torch.equal(added.cpu(), expected[0])
    torch.testing.assert_close(summed.cpu(), expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda, reason="needs a CUDA device")
def test_cuda_names_the_first_bad_message():
    x = torch.randn(40, 8)
    x[[11, 25]] = torch.nan
    layout = codec.MessageLayout(np.full(40, 4), 8)
    out = torch.empty(layout.size_bytes, dtype=torch.uint8, device="cuda")
    with pytest.raises(CodecError, match="message 11 "):
        codec.pack(x.cuda(), None, layout, out, key=1, rows=np.arange(40))
