"""Captured training step: forward, loss and backward of a model as one functional graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.runtime.data_parallel.categories import category_of, flops_of
from wirewise.runtime.python_state import TRACING, trace_stable
from wirewise.trace.operators import FusionGraph, Operator

__all__ = [
    "Capture",
    "FunctionalLoss",
    "Loss",
    "StepInputs",
    "capture",
    "graph_of",
    "is_operator",
    "parts_of_result",
    "producer_of",
    "size_bytes",
    "tensors_of",
    "tidy",
    "tracing",
]

Loss = Callable[[nn.Module, Any], Tensor]
"""Function `loss(model, batch)` that returns a scalar."""

_ATEN = torch.ops.aten


@contextmanager
def tracing() -> Iterator[None]:
    """Set `torch.compiler.is_compiling()` to true while tracing, as `torch.export` and `torch.compile` do.

    Without it, models of transformers branch on values, such as whether a mask is all ones. `is_exporting()` stays
    false: they would then compute mask tensors that attention does not need.
    """
    with TRACING:
        before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before


@dataclass(frozen=True)
class StepInputs:
    """Inputs of a captured step: parameters and buffers by name, then the tensors of a batch."""

    parameters: tuple[str, ...]
    """Names of all parameters; a shared one goes by the first of its names."""
    buffers: tuple[str, ...]
    """Names of all buffers."""
    batch: Any
    """Structure of a batch (torch's pytree)."""
    leaves: tuple[tuple[torch.Size, torch.dtype], ...]
    """Shape and type of each tensor of a batch."""

    def inputs(self, model: nn.Module, batch: Any) -> list[Tensor]:
        """Collect the graph's inputs from the model's current state and a batch.

        Raises:
            InputError: The batch has another structure, shape or dtype than the captured one.
        """
        leaves, structure = pytree.tree_flatten(batch)
        found = tuple((leaf.shape, leaf.dtype) for leaf in leaves if isinstance(leaf, Tensor))
        if structure != self.batch or found != self.leaves:
            raise InputError(
                f"got a batch of {_shapes(found)}; this step was captured for {_shapes(self.leaves)}: drop the last, "
                "smaller batch or make another step for it"
            )
        named, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        return [
            *(named[name].detach() for name in self.parameters),
            *(buffers[name] for name in self.buffers),
            *(leaf.detach() for leaf in leaves),
        ]


@dataclass(frozen=True)
class Capture(StepInputs):
    """Training step as a graph, from parameters, buffers and batch to the loss and its gradients."""

    module: fx.GraphModule
    """Placeholders: parameters, buffers, leaves of the batch. Output: new values of the buffers that change, the
    loss, a gradient for each trained parameter."""
    trained: tuple[str, ...]
    """Names of the parameters that get a gradient."""
    changed: tuple[str, ...]
    """Names of the buffers that the step changes."""
    operators: FusionGraph
    """Operators for planners; no times yet (`wirewise.profile.operators`)."""


class FunctionalLoss(nn.Module):
    """Loss as a function of indexed parameters and buffers."""

    def __init__(self, model: nn.Module, loss: Loss, structure: Any) -> None:
        super().__init__()
        self._call = (model, loss, structure)
        self._places = _places(
            model, dict(model.named_parameters()), model.named_parameters(remove_duplicate=False)
        )
        self._buffer_places = _places(
            model, dict(model.named_buffers()), model.named_buffers(remove_duplicate=False)
        )
        self.parameters_ = nn.ParameterList(p for _, p in model.named_parameters())
        for number, (_, buffer) in enumerate(model.named_buffers()):
            self.register_buffer(f"buffer{number}", buffer)

    def forward(self, *leaves: Any) -> tuple[Tensor]:
        model, loss, structure = self._call
        # A view: gradients of two parameters that are equal stay two results of the graph.
        views = [p.view_as(p) for p in self.parameters_]
        state = {f"model.{name}": views[number] for name, number in self._places.items()}
        state |= {f"model.{n}": getattr(self, f"buffer{number}") for n, number in self._buffer_places.items()}
        batch = pytree.tree_unflatten(list(leaves), structure)
        return (functional_call(_Loss(model, loss), state, (batch,), tie_weights=False),)


def _places(
    model: nn.Module, named: dict[str, Tensor], every: Iterable[tuple[str, Tensor]]
) -> dict[str, int]:
    """Index of the tensor at each place that holds one; a module that stands in two places of the model counts once.

    torch, asked to replace shared tensors by itself, would replace those of such a module twice and not put them back.
    """
    number = {tensor: i for i, tensor in enumerate(named.values())}
    found: dict[tuple[int, str], tuple[str, int]] = {}
    for name, tensor in every:
        owner, _, attribute = name.rpartition(".")
        found.setdefault((id(model.get_submodule(owner)), attribute), (name, number[tensor]))
    return dict(found.values())


class _Loss(nn.Module):
    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Any) -> Tensor:
        return self._loss(self.model, batch)


def capture(model: nn.Module, loss: Loss, example_batch: Any) -> Capture:
    """Capture forward, loss and backward of a model as one functional graph of ATen operators (AOTAutograd).

    The model is unchanged. Random operators are kept, in the model's mode (`train` or `eval`).

    Args:
        model: Model whose tensors are all parameters and buffers; other tensor attributes are not seen.
        loss: Function of the model and a batch that returns the loss.
        example_batch: Nested tensors; later batches must have the same shapes.

    Raises:
        InputError: The step cannot be captured, as with control flow that depends on values; the message gives
            torch's reason.
    """
    leaves, structure = tensors_of(example_batch)
    step = FunctionalLoss(model, loss, structure)
    module, signature = trace_stable(
        model, [loss], partial(_exported, step, leaves), lambda made: made[0].code
    )
    tidy(module)
    trained = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    buffers = tuple(name for name, _ in model.named_buffers())
    changed = tuple(buffers[int(n.removeprefix("buffer"))] for n in signature.buffers_to_mutate.values())
    own = _own_gradients(module, trained)
    state = [*dict(model.named_parameters()).values(), *dict(model.named_buffers()).values()]
    with tracing():
        # One fake mode for all values: torch's export leaves those of several behind.
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        FakeTensorProp(module, mode).propagate(*(tensor.detach() for tensor in state), *leaves)
    return Capture(
        module=module,
        parameters=tuple(name for name, _ in model.named_parameters()),
        trained=trained,
        buffers=buffers,
        changed=changed,
        batch=structure,
        leaves=tuple((leaf.shape, leaf.dtype) for leaf in leaves),
        operators=graph_of(module, own, type(model).__name__),
    )


def tensors_of(batch: Any) -> tuple[list[Tensor], Any]:
    """Flatten a batch to tensors and structure.

    Raises:
        InputError: The batch holds other values.
    """
    leaves, structure = pytree.tree_flatten(batch)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        kinds = sorted({type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)})
        raise InputError(
            f"got a batch with {', '.join(kinds)}; expected tensors only: give the rest to the loss"
        )
    return leaves, structure


def _exported(step: FunctionalLoss, leaves: Sequence[Tensor]) -> tuple[fx.GraphModule, Any]:
    try:
        with tracing():
            module, signature = aot_export_module(step, leaves, trace_joint=True, output_loss_index=0)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise InputError(
            f"the training step cannot be captured: {type(error).__name__}: {lines[0][:300]}; expected a scalar loss "
            "that every trained parameter takes part in, without control flow by values, and tensors of the model "
            "only as parameters and buffers: freeze unused parameters, register_buffer the rest"
        ) from error
    assert isinstance(module, fx.GraphModule)
    return module, signature


def tidy(module: fx.GraphModule) -> None:
    """Remove no-op operators: detach, views of the same shape, double transposes."""
    for node in list(module.graph.nodes):
        source = _same_as(node)
        if source is not None:
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()


def _same_as(node: fx.Node) -> fx.Node | None:
    """The node that has the value of this one."""
    before = node.args[0] if node.args else None
    if not isinstance(before, fx.Node):
        return None
    if node.target in (_ATEN.detach.default, _ATEN.alias.default):
        return before
    if node.target is _ATEN.t.default and before.target is _ATEN.t.default:
        assert isinstance(before.args[0], fx.Node)
        return before.args[0]
    views = (_ATEN.view.default, _ATEN.expand.default, _ATEN._unsafe_view.default)
    if node.target in views and node.meta["val"].shape == before.meta["val"].shape:
        return before
    return None


def _own_gradients(module: fx.GraphModule, trained: Sequence[str]) -> dict[fx.Node, str]:
    """Let each gradient be the one result of an operator of its own; these by node."""
    (end,) = module.graph.find_nodes(op="output")
    results = list(end.args[0])
    first = len(results) - len(trained)
    own: dict[fx.Node, str] = {}
    for place, name in enumerate(trained, first):
        node = results[place]
        if node in own or not is_operator(node) or node in results[:first]:
            with module.graph.inserting_after(node):
                again = module.graph.call_function(_ATEN.alias.default, (node,))
            again.meta["val"] = node.meta["val"]
            results[place] = node = again
        own[node] = name
    end.args = (tuple(results),)
    module.graph.lint()
    module.recompile()
    return own


def is_operator(node: fx.Node) -> bool:
    """Whether a node computes, being neither an input nor a part of another node's result."""
    return node.op == "call_function" and node.target is not operator.getitem


def producer_of(node: fx.Node) -> fx.Node:
    """Operator or placeholder whose result, or part of it, a node is."""
    while node.op == "call_function" and node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node


def parts_of_result(node: fx.Node) -> list[fx.Node]:
    """Nodes of the parts of an operator's result."""
    return [user for user in node.users if user.target is operator.getitem]


def size_bytes(node: fx.Node) -> int:
    """Size of a result with all its parts, in bytes."""
    return sum(value.numel() * value.element_size() for value in _values(node))


def _values(node: fx.Node) -> Iterator[Tensor]:
    value = node.meta.get("val")
    yield from (v for v in pytree.tree_leaves(value) if isinstance(v, Tensor))


def graph_of(module: fx.GraphModule, gradients: dict[fx.Node, str], model: str = "") -> FusionGraph:
    """Build the operator graph for planners, in topological order, without times."""
    nodes = [node for node in module.graph.nodes if is_operator(node)]
    number = {node: i for i, node in enumerate(nodes)}
    device = next((str(v.device) for node in nodes for v in _values(node)), "cpu")
    operators = []
    for node in nodes:
        reads = dict.fromkeys(producer_of(read) for read in node.all_input_nodes)
        inside = sorted(number[read] for read in reads if read in number)
        operators.append(
            Operator(
                name=node.name,
                kind=str(node.target),
                category=category_of(node),
                inputs=tuple(inside),
                outside_bytes=sum(size_bytes(read) for read in reads if read not in number),
                output_bytes=size_bytes(node),
                elements=sum(value.numel() for value in _values(node)),
                flops=flops_of(node),
                gradient=gradients.get(node, ""),
            )
        )
    graph = FusionGraph(operators=tuple(operators), model=model, device=device)
    graph.check_itself()
    return graph


def _shapes(leaves: Sequence[tuple[torch.Size, torch.dtype]]) -> str:
    return ", ".join(f"{str(t).removeprefix('torch.')}{list(shape)}" for shape, t in leaves) or "no tensors"
