"""Gradients that the caller has checked: the same bytes and memories without the pass that looks for NaN."""

import math

import pytest
import torch

from tests.codec.gradients.groups import OPTIONS, codec_of, encode, memory_of, normal
from tests.codec.gradients.test_kernels import same
from wirewise.codec.gradients import Segments, copy_checked
from wirewise.errors import CodecError

MEMORIES = {name: len(codec_of(name).memories) for name in OPTIONS}
LOOKS = [name for name in OPTIONS if codec_of(name).looks_first]
SHAPES = ([1], [7, 1, 9], [4095, 4097], [300, 70001])
SMALLEST = float(torch.nextafter(torch.tensor(0.0), torch.tensor(1.0)))


def test_codecs_whose_memory_moves_in_one_pass_look_first():
    assert sorted(LOOKS) == ["bf16", "dgc", "fp16", "int4", "int8", "powersgd", "randomk", "signum"]


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
    """As long as it has a memory only this is undefined."""
    for implementation, size in (("numba", 60), ("numba", 70001), ("torch", 60)):
        codec, segments = codec_of(name, implementation), Segments([40, size, 60], ids=[7, 8, 9])
        for bad in (math.nan, math.inf, -math.inf):
            gradient = normal(segments.total)
            gradient[95] = bad
            memory = memory_of(codec, segments.total, 1, 2) if memories else None
            with pytest.raises(CodecError, match=r"segment 1 \(tensor 8"):
                encode(codec, gradient, segments, memory, checked=True)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_casts_cut_sums_beyond_float32_alike(name, sign):
    gradient = torch.cat([sign * torch.full((37,), 3e38), normal(37)])
    memory = gradient.clone()
    same(name, gradient, Segments([70, 4]), memory)
    for checked in (False, True):
        kept = memory.clone()
        encode(codec_of(name), gradient, Segments([70, 4]), kept, checked=checked)
        assert kept.isfinite().all() and (name == "bf16" or kept[0].abs() > 3e38)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "int4", "dgc", "powersgd", "randomk"])
@pytest.mark.parametrize("checked", [False, True])
def test_a_memory_that_is_not_finite_is_refused(name, checked):
    codec, segments = codec_of(name), Segments([40, 50])
    memory = memory_of(codec, segments.total, 1, 2)
    (memory if memory.dim() == 1 else memory[0])[50] = math.nan
    with pytest.raises(CodecError, match=r"segment 1 "):
        encode(codec, normal(segments.total), segments, memory, checked=checked)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 255, 256, 1023, 1024, 1025, 4099, 1 << 18, (1 << 18) + 3])
def test_a_checked_copy_is_bit_by_bit_and_finds_what_is_not_finite(size):
    source = normal(size)
    source[: size // 2] = SMALLEST
    places = {0, 1, size // 4, size // 2, 3 * size // 4, size - 1} & set(range(size))
    target = torch.full((size + 2,), 5.0)
    assert copy_checked(source, target[1:-1]) is True
    for place in places:
        for bad in (math.nan, math.inf, -math.inf):
            one = source.clone()
            one[place] = bad
            assert copy_checked(one, target[1:-1]) is False
            assert torch.equal(target[1:-1].view(torch.int32), one.view(torch.int32))
    assert copy_checked(source, target[1:-1]) is True
    assert torch.equal(target[1:-1].view(torch.int32), source.view(torch.int32))
    assert target[0] == target[-1] == 5.0


@pytest.mark.parametrize("bits", [0x7F800001, -0x7FFFFF, -1, -(2**31), 1, 0x7F7FFFFF])
def test_a_checked_copy_keeps_the_bits_of_any_float(bits):
    source, target = torch.full((9,), bits, dtype=torch.int32).view(torch.float32), torch.zeros(9)
    assert copy_checked(source, target) == bool(source.isfinite().all())
    assert torch.equal(target.view(torch.int32), source.view(torch.int32))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.zeros(4), torch.zeros(3)),
        (torch.zeros(4, dtype=torch.float64), torch.zeros(4)),
        (torch.zeros(2, 2), torch.zeros(2, 2)),
        (torch.zeros(8)[::2], torch.zeros(4)),
    ],
)
def test_a_checked_copy_refuses_what_does_not_fit(source, target):
    with pytest.raises(CodecError, match="expected contiguous float32"):
        copy_checked(source, target)
