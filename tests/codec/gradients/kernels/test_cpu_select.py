"""The largest elements, found by histograms of float bits."""

import pytest
import torch

from tests.codec.gradients.groups import normal
from tests.codec.gradients.kernels.same import same
from wirewise.codec.gradients import Segments


@pytest.mark.parametrize("case", ["equal", "zeros", "few large", "sorted", "periodic"])
def test_top_k_is_exact_where_sampling_misleads(case):
    size = 100_000
    gradient = {
        "equal": torch.full((size,), -2.5),
        "zeros": torch.zeros(size),
        "few large": torch.where(torch.arange(size) % 17 == 0, 1e6, 1e-3) * normal(size).abs(),
        "sorted": torch.arange(size, dtype=torch.float32),
        "periodic": (torch.arange(size) % 17).float(),
    }[case]
    same("topk", gradient, Segments([size]), torch.zeros(size))
