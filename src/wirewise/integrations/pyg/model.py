"""Makes the distributed copy of a user's model."""

from __future__ import annotations

import copy
import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.nn import MessagePassing

from wirewise.errors import InputError
from wirewise.integrations.pyg import losses
from wirewise.integrations.pyg.convolution import HaloConvolution
from wirewise.integrations.pyg.norms import looks_at_all_nodes, spread
from wirewise.integrations.pyg.probe import prove
from wirewise.integrations.pyg.view import GraphView
from wirewise.runtime import full_graph
from wirewise.runtime.data_parallel import Reducer
from wirewise.runtime.data_parallel.hooks import WeakHook

if TYPE_CHECKING:
    from wirewise.integrations.pyg.job import Job

__all__ = ["distributed_copy"]


def distributed_copy(model: nn.Module, job: Job, view: GraphView, first_layer: int) -> tuple[nn.Module, int]:
    """A copy of `model` that shares its parameters and runs on all ranks; the model itself stays as it is.

    Args:
        model: Model of the user.
        job: Job of the distributed graph.
        view: What this rank holds.
        first_layer: Number of the first convolution's exchange.

    Returns:
        The copy, and the number of its convolutions.

    Raises:
        InputError: The model has no convolution, or a module that cannot be carried out on ranks.
    """
    _refuse_wrapped(model)
    twin = _twin(model)
    found = [name for name, module in twin.named_modules() if isinstance(module, MessagePassing)]
    if not found:
        raise InputError(
            f"{type(model).__name__} has no torch_geometric.nn.MessagePassing module; nothing can be distributed"
        )
    if found[0] == "":
        raise InputError(
            f"{type(model).__name__} is a convolution itself; expected a module that holds convolutions, such as "
            "torch_geometric.nn.Sequential"
        )
    halo = {
        name: HaloConvolution(twin.get_submodule(name), name, first_layer + n, view)
        for n, name in enumerate(found)
    }
    for name, module in twin.named_modules():
        if looks_at_all_nodes(module):
            spread(module, name, view, of_edges=any(name.startswith(conv + ".") for conv in found))
    for name, conv in halo.items():
        twin.get_submodule(name).forward = conv  # type: ignore[assignment]
    _Step(twin, job, view)
    return twin, len(found)


def _refuse_wrapped(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch._dynamo.OptimizedModule) or getattr(module, "_compiled_call_impl", None):
            raise InputError(
                f"{name or type(model).__name__} is compiled already; expected a plain module: compile what "
                "job.distribute returns"
            )
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            raise InputError(f"{name or 'the model'} is a {type(module).__name__}; give the module inside it")
        if "_wirewise_step" in vars(module):
            raise InputError(
                f"{name or type(model).__name__} is distributed already; give job.distribute the model that it came "
                "from"
            )


def _twin(model: nn.Module) -> nn.Module:
    """A copy of the modules that holds the same parameters and buffers."""
    shared: dict[int, Any] = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    try:
        return copy.deepcopy(model, shared)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied ({error}); expected a module that copy.deepcopy takes"
        ) from error


class _Step:
    """Takes the place of the copy's forward, begins exchange epochs and sums gradients over ranks."""

    def __init__(self, twin: nn.Module, job: Job, view: GraphView) -> None:
        self.twin, self.job, self.view = twin, job, view
        self.proven: set[tuple[bool, bool]] = set()
        self.steps = 0
        job.transport.broadcast(dict([*twin.named_parameters(), *twin.named_buffers()]))
        self.names = dict(twin.named_parameters())
        self.trained = {name for name, parameter in self.names.items() if parameter.requires_grad}
        self.kinds = [(t.dtype, t.device) for t in twin.parameters()]
        self.reducer = full_graph.gradient_reducer(
            twin, job.transport, scale="mean", bits=job.exchange.mode.gradient_bits
        )
        self.before: dict[nn.Parameter, Tensor] = {}
        """Gradients of back-propagations before, summed over ranks already, while another one goes on."""
        self.reached: set[nn.Parameter] = set()
        """Parameters that this back-propagation has given a gradient on this rank."""
        reach = WeakHook(self._reach)
        for parameter in self.names.values():
            parameter._wirewise_distributed = True  # type: ignore[attr-defined]
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(reach)
        # The class's own forward, not a method bound to this copy: torch.func calls it with other parameters.
        self.call = type(twin).forward
        object.__setattr__(twin, "_wirewise_step", self)
        twin.forward = torch._dynamo.disable(functools.partial(self.forward))  # type: ignore[method-assign]
        for module in twin.modules():
            if module is not twin:
                module.register_forward_pre_hook(self._inside_only)

    def __deepcopy__(self, memo: Any) -> Any:
        raise InputError(
            "a distributed model cannot be copied; copy the model that it came from, which has the same parameters"
        )

    def _inside_only(self, module: nn.Module, _: Any) -> None:
        if not self.view.inside:
            raise InputError(
                f"a {type(module).__name__} of a distributed model was called outside the model's forward, where its "
                "gradient could not be weighed among ranks; call the model itself, or the one that it came from"
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Output of the user's model for own nodes."""
        if self.view.inside:
            return self.call(self.twin, *args, **kwargs)
        self._check_parameters()
        self._check_arguments(args, kwargs)
        exchange = self.job.exchange
        self.view.inside = True
        try:
            key = (self.twin.training, self.twin.training and torch.is_grad_enabled())
            if key[:1] not in {p[:1] for p in self.proven}:
                exchange.training = False
                prove(self.twin, self.view, args, kwargs)
                self.proven.add(key)
            exchange.training = self.twin.training and torch.is_grad_enabled()
            if exchange.training:
                self.job.bits.before_epoch(self.steps)
                exchange.epoch = self.steps
                self.steps += 1
            out = self.call(self.twin, *args, **kwargs)
        finally:
            self.view.inside = False
        contract = self.job.contract
        return losses.weigh(out, losses.Output(contract, contract.train_mask, self._begin))

    def _begin(self) -> None:
        """Prepare for a back-propagation, at the first output that it reaches."""
        if self.reducer.active:
            return
        for parameter in self.twin.parameters():
            other = getattr(parameter, "_wirewise_busy", lambda: None)()
            if other is not None and other.active and other is not self.reducer:
                raise InputError(
                    "two distributed models with the same parameters are in one loss; distribute the model once"
                )
            # Parameters are shared with the user's model, which may outlive this copy.
            parameter._wirewise_busy = weakref.ref(self.reducer)  # type: ignore[attr-defined]
        self.reached.clear()
        trained = (self.names[name] for name in self.trained)
        self.before = {p: p.grad.clone() for p in trained if p.grad is not None}
        self.reducer.begin()
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _reach(self, parameter: nn.Parameter) -> None:
        if self.reducer.active:
            self.reached.add(parameter)

    def _finish(self) -> None:
        self.reducer.finish()
        for parameter, gradient in self.before.items():
            parameter.grad.add_(gradient)  # type: ignore[union-attr]
        parameters = list(self.names.values())
        reached = torch.tensor([parameter in self.reached for parameter in parameters], dtype=torch.int64)
        self.job.transport.all_reduce(reached, "parameters that have a gradient")
        for parameter, ranks in zip(parameters, reached.tolist(), strict=True):
            # A gradient of zeros is not none: optimizers decay what has one.
            if not ranks and parameter.requires_grad and parameter not in self.before:
                parameter.grad = None
        self.before = {}
        if not int(reached.sum()):
            raise InputError(
                "no parameter of the distributed model was given a gradient, as by torch.autograd.grad, which returns "
                "the part of this rank only; expected loss.backward(), after which p.grad holds the sums over ranks"
            )

    def _check_parameters(self) -> None:
        now = dict(self.twin.named_parameters())
        if self.kinds != [(t.dtype, t.device) for t in now.values()]:
            raise InputError(
                "parameters changed their type or device after job.distribute; call .double(), .half() or .to() "
                "before it"
            )
        for name, parameter in now.items():
            if parameter is not self.names.get(name) or parameter.requires_grad != (name in self.trained):
                raise InputError(
                    f"{name} was replaced, frozen or made trainable after job.distribute, which gathers the gradients "
                    "of what it was given; change the model that this one came from, and distribute that again"
                )
            if _has_hooks(parameter):
                raise InputError(
                    f"{name} has a hook, which would see the gradient of one rank before it is summed over ranks; "
                    "expected no Tensor.register_hook and no register_post_accumulate_grad_hook on parameters: read "
                    "or change p.grad after backward()"
                )

    def _check_arguments(self, args: Any, kwargs: Any) -> None:
        for value in pytree.tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and torch.is_grad_enabled() and value.requires_grad:
                raise InputError(
                    "the distributed model got a tensor that requires a gradient, which no rank could weigh; put "
                    "the module that made it into the model"
                )


def _has_hooks(parameter: nn.Parameter) -> bool:
    """Whether something of the user's looks at gradients of the parameter while they come."""
    after = parameter._post_accumulate_grad_hooks or {}  # type: ignore[attr-defined]
    return bool(parameter._backward_hooks) or any(
        not isinstance(hook, WeakHook) or hook.owner not in (_Step, Reducer) for hook in after.values()
    )
