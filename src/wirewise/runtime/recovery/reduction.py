"""Reduction of a step's gradients and buffers over the processes of one generation."""

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
from wirewise.runtime.alike import replace_in_groups
from wirewise.runtime.data_parallel import Compression, Pools, Reducer
from wirewise.runtime.points import notify_point
from wirewise.runtime.recovery.batches import shares_of
from wirewise.runtime.recovery.consistency import Updates
from wirewise.runtime.recovery.folds import OrderedFold
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.recovery.sync import DDP, Backward, Buckets, Fold, Sync, has_codecs
from wirewise.runtime.transport import Transport

if TYPE_CHECKING:
    from wirewise.runtime.recovery.sharding import ShardGroups

__all__ = ["Reduction", "ReductionConfig", "buckets_of", "default_plan", "pools_of"]

_NO_GRADIENT = (0, 0)


class ReductionConfig(NamedTuple):
    """Configuration of gradient reduction, and what outlives generations."""

    sync: Sync
    """Reduction strategy; a `Backward` has its plan."""
    pools: Pools | None = None
    """Error-feedback state. None without codecs."""
    shards: ShardGroups | None = None
    """FSDP2's shard groups, in which FSDP2 reduces. None if models are not sharded."""


class Reduction:
    """Gradient reduction in one generation.

    With fewer processes than shares, each process computes several shares of a step; gradients are averaged over all
    shares. Buffers, such as BatchNorm statistics, start equal for each share and follow the first one, so they are
    the same everywhere after a step.

    Args:
        way: Configuration of the reduction.
        model: The user's model.
        transport: Transport between the processes.
        shares: Number of shares of the global batch.

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
        self._parameters = list(model.parameters())
        self._standing: list[tuple[int, int]] | None = None
        sync = way.sync
        self._takes_zeros = isinstance(sync, Buckets) and sync.unused == "zeros"
        if isinstance(sync, Fold):
            self._fold = OrderedFold(model, shares, transport)
        elif isinstance(sync, DDP):
            self.model = DistributedDataParallel(model, broadcast_buffers=False)
        elif isinstance(sync, Backward):
            assert sync.plan is not None
            self._planned = sync.plan.buckets
        elif isinstance(sync, Buckets):
            plan = sync.plan or default_plan(model)
            plan = msgspec.structs.replace(plan, world_size=self._processes)
            self._reducer = Reducer(
                model, plan, transport, unused=sync.unused, compression=sync.compression, pools=way.pools
            )

    def begin(self, index: int) -> None:
        """Prepare for one of the own shares, by its index among them."""
        if index == 0:
            self._before = self._copies() if len(self.own) > 1 else []
        else:
            self._fill(self._before)
        # Gradients are None when a step begins.
        self._standing = None if index == 0 else [_standing(p) for p in self._parameters]

    def missing(self, index: int) -> Literal["", "all", "some"]:
        """Whether forward and backward of a share left gradients missing that the others wait for.

        Args:
            index: Index among the own shares.
        """
        if self._processes == 1 or self._fold is not None:
            return ""
        if self._reducer is not None and self._reducer.active:
            return "some"
        before = self._standing or [_NO_GRADIENT] * len(self._parameters)
        if all(_standing(p) == old for p, old in zip(self._parameters, before, strict=True)):
            return "" if self._takes_zeros else "all"
        if isinstance(self.model, DistributedDataParallel) and index == 0:
            # It would refuse the next batch for them, after an update with gradients that are not reduced.
            return "some" if any(p.requires_grad and p.grad is None for p in self._parameters) else ""
        return ""

    def share_context(self, index: int, updates: Updates | None) -> AbstractContextManager[None]:
        """Context of forward and backward of a share: only the last share's gradients are communicated.

        Args:
            index: Index among the own shares.
            updates: Updates to apply afterwards. None if the step is already committed and its batch is only
                recomputed.
        """
        last = index == len(self.own) - 1
        if last and self._planned and updates is not None:
            return updates.in_backward(self._reduce)
        if self._fold is not None or last or self._planned:
            return nullcontext()
        if self._reducer is not None:
            return self._reducer.no_sync()
        assert isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync()

    def end(self, index: int) -> None:
        """Accumulate the gradients and buffers of a share."""
        if self._fold is not None:
            self._fold.keep()
        if index == 0 and len(self.own) > 1:
            self._after = self._copies()

    def finish(self) -> None:
        """Average the gradients over all shares, and broadcast the buffers of the first.

        Raises:
            PeerError: A peer is gone.
        """
        if self._planned:
            return
        if self._fold is not None:
            self._fold.fold()
        elif self._reducer is not None:
            if self._takes_zeros and all(p.grad is None for p in self._parameters):
                self._reducer.add_nothing()
            self._reducer.finish()
        elif self._shards is not None:
            self._shards.complete_gradients(self._transport)
        if self._fold is None and self._processes < self._shares:
            # The mean was over processes.
            for parameter in self._bare.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self._processes / self._shares)
        self._settle_buffers()

    def _reduce(self, number: int, gradients: list[Tensor]) -> None:
        """Make the gradients of a bucket the mean over all shares, within back-propagation."""
        notify_point("bucket", number)
        names = self._planned[number].parameters
        if len(gradients) < len(names):
            raise InputError(
                f"{len(names) - len(gradients)} parameters of bucket {number}, {', '.join(names[:4])}, got no "
                "gradient; expected one for each: freeze those that are not used, or use "
                "sync=Buckets(unused='zeros')"
            )
        if number == len(self._planned) - 1:
            # Before the last update: a rank that has made all has all that belongs to the step.
            self._settle_buffers()

        def mean(_: list[str], flat: Tensor) -> Tensor:
            flat.div_(self._shares)
            self._transport.all_reduce(flat, f"the all-reduce of bucket {number}")
            return flat

        replace_in_groups(dict(zip(names, gradients, strict=True)), mean)

    def _settle_buffers(self) -> None:
        """Give all processes the buffers of the first share."""
        if len(self.own) > 1:
            self._fill(self._after)
        if buffers := dict(self._bare.named_buffers()):
            self._transport.broadcast(buffers, "the broadcast of the buffers", compared=True)

    def abandon(self) -> None:
        """Release the process group, which is gone or about to be."""
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


def _standing(parameter: nn.Parameter) -> tuple[int, int]:
    """Number that changes when a gradient is added to a parameter."""
    gradient = parameter.grad
    return _NO_GRADIENT if gradient is None else (id(gradient), gradient._version)


def pools_of(model: nn.Module, plan: FusionPlan | None, compression: Compression | None) -> Pools | None:
    """Error-feedback state of a plan's codecs. None if it has none."""
    if not has_codecs(plan):
        return None
    named = dict(model.named_parameters())
    sizes = {name: p.numel() for name, p in named.items()}
    shapes = {name: p.shape for name, p in named.items()}
    return Pools(sizes, compression, next(iter(named.values())).device, shapes=shapes)


def default_plan(model: nn.Module) -> FusionPlan:
    """Bucket parameters by the rule of DistributedDataParallel, from the last to the first."""
    sizes = {name: p.nbytes for name, p in reversed(list(model.named_parameters())) if p.requires_grad}
    names = list(sizes)
    groups = [[names[place] for place in group] for group in ddp_buckets(list(sizes.values()))]
    planned = [Bucket(parameters=tuple(group), size_bytes=sum(sizes[n] for n in group)) for group in groups]
    return FusionPlan(world_size=1, planner="by size", buckets=tuple(planned))


def buckets_of(state: TrainingState, plan: FusionPlan | None) -> list[list[nn.Parameter]]:
    """Parameters of each bucket; the last one includes untrained parameters of optimizers."""
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
