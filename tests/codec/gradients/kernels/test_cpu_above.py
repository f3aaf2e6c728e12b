"""Elements above a sampled threshold, taken while memories move."""

import pytest
import torch

from tests.codec.gradients.groups import codec_of, encode, normal
from tests.codec.gradients.kernels.same import same
from wirewise.codec.gradients import Segments


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("memories", [1, 2])
@pytest.mark.parametrize("repeats", [1, 50, 5000, 100_000])
@pytest.mark.slow
def test_what_was_taken_of_too_many_equals_is_given_back(repeats, memories, masking):
    size = 100_000
    gradient = (torch.arange(size) // repeats).float() + 1.0
    memory = torch.stack([normal(size, 1), normal(size, 2)])
    options = {"momentum": 0.5, "masking": masking}
    for kept in (torch.zeros_like(memory), memory):
        same("dgc", gradient, Segments([size]), kept[0] if memories == 1 else kept, options=options)
    same("dgc", gradient, Segments([size - 70, 70]), None)


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("size", [100, 70001])
@pytest.mark.parametrize("factor", [1.0, 5e37])
def test_momentum_moves_alike_where_elements_are_collected(size, factor, masking):
    results = []
    for implementation in ("numba", "torch"):
        codec, memory = codec_of("dgc", implementation, momentum=0.9, masking=masking), torch.zeros(2, size)
        payloads = [
            encode(codec, factor * normal(size, step), memory=memory, step=step, seed=1) for step in range(6)
        ]
        results.append((torch.stack(payloads), memory))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) and memory.isfinite().all()
