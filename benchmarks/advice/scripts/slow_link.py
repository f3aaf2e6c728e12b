"""A wide model, whose gradients cross links that the benchmark makes slow: the planted cause."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(384, 384) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(16, 384)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
