"""A model that trains on several ranks as its plan says."""

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
    """A training step that can be captured as one graph, which a plan with regions needs (DisCo, TPDS 2022)."""

    loss: Callable[[nn.Module, Any], Tensor]
    """`loss(model, batch)`, a scalar; it calls the model, and computes with the tensors of both and no others."""
    batch: Any
    """Any nest of tensors; under regions all batches have its shapes."""
    compiler: Literal["inductor", "none"] = "inductor"
    """What makes a region one kernel; see `compile_step`."""
    rest: Literal["eager", "compiled"] = "eager"
    """How operators in no region run; see `compile_step`."""


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
    """The model with all that the plan decides; the training loop stays as it is on one rank.

    Parameters and buffers become those of rank 0. The loop calls the returned model, then `loss.backward()`,
    `plan.accumulation` times, then `optimizer.step()`. With `step` it may call `model.step(batch)` in place of the
    first two under every plan, and must where the plan has regions.

    Args:
        model: Names of the plan are those of its parameters and modules.
        plan: Plan that is the same on all ranks. All of it is carried out; regions go together with chunks only.
        optimizer: Optimizer of the model's parameters; its steps wait for the gradients.
        process_group: Group of gloo or NCCL, or its transport; none: the default group.
        step: The loss and an example batch, for `model.step`.
        unused: What to do with a parameter without gradient, "error" or "zeros" (see `Reducer`).
        until: When gradients must be there, "backward" or "step" (see `Reducer`).
        collective: Function that sums a flat tensor over all ranks in place, instead of the group's all-reduce.
        compression: How the codecs of the plan are used.
        broadcast_buffers: Whether buffers, such as the statistics of BatchNorm, follow rank 0 at every step,
            as in DistributedDataParallel.
        timeout_s: Seconds to wait for a bucket. A group of NCCL keeps to its own timeout.
        store: A torch store that all ranks share, for a group that is not the default one.

    Raises:
        PlanError: The plan does not fit the model or the group, is not the same on all ranks, or has regions next to
            decisions that a captured step cannot carry out, or without `step`; the message names the fields.
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
    """What `parallel` returns.

    A checkpoint of `state_dict()` is that of the model, the same on all ranks. What codecs remember is another one on
    each rank: `pools.state_dict()`.

    Args:
        module: The user's model.
        plan: The first plan.
        transport: Transport between the ranks.
        reducer: Makes a reducer for a plan.
        broadcast_buffers: Whether buffers follow rank 0 at every step.
        step: Loss and example batch, for `step`.
        capture: Makes the compiled step of a plan with regions; none: such plans are refused.
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
        """The plan that is carried out."""
        return self.reducer.plan

    @property
    def pools(self) -> Pools:
        """What codecs remember on this rank."""
        return self.reducer.pools

    def use(self, plan: FusionPlan) -> None:
        """Go on with another plan, between two steps; what codecs remember stays; on an error the present plan does.

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
        """Let the steps of an optimizer wait for the gradients, under this plan and all others."""
        optimizer.register_step_pre_hook(lambda *_: self.reducer.finish())

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Refuse a communication hook of DistributedDataParallel: the plan is what carries gradients here.

        Raises:
            InputError: Always; the message names the hook.
        """
        raise InputError(
            f"the script registers the communication hook {getattr(hook, '__name__', hook)!r}, in whose place the plan "
            f"by {self.plan.planner!r} carries gradients; leave the hook away, or train with it and without a plan"
        )

    def no_sync(self) -> AbstractContextManager[None]:
        """Leave gradients unsummed inside, as `Reducer.no_sync` does.

        Raises:
            PlanError: The plan has regions, whose step reduces gradients each time.
        """
        if self._compiled is not None:
            raise PlanError(
                f"the plan by {self.plan.planner!r} has regions; a captured step reduces its gradients each time and "
                "adds none up: leave no_sync away, or plan without regions"
            )
        return self.reducer.no_sync()

    def step(self, batch: Any) -> Tensor:
        """Forward, loss and back-propagation under any plan; returns the loss of this rank's batch, detached.

        Gradients add up to those that are there, as in a loop of one's own; under regions they replace them.

        Raises:
            InputError: There is no `step` to do so, or under regions the batch has other shapes than the example, or
                the model is in another mode.
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
        """Output of the model; under bfloat16 it computes in autocast, and floating outputs are float32 again.

        Raises:
            PlanError: The plan has regions, and gradients are asked for in the mode that its step was captured in.
        """
        if self._compiled is not None and torch.is_grad_enabled() and self._compiled.carries_out(self.module):
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
