"""One rank: steps of DistributedDataParallel over gloo and over programs, interleaved; rank 0 prints the seconds.

    torchrun ddp_worker.py JOB.json

The job: `layers`, `parameters`, `forward_s`, `backward_s`, `steps`, `program` (a file, for buckets of 1 MB and more).
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wirewise.collective import load
from wirewise.lab import VirtualAccelerator
from wirewise.runtime.collective import connect, ddp_hook
from wirewise.trials.rank import join_job


def step(model):
    """Seconds of a step on the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    model(torch.ones(1, 1)).sum().backward()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    model.zero_grad()
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    with join_job(), connect() as group:
        shape = (job["layers"], job["parameters"])
        times = {"forward_s": job["forward_s"], "backward_s": job["backward_s"]}
        models = {
            name: DistributedDataParallel(VirtualAccelerator.uniform(*shape, **times))
            for name in ("gloo", "programs")
        }
        group.use(load(job["program"]), from_bytes=1_000_000)
        models["programs"].register_comm_hook(*ddp_hook(group))
        seconds = {name: [] for name in models}
        for number in range(job["steps"] + 1):
            for name, model in models.items():
                took = step(model)
                if number:
                    seconds[name].append(took)
        if group.rank == 0:
            print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
