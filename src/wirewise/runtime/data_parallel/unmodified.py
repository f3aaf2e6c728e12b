"""Execution of a plan in an unmodified script, in place of DistributedDataParallel.

The class is replaced in every rank before the script imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn

from wirewise import plans
from wirewise.errors import PlanError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.parallel import DataParallel
from wirewise.runtime.data_parallel.reducer import Reducer, Unused
from wirewise.runtime.transport import transport_of

__all__ = ["is_for", "load_plan", "replace_wrapper", "wrap_ddp"]


def load_plan(path: str) -> FusionPlan:
    """Read the plan of a script's gradients.

    Raises:
        PlanError: The file holds no fusion plan.
    """
    plan = plans.load(path)
    if not isinstance(plan, FusionPlan):
        raise PlanError(
            f"{path} holds a {plan.family} plan; expected a fusion plan, as `wirewise plan fusion` makes"
        )
    return plan


def replace_wrapper(base: type, **attributes: Any) -> None:
    """Replace DistributedDataParallel by a subclass of `base`, wherever a script imports it from.

    Args:
        base: Wrapper that takes the arguments of DistributedDataParallel.
        **attributes: Attributes of the subclass.
    """
    replacement: Any = type("DistributedDataParallel", (base,), attributes)
    nn.parallel.DistributedDataParallel = replacement  # type: ignore[misc]
    nn.parallel.distributed.DistributedDataParallel = replacement  # type: ignore[misc]


def wrap_ddp(
    plan: FusionPlan,
    compression: Compression | None = None,
    begun: Callable[[DataParallel], None] = lambda _: None,
    *,
    skip_others: bool = False,
) -> None:
    """Replace DistributedDataParallel by a wrapper that executes this plan.

    Args:
        plan: Plan of every wrapped model.
        compression: Options of the plan's codecs.
        begun: Called with each model once it is wrapped.
        skip_others: Leave models that do not match the plan to DistributedDataParallel, instead of raising.
    """
    kept = nn.parallel.DistributedDataParallel if skip_others else None
    replace_wrapper(
        _Planned, fusion_plan=plan, compression=compression, begun=staticmethod(begun), wrapper_of_others=kept
    )


def is_for(plan: FusionPlan, model: nn.Module) -> bool:
    """Whether a plan has the trained parameters of a model, with the same total bytes."""
    trained = {name: p.numel() * p.element_size() for name, p in model.named_parameters() if p.requires_grad}
    return set(plan.parameters) == trained.keys() and plan.size_bytes == sum(trained.values())


class _Planned(DataParallel):
    """Takes the arguments of DistributedDataParallel; those about its own buckets have no meaning here."""

    fusion_plan: FusionPlan
    compression: Compression | None
    begun: Callable[[DataParallel], None]
    wrapper_of_others: type[nn.Module] | None = None
    # A model that torch's own class wraps looks for it here, as this class has its name.
    _active_ddp_module: Any = None

    def __new__(cls, module: nn.Module, *args: Any, **options: Any) -> Any:
        """The planned model, or for one that the plan is not for what DistributedDataParallel makes of it."""
        if cls.wrapper_of_others is not None and not is_for(cls.fusion_plan, module):
            return cls.wrapper_of_others(module, *args, **options)
        return super().__new__(cls)

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        **_others: Any,
    ) -> None:
        transport = transport_of(process_group)
        unused: Unused = "zeros" if find_unused_parameters else "error"
        make = partial(Reducer, module, process_group=transport, unused=unused, compression=self.compression)
        super().__init__(module, self.fusion_plan, transport, make, broadcast_buffers)
        self.begun(self)
