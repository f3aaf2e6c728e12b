"""Plans carried out on a GPU over NCCL train as on the CPU over gloo; one rank, since NCCL wants a GPU for each."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from wirewise import plans
from wirewise.runtime import data_parallel

pytestmark = pytest.mark.gpu


BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))


def trained(codec: str, scheme: str, device: str) -> list[torch.Tensor]:
    """Parameters after three steps of one rank."""
    dist.init_process_group(BACKENDS[device], store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = model_of().to(device)
        names = tuple(name for name, _ in model.named_parameters())[::-1]
        size = sum(p.nbytes for p in model.parameters())
        bucket = plans.Bucket(parameters=names, size_bytes=size, codec=codec, scheme=scheme)
        plan = plans.FusionPlan(world_size=1, planner="by hand", buckets=(bucket,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parallel = data_parallel.parallel(model, plan, optimizer)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step)).to(device)
            parallel(x).square().mean().backward()
            optimizer.step()
        parallel.reducer.close()
        return [p.detach().cpu() for p in model.parameters()]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("codec", "scheme"),
    [
        ("none", "all_reduce"),
        ("fp16", "all_reduce"),
        ("efsign", "all_gather"),
        ("int8", "all_gather"),
        ("topk", "all_gather"),
        ("randomk", "all_reduce"),
        ("powersgd", "all_reduce"),
    ],
)
def test_training_over_nccl_is_that_over_gloo(codec: str, scheme: str) -> None:
    found, expected = (trained(codec, scheme, device) for device in ("cuda", "cpu"))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
