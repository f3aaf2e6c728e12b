from __future__ import annotations

import pytest
import torch

from wirewise.errors import InputError
from wirewise.graph.ops import Csr, aggregate, norm_act_drop, sparse_linear


def step(
    csr: Csr, features: Csr, weight: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = weight.detach().requires_grad_()
    h = norm_act_drop(sparse_linear(features, weight), p=0.5, key=3, rows=rows)
    z = aggregate(csr, h, self_weight=h.new_ones(len(h)))
    return z.detach(), torch.autograd.grad(z.square().sum(), weight)[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_the_cpu(make_csr):
    csr, features, weight = make_csr(50, 50), make_csr(50, 20), torch.randn(16, 20, dtype=torch.float64)
    rows = torch.arange(50) * 101
    here = step(csr, features, weight, rows)
    there = step(csr.to("cuda"), features.to("cuda"), weight.cuda(), rows.cuda())
    torch.testing.assert_close(tuple(t.cpu() for t in there), here)


def test_matrix_and_rows_on_different_devices_are_refused(make_csr):
    with pytest.raises(InputError, match="move one with"):
        aggregate(make_csr(3, 3), torch.zeros(3, 2, device="meta"))


def test_to_the_same_device_is_the_same_matrix(make_csr):
    csr = make_csr(3, 3)
    assert csr.to("cpu") is csr
