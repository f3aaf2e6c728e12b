"""A model that trains on several ranks as its plan says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import changes
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.pools import Pools
from wirewise.runtime.data_parallel.reducer import Reducer, Until, Unused, transport_of
from wirewise.runtime.transport import Transport

__all__ = ["DataParallel", "parallel"]


def parallel(
    model: nn.Module,
    plan: FusionPlan,
    optimizer: torch.optim.Optimizer,
    process_group: dist.ProcessGroup | None = None,
    *,
    unused: Unused = "error",
    until: Until = "backward",
    collective: Callable[[Tensor], None] | None = None,
    compression: Compression | None = None,
    broadcast_buffers: bool = True,
    timeout_s: float = 120.0,
    store: Any = None,
) -> DataParallel:
    """The model with all that the plan decides; the training loop stays as it is on one rank.

    Parameters and buffers become those of rank 0. The loop calls the returned model, then `loss.backward()`,
    `plan.accumulation` times, then `optimizer.step()`.

    Args:
        model: Names of the plan are those of its parameters and modules.
        plan: The same on all ranks.
        optimizer: Of the model's parameters; its steps wait for the gradients.
        process_group: As of `Reducer`.
        unused: As of `Reducer`.
        until: As of `Reducer`.
        collective: As of `Reducer`.
        compression: As of `Reducer`.
        broadcast_buffers: Whether buffers, such as the statistics of BatchNorm, follow rank 0 at every step,
            as in DistributedDataParallel.
        timeout_s: As of `Reducer`.
        store: As of `Reducer`.

    Raises:
        PlanError: The plan does not fit the model or the group, or is not the same on all ranks.
        PeerError: A peer is gone.
    """
    transport = transport_of(process_group, timeout_s=timeout_s, store=store)
    reducer = partial(
        Reducer,
        model,
        process_group=transport,
        unused=unused,
        until=until,
        collective=collective,
        compression=compression,
    )
    wrapped = DataParallel(model, plan, transport, reducer, broadcast_buffers)
    wrapped.attach(optimizer)
    return wrapped


class DataParallel(nn.Module):
    """What `parallel` returns.

    A checkpoint of `state_dict()` is that of the model, the same on all ranks. What codecs remember is another one on
    each rank: `pools.state_dict()`.

    Args:
        module: The user's model.
        plan: The first plan.
        transport: The ranks.
        reducer: Makes a reducer for a plan.
        broadcast_buffers: Whether buffers follow rank 0 at every step.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: FusionPlan,
        transport: Transport,
        reducer: Callable[..., Reducer],
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__()
        self.module, self.transport, self.broadcast_buffers = module, transport, broadcast_buffers
        self._make = reducer
        self.reducer = reducer(plan=plan)
        self._undo = changes.apply(module, plan)
        transport.broadcast(dict([*module.named_parameters(), *module.named_buffers()]))

    @property
    def plan(self) -> FusionPlan:
        """The plan that is carried out."""
        return self.reducer.plan

    @property
    def pools(self) -> Pools:
        """What codecs remember on this rank."""
        return self.reducer.pools

    def use(self, plan: FusionPlan) -> None:
        """Go on with another plan, between two steps; what codecs remember stays; on an error the present plan does.

        Raises:
            PlanError: As of `parallel`.
        """
        present = self.reducer
        present.close()
        self._undo()
        try:
            self._undo = changes.apply(self.module, plan)
            self.reducer = self._make(plan=plan, pools=present.pools)
        except Exception:
            self._undo()
            self._undo = changes.apply(self.module, present.plan)
            present.open()
            raise

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the steps of an optimizer wait for the gradients, under this plan and all others."""
        optimizer.register_step_pre_hook(lambda *_: self.reducer.finish())

    def no_sync(self) -> AbstractContextManager[None]:
        """As `Reducer.no_sync`."""
        return self.reducer.no_sync()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's; under bfloat16 it computes in autocast, and floating outputs are float32 again."""
        # Nothing may come between the collectives of the step before.
        self.reducer.wait()
        first = self.reducer.synchronizes and self.training and torch.is_grad_enabled()
        if self.broadcast_buffers and first:
            buffers = dict(self.module.named_buffers())
            self.transport.broadcast(buffers, "the broadcast of the buffers", compared=True)
        if self.plan.precision == "float32":
            return self.module(*args, **kwargs)
        device = next(self.module.parameters()).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            result = self.module(*args, **kwargs)
        return _to_float32(result)


def _to_float32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_to_float32, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_to_float32, value))
    if isinstance(value, dict):
        return type(value)((key, _to_float32(item)) for key, item in value.items())
    return value
