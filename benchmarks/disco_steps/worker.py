"""One rank: does the job of FOLDER/job.json and writes FOLDER/result.json.

worker.py FOLDER
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import models
import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wirewise.files import write_json
from wirewise.plans import FusionPlan
from wirewise.profile.operators import measure_operators
from wirewise.runtime.data_parallel.capture import capture
from wirewise.runtime.data_parallel.compiled import compile_step
from wirewise.trials.rank import join_job

STOCK: dict[str, tuple[bool, dict[str, Any]]] = {
    "eager + DDP": (False, {}),
    "Inductor + DDP 25 MiB": (True, {}),
    "Inductor + DDP 1 MiB": (True, {"bucket_cap_mb": 1}),
}
"""Whether compiled, and arguments of DistributedDataParallel."""

QUEUED = 8
"""All-reduces in flight while one is measured: gloo works on two at once, which hides latency."""
LARGEST_BYTES = 2_500_000

Step = Callable[[], None]


def profile(model: str, passes: int) -> dict[str, Any]:
    """The captured step with the seconds of its operators, and those of what goes before and behind them."""
    module, batch = models.make(model, dist.get_rank())
    found = capture(module, models.loss_of, batch)
    # As in a step, all ranks compute at once: hosts of a lab share processors and caches.
    dist.barrier()
    graph = measure_operators(found.module, found.inputs(module, batch), found.operators, passes=passes)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return {
        "graph": msgspec.to_builtins(graph),
        "overlap_rate": _overlap_rate(module, partial(found.module, *found.inputs(module, batch)), passes),
        "optimizer_s": _window(torch.optim.SGD(module.parameters(), lr=1e-3).step, passes),
        "buffers_s": _slowest(_window(_follow(module), passes)),
    }


def _follow(module: torch.nn.Module) -> Step:
    """Buffers become those of rank 0, as in each step; those of a type travel together."""
    buffers = list(module.buffers())
    flats = [
        torch.cat([one.reshape(-1) for one in buffers if one.dtype == dtype])
        for dtype in dict.fromkeys(one.dtype for one in buffers)
    ]

    def follow() -> None:
        for flat in flats:
            dist.broadcast(flat, 0)

    return follow


def _overlap_rate(module: torch.nn.Module, compute: Step, passes: int) -> float:
    """How fast ranks compute while gradients travel, of 1 alone; their mean."""
    # It outlasts computing.
    flat = torch.zeros(2 * sum(p.numel() for p in module.parameters()))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(passes):
        for beside, own in seconds.items():
            dist.barrier()
            work = dist.all_reduce(flat, async_op=True) if beside else None
            begin = time.perf_counter()
            compute()
            own.append(time.perf_counter() - begin)
            if work is not None:
                work.wait()
    return min(_mean_of_ranks([median(seconds[False]) / median(seconds[True])])[0], 1.0)


def _slowest(seconds: float) -> float:
    """The largest of all ranks."""
    worst = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def all_reduces(repeats: int) -> dict[str, Any]:
    """Seconds of all-reduces by bytes, up to those of the largest model's gradients."""
    sizes = [int(size) for size in np.geomspace(2**9, LARGEST_BYTES, 10)]
    seconds = [_reduced(size, min(QUEUED, LARGEST_BYTES // size), repeats) for size in sizes]
    return {"sizes": sizes, "seconds": seconds}


def _reduced(size_bytes: int, count: int, repeats: int) -> float:
    """Median seconds of an all-reduce in a queue of so many, as buckets are; the slowest rank's."""
    flats, seconds = torch.zeros(count, size_bytes // 4), []
    for _ in range(repeats + 1):
        dist.barrier()
        begin = time.perf_counter()
        for work in [dist.all_reduce(flat, async_op=True) for flat in flats]:
            work.wait()
        seconds.append((time.perf_counter() - begin) / count)
    worst = torch.tensor(seconds[1:])
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return median(worst.tolist())


def steps(
    model: str, stock: list[str], plans: list[dict[str, Any]], windows: int, window: int, parts: bool = False
) -> dict[str, Any]:
    """Seconds of a step under each, in windows in turn; the first turn does not count.

    With `parts` also those of the last plan's step without communication, and of its communication alone.
    """
    ways = {name: _stock(model, *STOCK[name]) for name in stock}
    told: dict[str, Any] = {}
    for way in plans:
        ways[way["name"]], told[way["name"]] = _planned(model, **way)
    if parts:
        ways |= _parts(model, **plans[-1])
    found: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for turn in range(windows + 1):
        for name in order if turn % 2 == 0 else order[::-1]:
            dist.barrier()
            found[name].append(_window(ways[name], window))
            if turn == 0:
                found[name].clear()
    return {"seconds": {name: _mean_of_ranks(s) for name, s in found.items()}, "told": told}


def _window(step: Step, count: int) -> float:
    """Median seconds of so many steps, after one more."""
    step()
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


def _mean_of_ranks(seconds: list[float]) -> list[float]:
    both = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(both)
    return (both / dist.get_world_size()).tolist()


def _stock(model: str, compiled: bool, options: dict[str, Any]) -> Step:
    module, batch = models.make(model, dist.get_rank())
    wrapped: Any = DistributedDataParallel(module, **options)
    wrapped = torch.compile(wrapped) if compiled else wrapped
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step() -> None:
        models.loss_of(wrapped, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        # Compiles.
        step()
    return step


def _planned(model: str, name: str, plan: Any, **options: Any) -> tuple[Step, Any]:
    module, batch = models.make(model, dist.get_rank())
    plan = msgspec.convert(plan, FusionPlan)
    expected, changed = _mean_gradients(model), _mean_gradients(model, 1e-7)
    run = compile_step(module, models.loss_of, batch, plan, timeout_s=580, **options)
    run(batch)
    apart = _apart([p.grad for p in module.parameters()], expected)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step() -> None:
        run(batch)
        optimizer.step()

    told = {"buckets": len(plan.buckets), "parts": len(run._calls), "fallbacks": run.fallbacks}
    return step, {**told, "apart": apart, "rounding": _apart(changed, expected)}


def _apart(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Largest difference of two elements over the largest element."""
    apart = [float((f - e).abs().max()) for f, e in zip(found, expected, strict=True)]
    return max(apart) / max(float(e.abs().max()) for e in expected)


def _parts(model: str, name: str, plan: Any, **options: Any) -> dict[str, Step]:
    """Computing, which ends when all ranks have, and the gradients of the whole model as one message."""
    module, batch = models.make(model, dist.get_rank())
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    plan = msgspec.convert({**plan, "world_size": 1}, FusionPlan)
    run = compile_step(module, models.loss_of, batch, plan, alone, **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    flat = torch.zeros(sum(p.numel() for p in module.parameters()))

    def compute() -> None:
        run(batch)
        optimizer.step()
        dist.barrier()

    return {"compute": compute, "all-reduce": lambda: dist.all_reduce(flat)}


@cache
def _mean_gradients(model: str, change: float = 0.0) -> list[torch.Tensor]:
    """Gradients of eager mode, all ranks' mean; inputs are changed by about so much of themselves."""
    module, (x, y) = models.make(model, dist.get_rank())
    x = x * (1 + change * torch.randn(x.shape, generator=torch.Generator().manual_seed(5)))
    models.loss_of(module, (x, y)).backward()
    gradients = [p.grad / dist.get_world_size() for p in module.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient)
    return gradients


JOBS = {"profile": profile, "all_reduces": all_reduces, "steps": steps}


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    job: dict[str, Any] = msgspec.json.decode((folder / "job.json").read_bytes())
    with join_job(3600.0) as transport:
        found = JOBS[job.pop("kind")](**job)
        if transport.rank == 0:
            write_json(folder / "result.json", found)


if __name__ == "__main__":
    main()
