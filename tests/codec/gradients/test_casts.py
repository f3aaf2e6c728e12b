"""Gradients in 16 bits."""

import pytest
import torch

from tests.codec.gradients.groups import (
    codec_of,
    encode,
    normal,
    sent,
)
from tests.codec.gradients.kernels.same import same
from wirewise.codec.gradients import Segments


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


@pytest.mark.parametrize(("name", "error"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_a1_casts_round_to_nearest(name, error):
    v = normal(10_000) * 100
    v = v[v.abs() > 1e-4]
    assert ((sent(codec_of(name), v) - v).abs() <= error * v.abs()).all()
