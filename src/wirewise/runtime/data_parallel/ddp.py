"""As much of a plan as DistributedDataParallel can carry out itself."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.matching import check_uncompressed

__all__ = ["HookState", "bucket_caps", "hook"]

_MIB = 2**20


@dataclass(frozen=True)
class HookState:
    """What the hook needs to know."""

    plan: FusionPlan
    process_group: dist.ProcessGroup | None = None

    def chunks(self, size_bytes: int) -> int:
        """Collectives for a bucket of this size: chunks as long as those of the plan's bucket next in size."""
        like = min(self.plan.buckets, key=lambda bucket: abs(bucket.size_bytes - size_bytes))
        return max(round(size_bytes * like.chunks / like.size_bytes), 1)


def hook(
    plan: FusionPlan, process_group: dist.ProcessGroup | None = None
) -> tuple[HookState, Callable[[HookState, Any], torch.futures.Future[Tensor]]]:
    """State and hook for `DistributedDataParallel.register_comm_hook(state, hook)`.

    DistributedDataParallel decides which gradients share a bucket before it calls a hook, so of a plan the
    hook can carry out only the chunks. Give it `bucket_caps(plan)` to come near the plan's buckets, or use
    `Reducer` or `parallel`, which carry out all of the plan.

    Raises:
        PlanError: The plan is inconsistent, or compresses gradients.
    """
    plan.check_itself()
    check_uncompressed(plan)
    return HookState(plan, process_group), _reduce


# DistributedDataParallel compares the annotations with the types, so they must not be strings.
def _reduce(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Mean of a bucket over the ranks, in chunks."""
    flat: Tensor = bucket.buffer()
    flat.div_(dist.get_world_size(state.process_group))
    futures = []
    for piece in flat.tensor_split(state.chunks(flat.nbytes)):
        if piece.numel():
            work = dist.all_reduce(piece, group=state.process_group, async_op=True)
            assert work is not None
            futures.append(work.get_future())
    return torch.futures.collect_all(futures).then(lambda _: flat)


def bucket_caps(plan: FusionPlan) -> dict[str, Any]:
    """Arguments of DistributedDataParallel that make its buckets those of the plan, or nearly.

    DistributedDataParallel closes a bucket once it holds its cap, in the order in which gradients got ready
    in the first step. Where it takes a cap for each bucket, its buckets are those of the plan from the second
    step on, if the plan keeps that order; where it takes a single cap, that is the median of the plan's.
    """
    sizes = [bucket.size_bytes / _MIB for bucket in plan.buckets]
    if "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters:
        return {"bucket_cap_mb_list": sizes}
    return {"bucket_cap_mb": sorted(sizes)[len(sizes) // 2]}
