"""Use wirewise as the backend of torch.distributed: DDP and collectives as they are, programs underneath.

torchrun --nproc-per-node 2 examples/by_feature/backend.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wirewise.runtime.collective  # noqa: F401 (registers the backend)

dist.init_process_group("wirewise")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
total = model.module.weight.detach().sum()
sums = [torch.zeros(()) for _ in range(dist.get_world_size())]
dist.all_gather(sums, total)
print(f"rank {dist.get_rank()}: replicas equal {all(torch.equal(one, sums[0]) for one in sums)}")
dist.destroy_process_group()
