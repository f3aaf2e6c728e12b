"""Gradients of DistributedDataParallel, reduced by a group's own programs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.runtime.collective.group import CollectiveGroup

__all__ = ["ddp_hook"]


def ddp_hook(
    group: CollectiveGroup,
) -> tuple[CollectiveGroup, Callable[[CollectiveGroup, Any], torch.futures.Future[Tensor]]]:
    """State and hook for `DistributedDataParallel.register_comm_hook(*ddp_hook(group))`.

    Each bucket is averaged by the program that the group chooses for its size (`CollectiveGroup.use`).
    """
    return group, _average


# DistributedDataParallel compares the annotations with the types, so they must not be strings.
def _average(group: CollectiveGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Mean of a bucket over the ranks."""
    work = group.all_reduce(bucket.buffer(), op="avg", async_op=True)
    return work.get_future().then(lambda future: future.value()[0])
