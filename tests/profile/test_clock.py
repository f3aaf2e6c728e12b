"""Recording on a GPU: times are those of the device. Needs one GPU and NCCL."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from wirewise.profile import Tracer
from wirewise.trace import read

pytestmark = pytest.mark.gpu


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ops_take_the_time_of_the_device(group, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    tracer = Tracer(tmp_path / "run", ddp, optimizer=optimizer, warmup=3, steps=4)
    x = torch.randn(4096, 2048, device="cuda")
    for _ in range(9):
        optimizer.zero_grad()
        ddp(x).pow(2).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    tracer.close()
    trace = read(tmp_path / "run")
    assert trace.steps() == [3, 4, 5, 6]
    assert trace.ranks[0].header.environment["device"] == "cuda"
    ops = trace.of(0, 4)
    forward = {op.name: op.end_s - op.start_s for op in ops if op.kind == "forward"}
    # 2 * 4096 * 2048 * 2048 operations are no launch of a few microseconds.
    assert forward["0"] > 50e-6
    assert sum(op.gradient_bytes for op in ops) == sum(p.numel() * 4 for p in net.parameters())
    assert all(op.end_s > op.start_s for op in ops if op.kind == "communication")
