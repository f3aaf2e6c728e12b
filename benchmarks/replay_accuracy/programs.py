"""Training whose gradients are summed by messages of our own programs, or as compressed codes."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from compressed import CodecSum
from torch import Tensor, nn
from workloads import MB, Work

from wirewise.collective import named_program
from wirewise.plans import Bucket, FusionPlan
from wirewise.plans.fusion import ddp_buckets
from wirewise.profile import Tracer
from wirewise.runtime.data_parallel import (
    AllReduce,
    DataParallel,
    Observer,
    parallel,
    transport_of,
)

COMPRESSED = {"top-k": ("topk", {"ratio": 0.01}), "int8": ("int8", {})}


def by_program(
    work: Work, model: nn.Module, optimizer: torch.optim.Optimizer, tracer: Tracer | None
) -> DataParallel:
    """The model with buckets as DistributedDataParallel makes them, summed by `work.algorithm`."""
    observers: list[Observer] = []
    collective = _collective(work, observers)
    if tracer is not None:
        collective = tracer.collective(collective, algorithm=work.algorithm)
        observers.append(collective.observe)
    return parallel(model, plan_of(work, model), optimizer, collective=collective)


def plan_of(work: Work, model: nn.Module) -> FusionPlan:
    named = list(model.named_parameters())[::-1]
    made = []
    for group in ddp_buckets([p.nbytes for _, p in named], work.bucket_mb * MB):
        parameters = tuple(named[i][0] for i in group)
        made.append(Bucket(parameters=parameters, size_bytes=sum(named[i][1].nbytes for i in group)))
    return FusionPlan(world_size=dist.get_world_size(), planner="benchmark", buckets=tuple(made))


def _collective(work: Work, observers: list[Observer]) -> Callable[[Tensor], None]:
    transport = transport_of()
    if work.algorithm in COMPRESSED:
        codec, options = COMPRESSED[work.algorithm]
        exchange = CodecSum(transport, codec, **options)

        def compressed(flat: Tensor) -> None:
            exchange.observer = observers[0] if observers else None
            exchange(flat)

        return compressed
    per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    hosts = [rank // per_host for rank in range(dist.get_world_size())]
    return AllReduce(transport, named_program("all_reduce", hosts, work.algorithm, servers=work.servers))
