"""Rank 1 computes each forward pass three times, as one on a slower processor would: the planted cause."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.layers, self.times = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))), times

    def forward(self, x):
        with torch.no_grad():
            for _ in range(self.times):
                self.layers(x.repeat(4, 1))
        return self.layers(x)


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(Net(6 if dist.get_rank() == 1 else 0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
