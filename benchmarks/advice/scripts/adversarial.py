"""A generator and a discriminator that are trained alternately, each with its own optimizer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
maker = DistributedDataParallel(nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 64)))
judge = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)))
optimizers = [torch.optim.Adam(one.parameters(), lr=2e-4, betas=(0.5, 0.999)) for one in (judge, maker)]
loss_of = nn.BCEWithLogitsLoss()
for _ in range(1000):
    real, fake = torch.randn(32, 64), maker(torch.randn(32, 16))
    optimizers[0].zero_grad()
    # One call: DistributedDataParallel takes one forward pass for each backward pass.
    logits = judge(torch.cat([real, fake.detach()]))
    loss_of(logits, torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])).backward()
    optimizers[0].step()
    optimizers[1].zero_grad()
    loss_of(judge.module(fake), torch.ones(32, 1)).backward()
    optimizers[1].step()
dist.destroy_process_group()
