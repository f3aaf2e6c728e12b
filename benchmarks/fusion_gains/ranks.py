"""What the jobs of a rank share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wirewise import trace
from wirewise.profile import Tracer

WARMUP = 4


def traced(folder: Path, ddp: DistributedDataParallel, optimizer: Any, step: Callable, steps: int) -> Any:
    """The aligned trace of a training loop; on rank 0, elsewhere None."""
    tracer = Tracer(folder, ddp, optimizer=optimizer, warmup=WARMUP, steps=steps)
    for _ in range(WARMUP + steps):
        step()
    tracer.close()
    dist.barrier()
    return trace.align(trace.read(folder)) if dist.get_rank() == 0 else None


def from_first(make: Callable[[], Any], kind: Any) -> Any:
    """What rank 0 makes, on all ranks."""
    held = [msgspec.json.encode(make()) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(held)
    return msgspec.json.decode(held[0], type=kind)


def window(step: Callable, warm: int, steps: int) -> float:
    """Seconds of a step."""
    for _ in range(warm):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def mean_of_ranks(seconds: list[float]) -> list[float]:
    both = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(both)
    return (both / dist.get_world_size()).tolist()


def ddp(model: nn.Module) -> DistributedDataParallel:
    """Stock, with the caps that are its default."""
    return DistributedDataParallel(model)
