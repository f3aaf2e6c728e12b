"""Segments of a flat group."""

from tests.codec.gradients.groups import (
    OPTIONS,
    codec_of,
    wire_bytes,
)
from wirewise.codec.gradients import Segments


def test_a1_sizes_add_up_over_segments():
    segments = Segments([1, 7, 8, 9, 1000], block=100)
    for name in OPTIONS:
        if name == "powersgd":
            # It takes whole tensors.
            assert codec_of(name).size_bytes(segments) == sum(wire_bytes(name, x) for x in (1, 7, 8, 9, 1000))
            continue
        assert codec_of(name).size_bytes(segments) == sum(wire_bytes(name, int(x)) for x in segments.sizes)
