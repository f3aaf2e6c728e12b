"""Strategies of `protect(sync=...)`, by which the gradients of a protected training are reduced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from wirewise.errors import InputError
from wirewise.plans import FusionPlan
from wirewise.plans.recovery import Consistency

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from wirewise.runtime.data_parallel import Compression

__all__ = ["DDP", "Backward", "Buckets", "Fold", "Shards", "Sync", "check_sync", "has_codecs"]


@dataclass(frozen=True)
class Buckets:
    """Strategy that reduces gradients in wirewise's own buckets, each once full, and updates when all are reduced.

    Args:
        plan: Buckets and their codecs. Defaults to the buckets of DistributedDataParallel, without codecs.
        unused: Treatment of a parameter without gradient: "error", or "zeros" to count its gradient as zeros.
        compression: Options of the plan's codecs. Error-feedback state of a rank is kept in the memory of its host,
            where a spare of that host finds it.
        mirrored: Keep the error-feedback state on the next rank too, so that a spare of another host finds it when
            the host is lost. It is sent in every step.
        consistency: How an interrupted update is completed or undone (`Updates`).

    Raises:
        InputError: The arguments contradict each other.
    """

    plan: FusionPlan | None = None
    _: KW_ONLY
    unused: Literal["error", "zeros"] = "error"
    compression: Compression | None = None
    mirrored: bool = False
    consistency: Consistency = "auto"

    name: ClassVar[str] = "buckets"

    def __post_init__(self) -> None:
        _check_plan(self)
        _check_consistency(self)
        if self.unused not in ("error", "zeros"):
            raise InputError(f"got Buckets(unused={self.unused!r}); expected 'error' or 'zeros'")
        if has_codecs(self.plan):
            return
        if self.mirrored:
            raise InputError(
                "got mirrored=True and no plan with codecs; replicas hold all else, so leave it out"
            )
        if self.compression is not None:
            raise InputError(
                "got compression and no plan with codecs; expected such a plan, or leave compression out"
            )


@dataclass(frozen=True)
class DDP:
    """Strategy that reduces gradients by torch's DistributedDataParallel, whose model is `Training.model`.

    Args:
        consistency: How an interrupted update is completed or undone (`Updates`).

    Raises:
        InputError: The consistency is unknown.
    """

    _: KW_ONLY
    consistency: Consistency = "auto"

    name: ClassVar[str] = "ddp"
    plan: ClassVar[FusionPlan | None] = None

    def __post_init__(self) -> None:
        _check_consistency(self)


@dataclass(frozen=True)
class Fold:
    """Strategy that sums all shares of a batch in a fixed order, so that results do not depend on the number of ranks.

    Args:
        consistency: How an interrupted update is completed or undone (`Updates`).

    Raises:
        InputError: The consistency is unknown.
    """

    _: KW_ONLY
    consistency: Consistency = "auto"

    name: ClassVar[str] = "fold"
    plan: ClassVar[FusionPlan | None] = None

    def __post_init__(self) -> None:
        _check_consistency(self)


@dataclass(frozen=True)
class Backward:
    """Strategy that updates each bucket as soon as it is reduced, while back-propagation continues.

    Every trained parameter needs a gradient in each step.

    Args:
        plan: Buckets without codecs. Defaults to those of DistributedDataParallel.
        consistency: How an interrupted update is completed or undone (`Updates`).

    Raises:
        InputError: The plan has codecs, or the consistency is unknown.
    """

    plan: FusionPlan | None = None
    _: KW_ONLY
    consistency: Consistency = "auto"

    name: ClassVar[str] = "backward"

    def __post_init__(self) -> None:
        _check_plan(self)
        _check_consistency(self)
        if has_codecs(self.plan):
            raise InputError(
                "got Backward(plan) and a plan with codecs; expected one without codecs, or Buckets(plan)"
            )


@dataclass(frozen=True)
class Shards:
    """Strategy that shards parameters by torch's FSDP2, which also reduces gradients.

    The shard of a lost rank is copied from a replica. The model is called within `Training.step()` only.

    Args:
        shard: Function of the model and a mesh, of replicas by shards, that calls `fully_shard` on modules of the
            model and then on the model itself. It is called once, when this process has its role.
        replicas: Number of ranks that hold each shard, at least 2.

    Raises:
        InputError: `shard` is not callable, or `replicas` is below 2.
    """

    shard: Callable[[Any, DeviceMesh], object]
    replicas: int

    name: ClassVar[str] = "shards"
    plan: ClassVar[FusionPlan | None] = None
    # Every rank has its gradients before any updates, so an update that has begun can always be finished.
    consistency: ClassVar[Consistency] = "roll-forward"

    def __post_init__(self) -> None:
        if not callable(self.shard):
            raise InputError(
                f"got Shards({self.shard!r}); expected a function of model and mesh that calls fully_shard"
            )
        if self.replicas < 2:
            raise InputError(
                f"got replicas={self.replicas} with shard; expected 2 or more: a shard without replica is lost with "
                "its rank. Write checkpoints of FSDP2 yourself and start again from them, or protect the model "
                "unsharded"
            )


Sync: TypeAlias = Buckets | DDP | Fold | Backward | Shards
"""Strategy for reducing gradients."""


def check_sync(sync: object) -> None:
    """Raise unless the value is a strategy, for example if a class was passed in place of an object.

    Raises:
        InputError: The value is not an object of a class of `Sync`.
    """
    if not isinstance(sync, get_args(Sync)):
        names = ", ".join(f"{kind.__name__}(...)" for kind in get_args(Sync))
        raise InputError(f"got sync={sync!r}; expected one of {names} of wirewise.runtime.recovery")


def has_codecs(plan: FusionPlan | None) -> bool:
    """Whether a bucket of a plan is compressed."""
    return plan is not None and any(bucket.codec != "none" for bucket in plan.buckets)


def _check_plan(sync: Buckets | Backward) -> None:
    if sync.plan is not None and not isinstance(sync.plan, FusionPlan):
        raise InputError(
            f"got {type(sync).__name__}({type(sync.plan).__name__}); expected a FusionPlan, such as "
            "wirewise.plans.load reads, or none"
        )


def _check_consistency(sync: Buckets | DDP | Fold | Backward) -> None:
    if sync.consistency not in get_args(Consistency):
        raise InputError(
            f"consistency is {sync.consistency!r}; expected one of {', '.join(get_args(Consistency))}"
        )
