"""Sequences of lengths that differ from batch to batch, so that another rank is the slowest in each step."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
model = DistributedDataParallel(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
lengths = random.Random(dist.get_rank())
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(4, lengths.choice((8, 16, 160)), 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
