"""The script under torchft: each rank is a replica group with a torchrun of its own."""

import os
import sys
from datetime import timedelta

from common_job import BATCH, model_of, note, rows
from torch import nn, optim
from torch.utils.data import DataLoader
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

folder, steps = sys.argv[1], int(sys.argv[2])
group, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])


def load_state_dict(state):
    inner.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def state_dict():
    return {"model": inner.state_dict(), "optimizer": optimizer.state_dict()}


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    min_replica_size=1,
    replica_id=f"group_{group}",
    timeout=timedelta(seconds=30),
)
inner = model_of()
model = DistributedDataParallel(manager, inner)
optimizer = Optimizer(manager, optim.AdamW(inner.parameters(), 0.001))
data = rows()
sampler = DistributedSampler(
    data, replica_rank=group, num_replica_groups=groups, group_rank=0, num_replicas=1
)
loader = DataLoader(data, BATCH, sampler=sampler)
while manager.current_step() < steps:
    for x, y in loader:
        before = manager.current_step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if manager.current_step() > before:
            note(folder, group, manager.current_step())
        if manager.current_step() >= steps:
            break
manager.shutdown(wait=False)
