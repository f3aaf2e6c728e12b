"""A multilayer perceptron sharded by FSDP2."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
