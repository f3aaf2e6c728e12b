"""One rank of two servers: all-reduces by programs and by gloo, with a mark before and after those of each way.

    torchrun servers_worker.py JOB.json

The job: `programs` (name to file), `size_bytes`, `repeats`. At a mark rank 0 prints `mark NAME` and waits for a file
of that name next to the job, so that counters are read while nothing is sent. Each rank prints the payload bytes that
it sent to the other server in one call of each way, and the seconds of the slowest rank.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from wirewise.collective import load
from wirewise.runtime.collective import connect
from wirewise.trials.rank import join_job

PATIENCE_S = 30.0


def mark(name):
    """Let the lab read its counters."""
    dist.barrier()
    time.sleep(0.1)  # Acknowledgements may be late.
    if dist.get_rank() == 0:
        print(f"mark {name}", flush=True)
    deadline = time.monotonic() + PATIENCE_S
    while not Path(sys.argv[1]).with_name(name).exists():
        if time.monotonic() > deadline:
            sys.exit(f"the counters at {name!r} were not read within {PATIENCE_S:g} s")
        time.sleep(0.01)


def crossed_bytes(group):
    """Payload to ranks of the other server since the group was made."""
    half = group.size // 2
    return sum(
        edge.size_bytes
        for edge in group.statistics()
        if edge.source == group.rank and edge.target // half != group.rank // half
    )


def timed(call, tensor, values):
    """Seconds of a call on the slowest rank."""
    tensor.copy_(values)
    dist.barrier()
    start = time.perf_counter()
    call(tensor)
    return time.perf_counter() - start


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    with join_job(), connect() as group:
        values = (torch.arange(job["size_bytes"] // 4) % 1021 + dist.get_rank()).float()
        tensor, expected = values.clone(), values.clone()
        dist.all_reduce(expected)
        seconds, crossed = {}, {}
        programs = {name: load(path) for name, path in job["programs"].items()}
        ways = {n: lambda t, p=p: group.all_reduce(t, program=p) for n, p in programs.items()}
        for name, call in {**ways, "gloo": dist.all_reduce}.items():
            timed(call, tensor, values)
            if not torch.equal(tensor, expected):
                sys.exit(f"{name}: the result differs from gloo's")
            before = crossed_bytes(group)
            mark(f"{name} before")
            own = [timed(call, tensor, values) for _ in range(job["repeats"])]
            mark(f"{name} after")
            crossed[name] = (crossed_bytes(group) - before) // job["repeats"]
            took = torch.tensor(own, dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            seconds[name] = took.tolist()
        print(json.dumps({"seconds": seconds, "crossed": crossed}), flush=True)


if __name__ == "__main__":
    main()
