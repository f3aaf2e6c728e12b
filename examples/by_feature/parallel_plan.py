"""Capture the training step of a model, plan how its tensors are cut over the ranks, and train it so.

torchrun --nproc-per-node 2 examples/by_feature/parallel_plan.py
"""

import torch
import torch.distributed as dist
from torch import nn

from wirewise import topology
from wirewise.cost import Links
from wirewise.planners import PLANNERS
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel import parallelize
from wirewise.sim.operator_times import roofline_times


class Wide(nn.Module):
    """Two layers, called with a batch it gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Loss of a batch."""
        return nn.functional.mse_loss(self.down(torch.relu(self.up(x))), target)


dist.init_process_group("gloo")
torch.manual_seed(0)
model, inputs = Wide(), (torch.randn(8, 64), torch.randn(8, 64))
step = capture_step(model, inputs)
links = Links.of(topology.preset(f"lab-{dist.get_world_size()}@200mbit"))
plan = PLANNERS["parallel"]["rhino"](
    roofline_times(step.graph, "a100"), links, stages=1
)  # the same on all ranks
parallel = parallelize(model, plan, step)
optimizer = torch.optim.AdamW(parallel.parameters())
for number in range(5):
    optimizer.zero_grad()
    loss = parallel(*inputs)  # the whole batch on every rank, which takes its part
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {number}: loss {loss.item():.4f}")
if dist.get_rank() == 0:
    print(plan.headline)
dist.destroy_process_group()
