"""Codes of blocks with a scale of their own."""

import pytest
import torch

from tests.codec.gradients.groups import codec_of, sent
from tests.codec.gradients.kernels.same import same
from wirewise.codec.gradients import Segments


@pytest.mark.parametrize("memory", [None, torch.zeros(8)])
def test_halves_are_rounded_away_from_zero(memory):
    below, above = (float(torch.nextafter(torch.tensor(0.5), torch.tensor(end))) for end in (0.0, 1.0))
    # The largest makes the step of the block 1.
    gradient = torch.tensor([127.0, below, 0.5, -0.5, above, 1.5, -2.5, -below])
    same("int8", gradient, Segments([8]), memory)
    result = sent(codec_of("int8"), gradient, Segments([8]))
    assert result.tolist() == [127.0, 0.0, 1.0, -1.0, 1.0, 2.0, -3.0, 0.0]
