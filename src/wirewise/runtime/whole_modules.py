"""Modules that a tracer cannot trace, captured as one operator forward and one backward that run the module itself."""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor
from torch.func import functional_call
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.runtime.python_state import PythonState, refuse_changes
from wirewise.runtime.refusals import user_code_line

__all__ = ["WholeModules"]

_NUMBERS = itertools.count()
_TENSOR = object()
_CONSTANTS = (type(None), bool, int, float, str, torch.dtype)
_STATE_BYTES = len(torch.get_rng_state())
_DEVICE_STATE_BYTES = 16
"""Bytes of a GPU's state: a seed and an offset."""
_TWICE = "it runs on every rank and once more in the backward pass, each time with other state"


class _Unit(nn.Module):
    """A module, and what its outputs looked like when it was run."""

    def __init__(
        self, name: str, module: nn.Module, structure: Any, outputs: Sequence[Tensor], *, draws: bool
    ) -> None:
        super().__init__()
        self.held, self.draws = (name, module), draws
        self.structure = structure
        self.outputs = [(one.shape, one.dtype) for one in outputs]
        self.state = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
        self.arguments: Any = None
        self.constants: list[Any] = []
        """Leaves of the arguments, `_TENSOR` in the place of each tensor."""
        self.absent: frozenset[int] = frozenset()
        """Tensors that had no gradient in the last backward pass, as those of a branch that was not taken."""
        self.number = next(_NUMBERS)

    @property
    def name(self) -> str:
        """Qualified name of the module."""
        return self.held[0]

    @property
    def module(self) -> nn.Module:
        """The module itself."""
        return self.held[1]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of the module with its parameters and buffers from the front of the tensors."""
        count = len(self.state)
        given = iter(tensors[count:])
        leaves = [next(given) if one is _TENSOR else one for one in self.constants]
        args, kwargs = pytree.tree_unflatten(leaves, self.arguments)
        state = dict(zip(self.state, tensors[:count], strict=True))
        found = pytree.tree_leaves(_called_as_it_is(self.module, state, args, kwargs))
        if [one.shape for one in found] != [shape for shape, _ in self.outputs]:
            raise InputError(
                f"module {self.name} makes tensors of {[list(one.shape) for one in found]}; it made "
                f"{[list(shape) for shape, _ in self.outputs]} when it was captured: a plan needs fixed shapes"
            )
        return found


_UNITS: WeakValueDictionary[int, _Unit] = WeakValueDictionary()
_RUNNING = threading.RLock()
"""A module holds other tensors while it runs, and generators are those of the process: ranks that are threads of one
process run a module one after the other."""


def _called_as_it_is(module: nn.Module, state: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
    forward = module.__dict__.pop("forward", None)
    try:
        return functional_call(module, state, args, kwargs)
    finally:
        if forward is not None:
            module.__dict__["forward"] = forward


@torch.library.custom_op("wirewise::whole_module", mutates_args=())
def _forward(tensors: list[Tensor], number: int) -> list[Tensor]:
    """Outputs of a module from its parameters, buffers and arguments, and the state of random numbers before it."""
    unit = _UNITS[number]
    with _RUNNING:
        before = _random_state(tensors)
        with torch.no_grad(), refuse_changes(unit.module, _TWICE):
            found = [one.clone() for one in unit.run(tensors)]
        after = _random_state(tensors)
    if not unit.draws and not torch.equal(before, after):
        raise InputError(
            f"module {unit.name} draws random numbers, which it did not when it was captured; every rank runs it and "
            "would draw others: expected a module that draws in all of its branches, or in none"
        )
    return [*found, before]


@_forward.register_fake
def _(tensors: list[Tensor], number: int) -> list[Tensor]:
    outputs = [torch.empty(shape, dtype=kind) for shape, kind in _UNITS[number].outputs]
    return [*outputs, torch.empty(_STATE_BYTES, dtype=torch.uint8)]


@torch.library.custom_op("wirewise::whole_module_backward", mutates_args=())
def _backward(gradients: list[Tensor], tensors: list[Tensor], random: Tensor, number: int) -> list[Tensor]:
    """Gradients of the tensors that a module took; the forward pass is repeated with the same random numbers."""
    # torch records nothing for autograd inside an operator, but does in another thread.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_differentiated, gradients, tensors, random, _UNITS[number]).result()


def _random_state(tensors: Sequence[Tensor]) -> Tensor:
    """State of the generator that a module draws from: that of its device."""
    on_device = next((one.device for one in tensors if one.is_cuda), None)
    found = torch.get_rng_state() if on_device is None else torch.cuda.get_rng_state(on_device)
    return torch.nn.functional.pad(found, (0, _STATE_BYTES - len(found)))


@contextmanager
def _drawing_from(random: Tensor, tensors: Sequence[Tensor]) -> Iterator[None]:
    on_device = next((one.device for one in tensors if one.is_cuda), None)
    with torch.random.fork_rng(devices=[] if on_device is None else [on_device]):
        if on_device is None:
            torch.set_rng_state(random)
        else:
            torch.cuda.set_rng_state(random[:_DEVICE_STATE_BYTES], on_device)
        yield


def _differentiated(
    gradients: list[Tensor], tensors: list[Tensor], random: Tensor, unit: _Unit
) -> list[Tensor]:
    own = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    with _RUNNING, _drawing_from(random, tensors):
        found = unit.run(own)
    used = [(one, g) for one, g in zip(found, gradients, strict=True) if one.requires_grad]
    wanted = [one for one in own if one.requires_grad]
    made = iter(torch.autograd.grad([a for a, _ in used], wanted, [b for _, b in used], allow_unused=True))
    given = [next(made) if one.requires_grad else None for one in own]
    unit.absent = frozenset(number for number, one in enumerate(given) if one is None)
    return [torch.zeros_like(t) if g is None else g.clone() for t, g in zip(tensors, given, strict=True)]


@_backward.register_fake
def _(gradients: list[Tensor], tensors: list[Tensor], random: Tensor, number: int) -> list[Tensor]:
    return [torch.empty_like(one) for one in tensors]


def _set_up(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, ctx.number = inputs
    ctx.save_for_backward(*tensors, output[-1])


def _differentiate(ctx: Any, gradients: Sequence[Tensor]) -> Any:
    *tensors, random = ctx.saved_tensors
    found = torch.ops.wirewise.whole_module_backward(list(gradients[:-1]), tensors, random, ctx.number)
    return [g if t.is_floating_point() else None for g, t in zip(found, tensors, strict=True)], None


torch.library.register_autograd("wirewise::whole_module", _differentiate, setup_context=_set_up)


class WholeModules:
    """Modules of a model that are captured as a whole while its step is traced.

    Args:
        model: Model with the modules.
        inputs: Inputs of its loss.
        loss: Loss of the model and the inputs.
    """

    def __init__(self, model: nn.Module, inputs: Any, loss: Callable[[nn.Module, Any], Any]) -> None:
        self._model, self._inputs, self._loss = model, inputs, loss
        self.modules: dict[str, _Unit] = {}
        self.notes: list[str] = []

    def take(self, error: Exception) -> bool:
        """Capture the innermost module whose forward pass raised as a whole; returns whether there is one.

        The model itself never is, nor a module that changes its buffers or returns anything but tensors, nor any of a
        model without real tensors, whose output shapes would be unknown.
        """
        names = {id(module): name for name, module in self._model.named_modules() if name}
        found = next((names[id(own)] for own in _owners(error) if id(own) in names), None)
        if found is None or found in self.modules or self.without_memory:
            return False
        unit = self._observed(found)
        if unit is None:
            return False
        for inner in [name for name in self.modules if name.startswith(found + ".")]:
            del self.modules[inner]
        self.modules[found] = _UNITS[unit.number] = unit
        self.notes.append(
            f"module {found} ({type(unit.module).__name__}) is taken as a whole, which every rank computes for itself, "
            f"because torch cannot trace {user_code_line(error)}"
        )
        return True

    @property
    def without_memory(self) -> bool:
        """Whether the model or the batch has fake tensors only."""
        held = [*self._model.parameters(), *self._model.buffers(), *pytree.tree_leaves(self._inputs)]
        return any(isinstance(one, FakeTensor) or getattr(one, "is_meta", False) for one in held)

    def run(self) -> set[str]:
        """Run the forward pass and the loss; returns the names of buffers that they change.

        Buffers and random states are restored afterwards.
        """
        before = {key: buffer.clone() for key, buffer in self._model.named_buffers()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            self._loss(self._model, self._inputs)
            named = dict(self._model.named_buffers())
            changed = {key for key, one in before.items() if not torch.equal(one, named[key])}
            for key in changed:
                named[key].copy_(before[key])
        return changed

    def _observed(self, name: str) -> _Unit | None:
        """The module as a unit, from one forward pass of the whole model."""
        module, seen, states = self._model.get_submodule(name), list[Any](), list[Tensor]()
        before = PythonState(module)
        hooks = [
            module.register_forward_pre_hook(lambda _m, _a: states.append(torch.get_rng_state())),
            module.register_forward_hook(lambda _m, _a, result: seen.append(result)),
            module.register_forward_hook(lambda _m, _a, _r: states.append(torch.get_rng_state())),
        ]
        try:
            changed = self.run()
        finally:
            for hook in hooks:
                hook.remove()
        if state := before.changed_names(PythonState(module)):
            before.restore()
            raise InputError(
                f"module {name} ({type(module).__name__}) cannot be traced, and its forward pass changes "
                f"{', '.join(state[:4])}: {_TWICE}; expected random numbers of torch and state in buffers"
            )
        outputs, structure = pytree.tree_flatten(seen[0] if len(seen) == 1 else None)
        own = any(key.startswith(f"{name}.") for key in changed)
        if own or not all(isinstance(one, Tensor) for one in outputs):
            return None
        return _Unit(name, module, structure, outputs, draws=not torch.equal(*states))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the forward passes of the modules by single operators."""
        for unit in self.modules.values():
            unit.module.__dict__["forward"] = _Replaced(unit)
        try:
            yield
        finally:
            for unit in self.modules.values():
                unit.module.__dict__.pop("forward", None)

    @staticmethod
    def named(node: fx.Node) -> str:
        """Name of a node that runs a whole module, "module.CLASS"; empty for other nodes."""
        ops = torch.ops.wirewise
        backward = node.target is ops.whole_module_backward.default
        if not backward and node.target is not ops.whole_module.default:
            return ""
        number: Any = node.args[-1]
        return f"module.{type(_UNITS[number].module).__name__}{'.backward' * backward}"

    @staticmethod
    def draws(node: fx.Node) -> bool:
        """Whether a node runs a whole module that uses random numbers in forward."""
        number: Any = node.args[-1] if node.args else -1
        return node.target is torch.ops.wirewise.whole_module.default and _UNITS[number].draws

    @staticmethod
    def without_gradient(node: fx.Node) -> bool:
        """Whether a gradient was None in the last backward pass, as of a branch not taken.

        The node of a whole module returns zeros for it, which an optimizer would treat as a gradient.
        """
        if node.target is torch.ops.aten.add.Tensor:
            return all(
                isinstance(one, fx.Node) and WholeModules.without_gradient(one) for one in node.args[:2]
            )
        source: Any = node.args[0] if node.args else None
        if (
            node.target is not operator.getitem
            or source.target is not torch.ops.wirewise.whole_module_backward.default
        ):
            return False
        return node.args[1] in _UNITS[source.args[-1]].absent


class _Replaced(NamedTuple):
    """The forward pass of a module as one operator."""

    unit: _Unit

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, arguments = pytree.tree_flatten((args, kwargs))
        constants = [_TENSOR if isinstance(one, Tensor) else one for one in leaves]
        if others := [one for one in constants if one is not _TENSOR and not isinstance(one, _CONSTANTS)]:
            raise InputError(
                f"module {self.unit.name} is taken as a whole and called with {type(others[0]).__name__}; expected "
                "tensors, numbers and texts"
            )
        self.unit.arguments, self.unit.constants = arguments, constants
        module = self.unit.module
        state = [one for _, one in (*module.named_parameters(), *module.named_buffers())]
        found = torch.ops.wirewise.whole_module(
            [*state, *(one for one in leaves if isinstance(one, Tensor))], self.unit.number
        )
        return pytree.tree_unflatten(list(found[:-1]), self.unit.structure)


def _owners(error: Exception) -> Iterator[Any]:
    """Modules whose methods stand in the traceback, the innermost first."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        if isinstance(own := frame.f_locals.get("self"), nn.Module):
            yield own
