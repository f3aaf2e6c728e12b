"""Compress the gradients of a model in DistributedDataParallel by a communication hook with error feedback.

torchrun --nproc-per-node 2 examples/by_feature/compressed_ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wirewise.runtime import data_parallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
state, hook = data_parallel.hook(codec="efsign", model=model.module)
model.register_comm_hook(state, hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(32, 64)
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x[:, :1])
    loss.backward()
    optimizer.step()
gradients = 4 * 20 * sum(p.numel() for p in model.parameters())
if dist.get_rank() == 0:
    print(f"loss {loss.item():.3f}; sent {state.bytes_sent} bytes for {gradients} bytes of gradients")
state.close()
dist.destroy_process_group()
