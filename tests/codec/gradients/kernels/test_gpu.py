"""The Triton kernels write the bytes of the reference: interpreted where Triton is installed, and on CUDA."""

import os
import subprocess
import sys

import pytest
import torch

from tests.codec.gradients.groups import OPTIONS, codec_of, encode, memory_of, normal
from wirewise.codec.gradients import Segments
from wirewise.errors import CodecError


def same_everywhere(name, sizes, device, implementation, **options):
    """Payload, memory and sum of a codec against those of the reference on the CPU."""
    results = []
    for place, how in (("cpu", "torch"), (device, implementation)):
        codec, segments = codec_of(name, how, **options), Segments(sizes, ids=range(5, 5 + len(sizes)))
        gradient = normal(segments.total, 1).to(place)
        for kept in (None, memory_of(codec, segments.total, 2, 3).to(place) if codec.memories else None):
            out = torch.empty(codec.size_bytes(segments), dtype=torch.uint8, device=place)
            payload = encode(codec, gradient, segments, kept, out=out, seed=4)
            total = torch.full((segments.total,), torch.nan, device=place)
            codec.decode_sum([payload, payload], segments, total, scale=0.5, seed=4)
            results.append([payload.cpu(), total.cpu(), *([] if kept is None else [kept.cpu()])])
    half = len(results) // 2
    for expected, found in zip(results[:half], results[half:], strict=True):
        for a, b in zip(expected, found, strict=True):
            # Products of matrices are added up in another order.
            same = close(a, b) if name == "powersgd" else torch.equal(a, b)
            assert same, (name, sizes, options)


def close(a, b):
    """Payloads hold factors of float32."""
    a, b = (x.view(torch.float32) if x.dtype == torch.uint8 else x for x in (a, b))
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def all_the_same(device, implementation, shapes):
    for name in OPTIONS:
        for sizes in shapes:
            same_everywhere(name, sizes, device, implementation)
    for name in ("int8", "int4"):
        same_everywhere(name, shapes[-1], device, implementation, rounding="stochastic")
    for masking in (False, True):
        same_everywhere("dgc", shapes[-1], device, implementation, momentum=0.9, masking=masking)


_INTERPRETED = """
from tests.codec.gradients.kernels.test_gpu import all_the_same
all_the_same("cpu", "triton", ([1], [7, 1, 9], [300, 4099]))
"""


@pytest.mark.slow
@pytest.mark.triton
def test_interpreted_triton_writes_the_bytes_of_the_reference():
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", _INTERPRETED], check=True, timeout=110, env=environment)


def test_missing_triton_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CodecError, match="triton is not installed"):
        encode(codec_of("efsign", "triton"), torch.randn(4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_cuda_writes_the_bytes_of_the_cpu(implementation):
    all_the_same("cuda", implementation, ([1], [7, 1, 9], [4095, 4097, 8192], [300, 70001]))
