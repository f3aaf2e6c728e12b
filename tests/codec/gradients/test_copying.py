"""Copies that find out on their way whether numbers are finite."""

import math

import pytest
import torch

from tests.codec.gradients.groups import normal
from wirewise.codec.gradients import copy_checked
from wirewise.errors import CodecError

SMALLEST = float(torch.nextafter(torch.tensor(0.0), torch.tensor(1.0)))


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
