"""One rank: trains what WORKS.json lists, each job recorded into its folder, and notes the periods of steps.

    worker.py WORKS.json [SECONDS]

With SECONDS the rank's monotonic clock is so far ahead, in a time namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from programs import by_program
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from workloads import Batches, Work, make, speeds

from wirewise.files import atomic_file
from wirewise.profile import Tracer


def train(work: Work) -> tuple[list[float], float]:
    """Ends of all steps after the warm-up, on this rank's clock, and DDP's own figure of overlap, s."""
    rank = dist.get_rank()
    model, shape = make(work)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    whole = None if work.algorithm else DistributedDataParallel(model, bucket_cap_mb=work.bucket_mb)
    batches = DataLoader(
        Batches(shape, work.warmup + work.steps, work.data_s), batch_size=None, collate_fn=lambda x: x
    )
    pace, ends = speeds(work, model, rank), []
    tracer = (
        Tracer(work.folder, whole or model, optimizer=optimizer, warmup=work.warmup, steps=work.steps)
        if work.folder
        else None
    )
    ddp = whole or by_program(work, model, optimizer, tracer)
    dist.barrier()
    for x in batches:
        next(pace)
        if work.paused:
            dist.barrier()
        with contextlib.nullcontext() if work.communicate else ddp.no_sync():
            ddp(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
    if tracer:
        tracer.close()
    told = whole._get_ddp_logging_data() if whole else {}
    return ends[work.warmup - 1 :], 1e-9 * told.get("backward_compute_comm_overlap_time", 0)


def move_clock(seconds: str) -> None:
    """Start this program again where the clock differs."""
    if seconds != "0" and "WIREWISE_MOVED" not in os.environ:
        os.environ["WIREWISE_MOVED"] = seconds
        shift = [f"--{clock}={seconds}" for clock in ("monotonic", "boottime")]
        os.execvp("unshare", ["unshare", "-T", *shift, sys.executable, *sys.argv])


def main() -> None:
    move_clock(sys.argv[2] if len(sys.argv) > 2 else "0")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    path = Path(sys.argv[1])
    periods, overlaps = [], []
    for work in msgspec.json.decode(path.read_bytes(), type=list[Work]):
        times, overlap = train(work)
        ends = torch.tensor(times, dtype=torch.float64)
        both = ends[1:] - ends[:-1]
        dist.all_reduce(both)
        periods.append((both / dist.get_world_size()).tolist())
        overlaps.append(overlap)
    if dist.get_rank() == 0:
        with atomic_file(path.with_name("periods.json")) as file:
            file.write(msgspec.json.encode({"periods": periods, "overlaps": overlaps}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
