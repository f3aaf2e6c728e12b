"""Gradients and buffers of a step, brought together over the processes of one generation."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wirewise.errors import InputError
from wirewise.plans import Bucket, FusionPlan
from wirewise.plans.fusion import ddp_buckets
from wirewise.runtime.alike import alike_groups
from wirewise.runtime.data_parallel import Compression, Pools, Reducer
from wirewise.runtime.points import reach
from wirewise.runtime.recovery.batches import shares_of
from wirewise.runtime.recovery.consistency import Updates
from wirewise.runtime.recovery.folds import OrderedFold
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.transport import Transport

if TYPE_CHECKING:
    from wirewise.runtime.recovery.sharding import Shards

__all__ = ["Reduction", "ReductionConfig", "Through", "buckets_of", "default_plan", "pools_of"]

Through = Literal["buckets", "ddp", "fold", "backward"]


class ReductionConfig(NamedTuple):
    """How gradients are reduced; arguments as in `protection.protect`."""

    through: Through
    plan: FusionPlan | None
    compression: Compression | None
    pools: Pools | None
    """What codecs remember, which outlives generations; None without codecs."""
    unused: Literal["error", "zeros"]
    shards: Shards | None = None
    """Shards of FSDP2, which then reduces; None: models are whole."""


class Reduction:
    """The reduction of one generation.

    With fewer processes than shares each computes several shares of a step; they add up, and the mean is that over all
    shares. Buffers, such as the statistics of BatchNorm, start alike for each share and follow the first one, so they
    are the same everywhere after a step.

    Args:
        way: How gradients are reduced.
        model: The user's model.
        transport: Transport between the processes.
        shares: Shares of the global batch.

    Attributes:
        model: Model to call.
        own: Shares that this process computes.

    Raises:
        PeerError: A peer is gone.
    """

    def __init__(self, way: ReductionConfig, model: nn.Module, transport: Transport, shares: int) -> None:
        self.model, self._bare, self._transport = model, model, transport
        self._shares, self._processes = shares, transport.world_size
        self.own = shares_of(transport.rank, self._processes, shares)
        self._reducer: Reducer | None = None
        self._fold: OrderedFold | None = None
        self._shards = way.shards
        self._planned: tuple[Bucket, ...] = ()
        self._before: list[Tensor] = []
        self._after: list[Tensor] = []
        if way.shards is not None:
            return
        if way.through == "fold":
            self._fold = OrderedFold(model, shares, transport)
        elif way.through == "ddp":
            self.model = DistributedDataParallel(model, broadcast_buffers=False)
        elif way.through == "backward":
            assert way.plan is not None
            self._planned = way.plan.buckets
        else:
            plan = way.plan or default_plan(model)
            plan = msgspec.structs.replace(plan, world_size=self._processes)
            self._reducer = Reducer(
                model, plan, transport, unused=way.unused, compression=way.compression, pools=way.pools
            )

    def begin(self, place: int) -> None:
        """Prepare for one of the own shares, by its place among them."""
        if place == 0:
            self._before = self._copies() if len(self.own) > 1 else []
        else:
            self._fill(self._before)

    def during(self, place: int, updates: Updates | None) -> AbstractContextManager[None]:
        """Context of forward and backward of a share: only the last one's gradients travel.

        Args:
            place: Place among the own shares.
            updates: Updates that follow; None: the step is committed, and its batch is computed once more.
        """
        last = place == len(self.own) - 1
        if last and self._planned and updates is not None:
            return updates.in_backward(self._reduce)
        if self._fold is not None or last or self._planned:
            return nullcontext()
        if self._reducer is not None:
            return self._reducer.no_sync()
        assert isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync()

    def end(self, place: int) -> None:
        """Take in what a share computed."""
        if self._fold is not None:
            self._fold.keep()
        if place == 0 and len(self.own) > 1:
            self._after = self._copies()

    def finish(self) -> None:
        """Give all processes the mean gradient over all shares, and the buffers of the first.

        Raises:
            PeerError: A peer is gone.
        """
        if self._planned:
            return
        if self._fold is not None:
            self._fold.fold()
        elif self._reducer is not None:
            self._reducer.finish()
        elif self._shards is not None:
            self._shards.settle(self._transport)
        if self._fold is None and self._processes < self._shares:
            # The mean was over processes.
            for parameter in self._bare.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self._processes / self._shares)
        self._settle_buffers()

    def _reduce(self, number: int, gradients: list[Tensor]) -> None:
        """Make the gradients of a bucket the mean over all shares, within back-propagation."""
        reach("bucket", number)
        names = self._planned[number].parameters
        if len(gradients) < len(names):
            raise InputError(
                f"{len(names) - len(gradients)} parameters of bucket {number}, {', '.join(names[:4])}, got no "
                "gradient; expected one for each: freeze those that are not used, or use through='buckets' and "
                "unused='zeros'"
            )
        if number == len(self._planned) - 1:
            # Before the last update: a rank that has made all has all that belongs to the step.
            self._settle_buffers()
        named = dict(zip(names, gradients, strict=True))
        for alike in alike_groups(named):
            group = [named[name] for name in alike]
            flat = torch.cat([gradient.reshape(-1) for gradient in group]).div_(self._shares)
            self._transport.all_reduce(flat, f"the all-reduce of bucket {number}")
            for gradient, part in zip(group, flat.split([g.numel() for g in group]), strict=True):
                gradient.copy_(part.view(gradient.shape))

    def _settle_buffers(self) -> None:
        """Give all processes the buffers of the first share."""
        if len(self.own) > 1:
            self._fill(self._after)
        if buffers := dict(self._bare.named_buffers()):
            self._transport.broadcast(buffers, "the broadcast of the buffers", compared=True)

    def abandon(self) -> None:
        """Let go of the process group, which is gone or about to be."""
        if self._reducer is not None:
            self._reducer.abandon()
        if self.model is not self._bare:
            self.model = self._bare
            # DistributedDataParallel is part of a cycle, and holds connections.
            gc.collect()

    def _copies(self) -> list[Tensor]:
        return [buffer.detach().clone() for buffer in self._bare.buffers()]

    @torch.no_grad()
    def _fill(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self._bare.buffers(), values, strict=True):
            buffer.copy_(value)


def pools_of(model: nn.Module, plan: FusionPlan | None, compression: Compression | None) -> Pools | None:
    """Memory of the codecs of a plan; None where it has none."""
    if plan is None or all(bucket.codec == "none" for bucket in plan.buckets):
        return None
    named = dict(model.named_parameters())
    sizes = {name: p.numel() for name, p in named.items()}
    shapes = {name: p.shape for name, p in named.items()}
    return Pools(sizes, compression, next(iter(named.values())).device, shapes=shapes)


def default_plan(model: nn.Module) -> FusionPlan:
    """Buckets by the rule of DistributedDataParallel, from the last parameter to the first."""
    sizes = {name: p.nbytes for name, p in reversed(list(model.named_parameters())) if p.requires_grad}
    names = list(sizes)
    groups = [[names[place] for place in group] for group in ddp_buckets(list(sizes.values()))]
    planned = [Bucket(parameters=tuple(group), size_bytes=sum(sizes[n] for n in group)) for group in groups]
    return FusionPlan(world_size=1, planner="by size", buckets=tuple(planned))


def buckets_of(state: TrainingState, plan: FusionPlan | None) -> list[list[nn.Parameter]]:
    """Parameters of each bucket; the last one has those of optimizers that are not trained too."""
    assert plan is not None
    named = dict(state.model.named_parameters())
    if unknown := [name for bucket in plan.buckets for name in bucket.parameters if name not in named]:
        raise InputError(
            f"the plan has the parameters {unknown[:4]}, which the model has not; plan for this model"
        )
    found = [[named[name] for name in bucket.parameters] for bucket in plan.buckets]
    held = {p for one in state.optimizers for group in one.param_groups for p in group["params"]}
    found[-1] += [p for p in named.values() if p in held and not p.requires_grad]
    return found
