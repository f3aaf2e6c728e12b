"""The numba kernels write the bytes of the reference."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.codec.gradients.groups import OPTIONS, codec_of, encode, memory_of, normal, sent
from tests.codec.gradients.kernels.same import same
from wirewise.codec.gradients import Segments

SMALLEST = 2.0**-149
SHAPES = ([1], [7, 1, 9], [4095, 4097, 8192], [40000, 3], [300, 70001])


@pytest.mark.sweep
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_implementations_agree_to_the_bit(name, sizes):
    for block in (None, 512):
        segments = Segments(sizes, ids=range(5, 5 + len(sizes)), block=block)
        gradient, codec = normal(segments.total, 1), codec_of(name)
        same(name, gradient, segments, seed=3)
        if codec.memories:
            same(name, gradient, segments, memory_of(codec, segments.total, 2, 3), seed=4)


@settings(max_examples=60, deadline=None)
@example("int8", [SMALLEST], 1, 0)
@example("int4", [SMALLEST, 0.0], 9, 0)
@given(
    st.sampled_from(list(OPTIONS)),
    st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(0, 2**40),
)
def test_implementations_agree_on_any_floats(name, values, block, seed):
    gradient = torch.tensor(values, dtype=torch.float32)
    segments = Segments([len(gradient)], block=block)
    same(name, gradient, segments, seed=seed)
    codec = codec_of(name)
    if codec.memories:
        memory = memory_of(codec, len(gradient))
        memory[...] = gradient.flip(0)
        same(name, gradient, segments, memory, seed=seed)


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.51, 0.9, 1.0])
@pytest.mark.parametrize("name", ["topk", "randomk"])
def test_implementations_agree_at_large_shares(name, ratio):
    segments = Segments([1, 2, 50, 3001])
    gradient = normal(segments.total)
    a, b = (encode(codec_of(name, i, ratio=ratio), gradient, segments, seed=9) for i in ("numba", "torch"))
    assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_sums_beyond_float32_are_cut_alike(name):
    gradient = 3e38 * normal(1000).sign()
    same(name, gradient, Segments([1000]), gradient.clone())
    memory = gradient.clone()
    result = sent(codec_of(name), gradient, Segments([1000]), memory)
    assert result.isfinite().all() and memory.isfinite().all() and result.abs().min() > 3e38
