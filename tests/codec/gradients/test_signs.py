"""Signs: their levels, votes and momentum."""

import pytest
import torch

from tests.codec.gradients.groups import (
    codec_of,
    decode,
    encode,
    normal,
    ratio_of,
    sent,
)
from wirewise.codec.gradients import Segments


def test_a7_both_levels_of_onebit_are_means():
    v = torch.tensor([-4.0, -2.0, 1.0, 2.0, 6.0, 0.0])
    torch.testing.assert_close(
        sent(codec_of("onebit"), v), torch.tensor([-3.0, -3.0, 2.25, 2.25, 2.25, 2.25])
    )


def test_a2_sign_of_a_gaussian_keeps_what_theory_says():
    assert ratio_of(normal(1 << 20), sent(codec_of("efsign"), normal(1 << 20))) == pytest.approx(
        0.363, abs=2e-3
    )


def test_majority_decides_and_ties_are_zero():
    segments = Segments([3])
    votes = [
        torch.tensor(v) for v in ([1.0, -2.0, 0.5], [3.0, -1.0, -0.1], [-1.0, -1.0, 5.0], [2.0, 9.0, -1.0])
    ]
    codec = codec_of("signsgd")
    result = decode(codec, [encode(codec, v) for v in votes], segments, scale=0.1)
    torch.testing.assert_close(result, torch.tensor([0.1, -0.1, 0.0]))


def test_signum_votes_by_its_momentum():
    codec, momentum = codec_of("signum", momentum=0.5), torch.tensor([4.0, -4.0, 0.0])
    payload = encode(codec, torch.tensor([-1.0, 1.0, -2.0]), memory=momentum)
    assert momentum.tolist() == [1.5, -1.5, -1.0]
    assert decode(codec, [payload], Segments([3])).tolist() == [1.0, -1.0, -1.0]
