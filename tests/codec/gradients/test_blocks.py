"""Blocks of 256 elements with a scale of their own."""

import pytest
import torch

from tests.codec.gradients.groups import (
    codec_of,
    normal,
    ratio_of,
    sent,
)
from wirewise.codec.gradients import Segments


@pytest.mark.parametrize(("name", "error"), [("int8", 1 / 254), ("int4", 1 / 14)])
def test_a2_blocks_round_to_half_a_step_of_their_own(name, error):
    v = normal(2000) * torch.logspace(-6, 6, 2000)
    peaks = torch.nn.functional.pad(v.abs(), (0, 48)).view(-1, 256).amax(dim=1).repeat_interleave(256)[:2000]
    # A step is rounded up to bfloat16.
    assert ((sent(codec_of(name), v) - v).abs() <= 1.01 * error * peaks).all()


def test_a3_blocks_bound_the_error_of_qsgd():
    v = normal(100_000)
    assert ratio_of(v, sent(codec_of("qsgd"), v, Segments([len(v)], block=512))) <= 0.125
    assert ratio_of(v, sent(codec_of("qsgd"), v)) > 1
