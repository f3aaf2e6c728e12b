"""Give a faster host more rows of the batch, with the loss and gradients of one process.

torchrun --nproc-per-node 2 examples/by_feature/unequal_hosts.py
"""

import torch
import torch.distributed as dist
from torch import nn

from wirewise.plans import DeployedDevice, DeployedGroup, DeploymentPlan
from wirewise.runtime.deployment import Deployment
from wirewise.runtime.pipeline import LayerGraph

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = LayerGraph(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
plan = DeploymentPlan(
    world_size=2,
    planner="by hand",
    batch=16,
    devices=(
        DeployedDevice(name="fast", host="host0", speed=1.0),
        DeployedDevice(name="slow", host="host1", speed=0.33),
    ),
    groups=(DeployedGroup(ops=layers.names, devices=(0, 1), rows=(12, 4), communication="allreduce"),),
    predicted_step_s=0.0,
    baseline_step_s=0.0,
    predicted_bytes=(0, 0),
)
deployment = Deployment(layers, plan, loss=nn.functional.mse_loss)
optimizer = torch.optim.SGD(deployment.parameters(), lr=0.1)
x, y = torch.randn(16, 8), torch.randn(16, 1)
for _ in range(5):
    part = deployment.step(x, y)  # this rank's part of the loss
    optimizer.step()
loss = deployment.total(part)
if dist.get_rank() == 0:
    print(f"loss {float(loss):.3f}")
deployment.close()
dist.destroy_process_group()
