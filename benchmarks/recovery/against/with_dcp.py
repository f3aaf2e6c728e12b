"""The script with distributed checkpoints, which torchrun starts again."""

import sys
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common_job import BATCH, model_of, note, rows
from torch import nn, optim
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DataLoader, DistributedSampler

folder, steps = sys.argv[1], int(sys.argv[2])
every = int(sys.argv[3])
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model_of())
optimizer = optim.AdamW(model.parameters(), 0.001)
data = rows()
sampler = DistributedSampler(data, seed=0)
loader = DataLoader(data, BATCH, sampler=sampler)
step = 0
if saved := [int(path.parent.name) for path in Path(folder, "saved").glob("*/.metadata")]:
    step = max(saved)
    weights, averages = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": averages}, checkpoint_id=f"{folder}/saved/{step}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=averages)
while step < steps:
    sampler.set_epoch(step // len(loader))
    for number, (x, y) in enumerate(loader):
        if number < step % len(loader):
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        note(folder, dist.get_rank(), step)
        if step % every == 0:
            weights, averages = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": averages}, checkpoint_id=f"{folder}/saved/{step}")
        if step == steps or step % len(loader) == 0:
            break
dist.destroy_process_group()
