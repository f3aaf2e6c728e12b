"""Plan an all-reduce for hosts with unequal links, prove it, and run it in place of torch's.

torchrun --nproc-per-node 4 examples/by_feature/collectives.py
wirewise lab run --hosts 4 --link 200mbit -- examples/by_feature/collectives.py
"""

import torch
import torch.distributed as dist

from wirewise import topology
from wirewise.cost import Links
from wirewise.planners import PLANNERS
from wirewise.runtime.collective import connect

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
rates = ["200mbit"] * (ranks - 1) + ["100mbit"]  # the last host is behind a slower link
links = Links.of(topology.lab_hosts(rates))
plan = [PLANNERS["collective"]["auto"]("all_reduce", links, size_bytes=4_000_000) if rank == 0 else None]
dist.broadcast_object_list(plan)  # planned once, on rank 0
group = connect(timeout_s=60)
group.use(plan[0].program)
gradients = torch.full((1_000_000,), float(rank))
group.all_reduce(gradients)
if rank == 0:
    print(f"{1e3 * plan[0].predicted_s:.0f} ms predicted on those links")
    print(f"sum {gradients[0].item():.0f}, expected {sum(range(ranks))}")
group.close()
dist.destroy_process_group()
