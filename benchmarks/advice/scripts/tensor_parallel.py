"""A multilayer perceptron whose layers are split over both ranks by DTensor."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)) for _ in range(2)))
for layer in model:
    parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.ones(16, 128)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
