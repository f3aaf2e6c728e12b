"""Gradients that the caller has checked: the same bytes and memories without the pass that looks for NaN."""

import math

import pytest
import torch

from tests.codec.gradients.groups import OPTIONS, codec_of, encode, memory_of, normal
from wirewise.codec.gradients import Segments
from wirewise.errors import CodecError

MEMORIES = {name: len(codec_of(name).memories) for name in OPTIONS}
LOOKS = [name for name in OPTIONS if codec_of(name).looks_first]
SHAPES = ([1], [7, 1, 9], [4095, 4097], [300, 70001])


def test_codecs_whose_memory_moves_in_one_pass_look_first():
    assert sorted(LOOKS) == ["bf16", "dgc", "fp16", "int4", "int8", "powersgd", "randomk", "signum"]


@pytest.mark.sweep
@pytest.mark.parametrize("implementation", ["numba", "torch"])
@pytest.mark.parametrize("name", OPTIONS)
def test_what_was_checked_is_encoded_to_the_same_bits(name, implementation):
    for sizes in SHAPES:
        segments, found = Segments(sizes), []
        for checked in (False, True):
            codec = codec_of(name, implementation)
            memory = memory_of(codec, segments.total) if MEMORIES[name] else None
            payloads = []
            for step, factor in enumerate((1.0, 1e-42, 0.0, 1e3)):
                gradient = factor * normal(segments.total, step)
                payloads.append(encode(codec, gradient, segments, memory, step=step, checked=checked))
            found.append((torch.stack(payloads), memory))
        (plain, kept), (known, moved) = found
        assert torch.equal(plain, known)
        assert memory is None or torch.equal(kept, moved)


@pytest.mark.parametrize("memories", [0, 1])
@pytest.mark.parametrize("name", LOOKS)
def test_a_checked_gradient_that_is_not_finite_is_refused_all_the_same(name, memories):
    """Checking changes what is undefined only while there is a memory."""
    for implementation, size in (("numba", 60), ("numba", 70001), ("torch", 60)):
        codec, segments = codec_of(name, implementation), Segments([40, size, 60], ids=[7, 8, 9])
        for bad in (math.nan, math.inf, -math.inf):
            gradient = normal(segments.total)
            gradient[95] = bad
            memory = memory_of(codec, segments.total, 1, 2) if memories else None
            with pytest.raises(CodecError, match=r"segment 1 \(tensor 8"):
                encode(codec, gradient, segments, memory, checked=True)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "int4", "dgc", "powersgd", "randomk"])
@pytest.mark.parametrize("checked", [False, True])
def test_a_memory_that_is_not_finite_is_refused(name, checked):
    codec, segments = codec_of(name), Segments([40, 50])
    memory = memory_of(codec, segments.total, 1, 2)
    (memory if memory.dim() == 1 else memory[0])[50] = math.nan
    with pytest.raises(CodecError, match=r"segment 1 "):
        encode(codec, normal(segments.total), segments, memory, checked=checked)
