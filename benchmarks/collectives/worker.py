"""One rank of the benchmark: the same collective by gloo and by programs, in turns; rank 0 prints the seconds.

    torchrun worker.py JOB.json

The job: `collective`, `sizes` in bytes, `repeats`, `programs` (name to file), `times` in a row, `chosen` (the
group's own choice too). A time is that of the
slowest rank, from a common start. Results are compared with gloo's once for each size.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from wirewise.collective import load
from wirewise.runtime.collective import connect
from wirewise.trials.rank import join_job


def tensors(collective, size_bytes):
    """What a collective gets and gives on this rank; the larger of the two has `size_bytes`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = size_bytes // 4 // ranks * ranks
    whole = (torch.arange(count) % 1021 + rank).float()
    if collective == "all_gather":
        return whole[: count // ranks].clone(), torch.zeros(count)
    if collective == "reduce_scatter":
        return whole, torch.zeros(count // ranks)
    return whole, torch.zeros(count) if collective == "all_to_all" else whole


def call(collective, group, source, target, **options):
    """Run it by a group's program, or by gloo where there is no group."""
    if group is None:
        {
            "all_reduce": lambda: dist.all_reduce(target),
            "broadcast": lambda: dist.broadcast(target, 0),
            "all_gather": lambda: dist.all_gather_into_tensor(target, source),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(target, source),
            "all_to_all": lambda: dist.all_to_all_single(target, source),
        }[collective]()
    elif collective in ("all_reduce", "broadcast"):
        getattr(group, collective)(target, **options)
    else:
        getattr(group, collective)(target, source, **options)


def timed(collective, group, source, target, times=1, **options):
    """Seconds of one call on the slowest rank, over some in a row."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(times):
        call(collective, group, source, target, **options)
    took = torch.tensor([(time.perf_counter() - start) / times], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def compare(job, group, size_bytes):
    """Seconds of each method interleaved."""
    collective = job["collective"]
    programs = {name: load(path) for name, path in job["programs"].items()}
    methods = {"gloo": (None, {})} | {n: (group, {"program": p}) for n, p in programs.items()}
    if job.get("chosen"):
        methods["chosen"] = (group, {})
    results = {}
    for name, (of, options) in methods.items():
        # The kernel learns sizes of buffers and windows in the first calls.
        for _ in range(1 if of is None else 3):
            source, target = tensors(collective, size_bytes)
            call(collective, of, source, target, **options)
        results[name] = target
        assert torch.equal(target, results["gloo"]), name
    source, target = tensors(collective, size_bytes)
    seconds, processor_s = {name: [] for name in methods}, dict.fromkeys(methods, 0.0)
    for _ in range(job["repeats"]):
        for name, (of, options) in methods.items():
            target.zero_()
            before = time.process_time()
            seconds[name].append(timed(collective, of, source, target, job.get("times", 1), **options))
            processor_s[name] += (time.process_time() - before) / job["repeats"]
    return seconds, processor_s


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    with join_job(), connect() as group:
        for size_bytes in job["sizes"]:
            seconds, processor_s = compare(job, group, size_bytes)
            if group.rank == 0:
                medians = {name: statistics.median(found) for name, found in seconds.items()}
                found = {
                    "size_bytes": size_bytes,
                    "medians": medians,
                    "seconds": seconds,
                    "processor_s": processor_s,
                }
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
