"""Hundreds of tiny operations a step, of which Python launches each: the host is the planted cause."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x):
        hidden = torch.zeros(x.shape[1], 8)
        for row in x:
            hidden = self.cell(row, hidden)
        return hidden


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(Recurrence())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(100, 4, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
