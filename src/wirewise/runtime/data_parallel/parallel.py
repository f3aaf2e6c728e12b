"""Model trained data-parallel under a plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.errors import InputError, PlanError
from wirewise.log import logger
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import changes
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.matching import check_capturable
from wirewise.runtime.data_parallel.pools import Pools
from wirewise.runtime.data_parallel.reducer import Reducer, Until, Unused
from wirewise.runtime.transport import Transport, transport_of

if TYPE_CHECKING:
    from wirewise.runtime.data_parallel.compiled import CompiledStep

__all__ = ["DataParallel", "TrainingStep", "parallel"]

_log = logger("data_parallel")


class TrainingStep(NamedTuple):
    """Training step that can be captured as one graph, which a plan with regions needs (DisCo, TPDS 2022)."""

    loss: Callable[[nn.Module, Any], Tensor]
    """`loss(model, batch)`, a scalar; it calls the model, and uses no tensors other than those of model and batch."""
    batch: Any
    """Example batch, any pytree of tensors; with regions, all batches must have its shapes."""
    compiler: Literal["inductor", "none"] = "inductor"
    """Compiler of regions; see `compile_step`."""
    rest: Literal["eager", "compiled"] = "eager"
    """Execution of operators outside regions; see `compile_step`."""


def parallel(
    model: nn.Module,
    plan: FusionPlan,
    optimizer: torch.optim.Optimizer,
    process_group: dist.ProcessGroup | Transport | None = None,
    *,
    step: TrainingStep | None = None,
    unused: Unused = "error",
    until: Until = "backward",
    collective: Callable[[Tensor], None] | None = None,
    compression: Compression | None = None,
    broadcast_buffers: bool = True,
    timeout_s: float = 120.0,
    store: Any = None,
) -> DataParallel:
    """Wrap a model to train under a plan; the training loop stays the same as on one rank.

    Parameters and buffers become those of rank 0. The loop calls the returned model, then `loss.backward()`,
    `plan.accumulation` times, then `optimizer.step()`. With `step` it may call `model.step(batch)` in place of the
    first two under every plan, and must where the plan has regions.

    Args:
        model: Model whose parameters and modules are named by the plan.
        plan: Plan that is the same on all ranks. All of it is executed; regions can be combined with chunks only.
        optimizer: Optimizer of the model's parameters; its steps wait for the gradients.
        process_group: Process group of gloo or NCCL, or its transport. Defaults to the default group.
        step: Loss and example batch, for `model.step`.
        unused: Handling of a parameter without gradient, "error" or "zeros" (see `Reducer`).
        until: When gradients must be available, "backward" or "step" (see `Reducer`).
        collective: Function that sums a flat tensor over all ranks in place, instead of the group's all-reduce.
        compression: Options of the plan's codecs.
        broadcast_buffers: Whether to broadcast buffers, such as BatchNorm statistics, from rank 0 at every step, as
            in DistributedDataParallel.
        timeout_s: Timeout of a bucket, in seconds. An NCCL group has its own timeout.
        store: Torch store shared by all ranks, for a group that is not the default one.

    Raises:
        PlanError: The plan does not fit the model or the group, differs between ranks, or has regions with decisions
            that a captured step cannot execute, or without `step`; the message names the fields.
        InputError: The step cannot be captured.
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
    capture = step and partial(_captured, model, step, transport, collective, broadcast_buffers)
    wrapped = DataParallel(model, plan, transport, reducer, broadcast_buffers, step, capture)
    wrapped.attach(optimizer)
    return wrapped


class DataParallel(nn.Module):
    """Model wrapped by `parallel`.

    A checkpoint of `state_dict()` is that of the model, the same on all ranks. Error-feedback state differs between
    ranks and is in `pools.state_dict()`.

    Args:
        module: The user's model.
        plan: Plan to begin with.
        transport: Transport between the ranks.
        reducer: Function that makes a reducer for a plan.
        broadcast_buffers: Whether to broadcast buffers from rank 0 at every step.
        step: Loss and example batch, for `step`.
        capture: Function that makes the compiled step of a plan with regions. None to refuse such plans.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: FusionPlan,
        transport: Transport,
        reducer: Callable[..., Reducer],
        broadcast_buffers: bool = True,
        step: TrainingStep | None = None,
        capture: Callable[[FusionPlan], CompiledStep] | None = None,
    ) -> None:
        super().__init__()
        self.module, self.transport, self.broadcast_buffers = module, transport, broadcast_buffers
        self._make, self._step, self._capture = reducer, step, capture
        self._compiled: CompiledStep | None = None
        self._check_regions(plan)
        self.reducer = reducer(plan=plan, alone=False)
        self._undo: Callable[[], None] = lambda: None
        try:
            self._undo = changes.apply(module, plan)
            transport.broadcast(dict([*module.named_parameters(), *module.named_buffers()]))
            self._compiled = self._compile(plan)
        except Exception:
            # The model is the user's, who may try another plan.
            self._undo()
            self.reducer.close()
            raise

    @property
    def plan(self) -> FusionPlan:
        """Current plan."""
        return self.reducer.plan

    @property
    def pools(self) -> Pools:
        """Error-feedback state on this rank."""
        return self.reducer.pools

    def use(self, plan: FusionPlan) -> None:
        """Switch to another plan between two steps, keeping error-feedback state; on an error the current plan stays.

        Raises:
            PlanError: The plan does not fit the model or the group; the message names the fields.
        """
        self._check_regions(plan)
        present = self.reducer
        present.close()
        self._undo()
        try:
            self._undo = changes.apply(self.module, plan)
            compiled = self._compile(plan)
            self.reducer = self._make(plan=plan, pools=present.pools, alone=False)
            self._compiled = compiled
            _log.info("goes on with the plan of %s, %d buckets", plan.planner, len(plan.buckets))
        except Exception:
            self._undo()
            self._undo = changes.apply(self.module, present.plan)
            present.open()
            raise

    def _check_regions(self, plan: FusionPlan) -> None:
        if not plan.regions:
            return
        check_capturable(plan)
        if self._capture is None:
            raise PlanError(
                f"the plan by {plan.planner!r} has regions, which need the whole step as a graph; give parallel(..., "
                "step=TrainingStep(loss, example_batch)) and call model.step(batch), or plan without regions"
            )

    def _compile(self, plan: FusionPlan) -> CompiledStep | None:
        return self._capture(plan) if plan.regions and self._capture is not None else None

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the steps of an optimizer wait for the gradients, under this plan and all later ones."""
        optimizer.register_step_pre_hook(lambda *_: self.reducer.finish())

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Refuse a DistributedDataParallel communication hook, as the plan defines gradient communication here.

        Raises:
            InputError: Always; the message names the hook.
        """
        raise InputError(
            f"the script registers the communication hook {getattr(hook, '__name__', hook)!r}, in whose place the plan "
            f"by {self.plan.planner!r} carries gradients; leave the hook away, or train with it and without a plan"
        )

    def no_sync(self) -> AbstractContextManager[None]:
        """Skip gradient reduction inside the context, as `Reducer.no_sync` does.

        Raises:
            PlanError: The plan has regions, whose step always reduces gradients.
        """
        if self._compiled is not None:
            raise PlanError(
                f"the plan by {self.plan.planner!r} has regions; a captured step reduces its gradients each time and "
                "adds none up: leave no_sync away, or plan without regions"
            )
        return self.reducer.no_sync()

    def step(self, batch: Any) -> Tensor:
        """Run forward, loss and backward under any plan; returns the detached loss of this rank's batch.

        Gradients accumulate, as in a custom loop; under regions they replace earlier ones.

        Raises:
            InputError: There is no `step`, or under regions the batch has other shapes than the example, or the model
                is in another mode.
            PeerError: A peer is gone.
        """
        if self._compiled is not None:
            return self._compiled(batch)
        if self._step is None:
            raise InputError(
                "step(batch) needs the loss; give parallel(..., step=TrainingStep(loss, example_batch)), or call the "
                "model and loss.backward()"
            )
        loss = self._step.loss(self, batch)
        loss.backward()
        return loss.detach()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; under bfloat16 in autocast, with floating-point outputs converted back to float32.

        Raises:
            PlanError: The plan has regions, and gradients are enabled in the mode in which its step was captured.
        """
        if (
            self._compiled is not None
            and torch.is_grad_enabled()
            and self._compiled.supports_mode(self.module)
        ):
            raise PlanError(
                f"the plan by {self.plan.planner!r} has regions, which a call of the model does not carry out; call "
                "loss = model.step(batch) in place of it and of loss.backward(), or evaluate under torch.no_grad()"
            )
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


def _captured(
    model: nn.Module,
    step: TrainingStep,
    transport: Transport,
    collective: Callable[[Tensor], None] | None,
    broadcast_buffers: bool,
    plan: FusionPlan,
) -> CompiledStep:
    """The step of a plan with regions as one compiled graph."""
    # torch's compiler takes a second to import.
    from wirewise.runtime.data_parallel.compiled import compile_step

    return compile_step(
        model,
        step.loss,
        step.batch,
        plan,
        transport,
        compiler=step.compiler,
        rest=step.rest,
        collective=collective,
        broadcast_buffers=broadcast_buffers,
    )


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
