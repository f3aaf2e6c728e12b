"""A job that measures the communication stall of a step over numbers of reductions and bytes of gradients.

Arguments: the file for the result, steps, and the points as JSON: {name: [[tensors, buckets, bytes], ...]}.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wirewise.lab import VirtualAccelerator

WARMUP, TURNS = 3, 3


def step_s(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, ends = torch.ones(4, 1), []
    for _ in range(WARMUP + steps):
        optimizer.zero_grad()
        model(data).mean().backward()
        optimizer.step()
        ends.append(time.perf_counter())
    return (ends[-1] - ends[WARMUP - 1]) / steps


def stall_s(tensors, size_bytes, bucket_bytes, steps):
    """Reductions of a step and the seconds that they add to it: with and without them, the median of turns."""

    def network():
        return VirtualAccelerator.uniform(tensors, size_bytes // 4, forward_s=0.0, backward_s=0.0)

    # A cap in MiB; a tensor that reaches it closes the bucket.
    reducing = DistributedDataParallel(network(), bucket_cap_mb=bucket_bytes / 2**20)
    found = []
    for _ in range(TURNS):
        dist.barrier()
        found.append(step_s(reducing, steps) - step_s(network(), steps))
    sizes = str(reducing._get_ddp_logging_data().get("rebuilt_bucket_sizes", ""))
    return len([s for s in sizes.split(",") if s.strip()]), sorted(found)[TURNS // 2]


def main():
    out, steps, points = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = {
        name: [(*stall_s(tensors, size, size / buckets, steps), size) for tensors, buckets, size in some]
        for name, some in points.items()
    }
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
