"""The Triton kernels write the bytes of the CPU, in the interpreter and on CUDA."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.codec.messages import adversarial, assert_same_everywhere, encode
from wirewise import codec
from wirewise.errors import CodecError

has_cuda = torch.cuda.is_available()


_INTERPRETED = """
import numpy as np, torch
from tests.codec.messages import adversarial
from tests.codec.messages import assert_same_everywhere, assert_sums_in_order
from wirewise import codec
# The longest rows are read twice with up to 8 bits, others are kept in registers.
for width, count in ((1, 24), (5, 24), (33, 24), (602, 12), (8300, 6), (16500, 6)):
    for param_bytes, stochastic in ((4, False), (6, True)):
        bits = np.resize(codec.BITS, count)
        x = adversarial(count, width, width)
        assert_same_everywhere(x, bits, "triton", param_bytes=param_bytes, stochastic=stochastic)
# Codes that share a byte are of columns whose distance depends on the number of bits.
for width in (1, 13, 64, 602):
    for bits in ([1], [2], [4], [8], [2, 4, 8], [4, 32], codec.BITS):
        assert_sums_in_order(width, bits, "triton")
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
