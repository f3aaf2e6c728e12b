"""The script before anything is done about failures."""

import sys

import torch.distributed as dist
from common_job import BATCH, model_of, note, rows
from torch import nn, optim
from torch.utils.data import DataLoader, DistributedSampler

folder, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model_of())
optimizer = optim.AdamW(model.parameters(), 0.001)
data = rows()
sampler = DistributedSampler(data, seed=0)
loader = DataLoader(data, BATCH, sampler=sampler)
step = 0
while step < steps:
    sampler.set_epoch(step // len(loader))
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        note(folder, dist.get_rank(), step)
        if step == steps:
            break
dist.destroy_process_group()
