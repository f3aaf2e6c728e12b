"""Record a job from inside its script, and ask what bounds a step and what faster links would give.

torchrun --nproc-per-node 2 examples/by_feature/trace_and_ask.py
wirewise trace show run
"""

import shutil

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wirewise.profile import Tracer

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    shutil.rmtree("run", ignore_errors=True)
dist.barrier()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = Tracer("run", model.module, optimizer=optimizer, warmup=2, steps=6)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(32, 512)).square().mean().backward()
    optimizer.step()
tracer.close()
dist.destroy_process_group()
