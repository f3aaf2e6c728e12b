"""Move a tensor from the layout of FSDP to that of tensor parallelism, bit for bit.

torchrun --nproc-per-node 4 examples/by_feature/redistribute.py
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from wirewise.runtime.pipeline.redistribute import redistribute_across

dist.init_process_group("gloo")
ranks = dist.get_world_size()
line, square = init_device_mesh("cpu", (ranks,)), init_device_mesh("cpu", (ranks // 2, 2))
torch.manual_seed(0)
whole = torch.randn(4096, 256)
weight = distribute_tensor(whole, line, [Shard(0)])
weight = redistribute_across(weight, square, [Replicate(), Shard(1)])
columns = whole.tensor_split(2, dim=1)[dist.get_rank() % 2]
print(
    f"rank {dist.get_rank()}: {list(weight.to_local().shape)}, equal {torch.equal(weight.to_local(), columns)}"
)
dist.destroy_process_group()
