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


class Gradients(torch.nn.Module):
    """Equal tensors whose gradients are there at once, so that nothing hides their reduction."""

    def __init__(self, tensors, size_bytes):
        super().__init__()
        share = size_bytes // 4 // tensors
        self.weights = torch.nn.ParameterList(torch.zeros(share) for _ in range(tensors))

    def forward(self, x):
        return _AtOnce.apply(x, *self.weights)


class _AtOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *weights):
        ctx.save_for_backward(*weights)
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad, *(torch.ones_like(weight) for weight in ctx.saved_tensors)


WARMUP, TURNS = 3, 5


def step_s(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, ends = torch.ones(4, 1), []
    for _ in range(WARMUP + steps):
        optimizer.zero_grad()
        model(data).mean().backward()
        optimizer.step()
        ends.append(time.perf_counter())
    return (ends[-1] - ends[WARMUP - 1]) / steps


def one_after_another(_, bucket):
    """Reductions in a queue, as on a stream of NCCL; gloo alone would run two at a time."""
    reduced = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(reduced)
    done = torch.futures.Future()
    done.set_result(reduced)
    return done


class Point:
    """Tensors of so many bytes together, reduced in buckets."""

    def __init__(self, tensors, buckets, size_bytes):
        self.alone, self.size_bytes = Gradients(tensors, size_bytes), size_bytes
        # A cap in MiB; a tensor that reaches it closes the bucket.
        cap = size_bytes / buckets / 2**20
        self.reducing = DistributedDataParallel(Gradients(tensors, size_bytes), bucket_cap_mb=cap)
        self.reducing.register_comm_hook(None, one_after_another)
        self.stalls_s = []

    def measure(self, steps):
        dist.barrier()
        self.stalls_s.append(step_s(self.reducing, steps) - step_s(self.alone, steps))

    def row(self):
        """Reductions of a step, the seconds that they add to it, bytes."""
        sizes = str(self.reducing._get_ddp_logging_data().get("rebuilt_bucket_sizes", ""))
        reductions = len([s for s in sizes.split(",") if s.strip()])
        return reductions, sorted(self.stalls_s)[TURNS // 2], self.size_bytes


def main():
    out, steps, wanted = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    points = {name: [Point(*values) for values in some] for name, some in wanted.items()}
    # Turns over all points, not over each: what else the machine does meets all of them.
    for _ in range(TURNS):
        for point in (p for some in points.values() for p in some):
            point.measure(steps)
    rows = {name: [point.row() for point in some] for name, some in points.items()}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
