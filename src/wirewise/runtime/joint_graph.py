"""Capture of a whole training step of a user's model: forward, loss and backward as one graph of ATen operators.

The graph is traced with fake tensors, so a model without memory (made on the device "meta", or under torch's
`FakeTensorMode`) is captured like any other.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch._dynamo  # its first import fails half-way while fake tensors are on
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._ops import OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import traceback

from wirewise.errors import InputError
from wirewise.runtime.data_parallel.capture import FunctionalLoss, Loss, StepInputs, tensors_of, tidy, tracing
from wirewise.runtime.data_parallel.categories import flops_of
from wirewise.runtime.decompositions import DECOMPOSITIONS, SimplerFunctions, remove_checks
from wirewise.runtime.python_state import trace_stable
from wirewise.runtime.refusals import trace_refusal
from wirewise.runtime.whole_modules import WholeModules
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode
from wirewise.trace.repeats import repeated_blocks

__all__ = ["JointStep", "capture_step", "model_loss"]

_ATEN = torch.ops.aten
_MODULE = "wirewise_module"
"""Key of a node's annotation that has the name of its module."""
_MOST_WHOLE = 32
"""Modules that are taken as wholes before a model is refused."""


@dataclass(frozen=True)
class JointStep(StepInputs):
    """Training step as a graph for planners, and in executable form."""

    graph: OperatorGraph
    """Nodes of `module` by name, in the same order."""
    module: fx.GraphModule
    """Placeholders: parameters, buffers, tensors of the batch, in the order of `inputs`. Output: the loss, gradients in
    the order of `graph.gradients`, new values of buffers in that of `graph.buffers`."""


def model_loss(model: nn.Module, inputs: Any) -> Tensor:
    """Compute the loss of a model that returns it, or returns an output with an attribute `loss`, as transformers do.

    Args:
        model: Model to call with the inputs.
        inputs: A tuple or list is passed as positional arguments; a dict as keyword arguments if forward accepts them
            all, else as one argument; anything else as one argument.
    """
    if isinstance(inputs, tuple | list):
        result = model(*inputs)
    elif isinstance(inputs, dict) and _takes(model, inputs):
        result = model(**inputs)
    else:
        result = model(inputs)
    loss: Tensor = getattr(result, "loss", result)
    return loss


def _takes(model: nn.Module, names: Iterable[str]) -> bool:
    """Whether the forward pass of a model takes arguments of these names."""
    try:
        inspect.signature(model.forward).bind(**dict.fromkeys(names))
    except TypeError:
        return False
    return True


def capture_step(model: nn.Module, inputs: Any, loss: Loss = model_loss, *, whole: bool = True) -> JointStep:
    """Capture forward, loss and backward of a model as one functional graph of ATen operators.

    Products with an added bias become a product and a sum, and embedding bags of equal length look-ups and sums;
    checks of values and no-op operators, such as detach, are removed. A module whose forward pass depends on values
    is captured as a whole, one operator forward and one backward, if the model has real tensors, and the graph notes
    it.

    Args:
        model: Model whose tensors are all parameters and buffers. It is not changed.
        inputs: Nested tensors; later batches must have the same shapes. Output of a transformers tokenizer is a dict.
        loss: Function of model and inputs that returns a scalar loss. Defaults to the model's result, or its
            attribute `loss`.
        whole: Whether modules that cannot be captured are taken as a whole.

    Raises:
        InputError: The step cannot be captured; the message names the line of the model and what to change.
    """
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)
    leaves, structure = tensors_of(inputs)
    opaque = WholeModules(model, inputs, loss)

    def trace() -> tuple[fx.GraphModule, _Ends]:
        with opaque.in_place():
            return _traced(model, leaves, structure, loss)

    while True:
        try:
            run = None if opaque.without_memory else opaque.run
            module, ends = trace_stable(model, [loss], trace, lambda made: made[0].code, run)
            break
        except InputError:
            raise
        except Exception as error:
            refusal = trace_refusal(type(model).__name__, error)
            if not whole or len(opaque.modules) >= _MOST_WHOLE or not opaque.take(error):
                raise refusal from error
    module.__dict__["whole_modules"] = opaque  # its operators look the modules up, and do not keep them
    return _captured(module, ends, model, leaves, structure, opaque.notes)


@dataclass
class _Ends:
    """Meaning of the outputs of a traced graph."""

    loss: fx.Node
    gradients: dict[str, fx.Node]
    buffers: dict[str, fx.Node]


def _traced(
    model: nn.Module, leaves: Sequence[Tensor], structure: Any, loss: Loss
) -> tuple[fx.GraphModule, _Ends]:
    def checked(own: nn.Module, inputs: Any) -> Tensor:
        found = loss(own, inputs)
        if not isinstance(found, Tensor) or found.numel() != 1:
            got = f"a tensor of {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"the loss of {type(model).__name__} is {got}; expected a scalar: let the model return its loss, or "
                "give a function loss(model, inputs)"
            )
        if not found.requires_grad:
            raise InputError(
                f"the loss of {type(model).__name__} depends on no trained parameter; expected one that does"
            )
        return found.reshape(())

    with ExitStack() as stack:
        stack.enter_context(tracing())
        step = FunctionalLoss(model, checked, structure)
        leaves = _with_shapes(step, leaves)
        stack.enter_context(_named_modules(model))
        stack.enter_context(SimplerFunctions())
        joint = aot_export_joint_with_descriptors(stack, step, tuple(leaves), decompositions=DECOMPOSITIONS)
        module = joint.graph_module
    assert isinstance(module, fx.GraphModule)
    return module, _tidied(module, model)


def _with_shapes(step: FunctionalLoss, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the batch; those on the device meta, which has no operators of its own, are fake ones on the CPU.

    So are the step's parameters and buffers from then on.
    """
    held = [*step.parameters(), *step.buffers()]
    mode = next((t.fake_mode for t in (*held, *leaves) if isinstance(t, FakeTensor)), FakeTensorMode())

    def shaped(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    for number, one in enumerate(step.parameters_):
        if one.is_meta:
            step.parameters_[number] = nn.Parameter(shaped(one), requires_grad=one.requires_grad)
    for name, buffer in list(step.named_buffers()):
        step.register_buffer(name, shaped(buffer))
    return [shaped(leaf) for leaf in leaves]


@contextmanager
def _named_modules(model: nn.Module) -> Iterator[None]:
    """Note the name of the module whose forward pass runs, for the nodes that are traced meanwhile."""
    inside: list[Any] = []
    # Annotations of a trace that was broken off are still current, and would name nodes of this one.
    around = traceback.current_meta.pop("custom", None)

    def enter(name: str) -> Any:
        def before(module: nn.Module, arguments: Any) -> None:
            inside.append(traceback.annotate({_MODULE: name}))
            inside[-1].__enter__()

        return before

    def leave(module: nn.Module, arguments: Any, result: Any) -> None:
        inside.pop().__exit__(None, None, None)

    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(enter(name), prepend=True))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        while inside:
            inside.pop().__exit__(None, None, None)
        traceback.current_meta.pop("custom", None)
        if around is not None:
            traceback.current_meta["custom"] = around


def _tidied(module: fx.GraphModule, model: nn.Module) -> _Ends:
    """Give placeholders the names of what they are, let the loss's own gradient be 1, and name the outputs."""
    graph = module.graph
    remove_checks(graph)
    graph.set_codegen(fx.graph.CodeGen())  # arguments one by one, not as two lists
    parameters, buffers = (
        tuple(dict(named).keys()) for named in (model.named_parameters(), model.named_buffers())
    )
    places: dict[int, tuple[str, str]] = {}
    for node in graph.find_nodes(op="placeholder"):
        match node.meta["desc"]:
            case TangentAOTInput():
                with graph.inserting_before(next(one for one in graph.nodes if one in node.users)):
                    one = graph.call_function(
                        _ATEN.full.default, ([], 1.0), {"dtype": node.meta["val"].dtype}
                    )
                one.meta = {"val": node.meta["val"], "partitioner_tag": "is_backward"}
                node.replace_all_uses_with(one)
                graph.erase_node(node)
                continue
            case ParamAOTInput(target=target):
                source = ("parameter", parameters[int(target.removeprefix("parameters_."))])
            case BufferAOTInput(target=target):
                source = ("buffer", buffers[int(target.removeprefix("buffer"))])
            case PlainAOTInput(idx=index):
                source = ("input", str(index))
            case other:
                raise InputError(
                    f"the step takes {other}, which is no parameter, buffer or tensor of the batch"
                )
        node.meta["wirewise"] = source
        node._rename("_".join((source[0] * (source[0] == "input"), *source[1].split("."))).strip("_"))
        node.target = node.name
        places[len(places)] = source
    _order_placeholders(graph, parameters, buffers)
    ends = _named_outputs(graph, parameters, buffers)
    _check_gradients(model, ends)
    (end,) = graph.find_nodes(op="output")
    end.args = ((ends.loss, *ends.gradients.values(), *ends.buffers.values()),)
    _take_out(graph)
    tidy(module)
    loss, *others = end.args[0]
    grads = dict(zip(ends.gradients, others, strict=False))
    graph.lint()
    module.recompile()
    return _Ends(loss, grads, dict(zip(ends.buffers, others[len(grads) :], strict=True)))


def _take_out(graph: fx.Graph) -> None:
    """Take out checks of values, and copies that keep the order in memory."""
    for node in list(graph.nodes):
        if node.target in (_ATEN._assert_async.msg, _ATEN._assert_async.default):
            graph.erase_node(node)
        elif node.target is _ATEN.clone.default and node.kwargs.get("memory_format") in (
            None,
            torch.preserve_format,
        ):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _order_placeholders(graph: fx.Graph, parameters: Sequence[str], buffers: Sequence[str]) -> None:
    """Parameters, then buffers, then the batch."""
    order = {"parameter": parameters, "buffer": buffers}
    nodes = {node.meta["wirewise"]: node for node in graph.find_nodes(op="placeholder")}
    wanted = [nodes[kind, name] for kind, names in order.items() for name in names]
    wanted += [node for (kind, _), node in nodes.items() if kind == "input"]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in wanted:
        first.prepend(node)


def _named_outputs(graph: fx.Graph, parameters: Sequence[str], buffers: Sequence[str]) -> _Ends:
    (end,) = graph.find_nodes(op="output")
    loss: Any = None
    gradients: dict[str, Any] = {}
    changed: dict[str, fx.Node] = {}
    for node, what in zip(end.args[0], end.meta["desc"], strict=True):
        match what:
            case PlainAOTOutput():
                loss = node
            case GradAOTOutput(grad_of=ParamAOTInput(target=target)):
                gradients[parameters[int(target.removeprefix("parameters_."))]] = node
            case InputMutationAOTOutput(mutated_input=BufferAOTInput(target=target)):
                changed[buffers[int(target.removeprefix("buffer"))]] = node
            case GradAOTOutput() | None:
                pass
            case other:
                raise InputError(
                    f"the step makes {other}, which is no loss, gradient or buffer: do not change the batch in place"
                )
    return _Ends(loss, gradients, changed)


def _check_gradients(model: nn.Module, ends: _Ends) -> None:
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    if unused := [name for name in trained if ends.gradients.get(name) is None]:
        raise InputError(
            f"parameters {', '.join(unused[:8])} of {type(model).__name__} take no part in the loss; freeze them "
            "(requires_grad_(False)) or take them out"
        )
    for name in list(ends.gradients):
        if name not in trained:
            del ends.gradients[name]


def _captured(
    module: fx.GraphModule,
    ends: _Ends,
    model: nn.Module,
    leaves: Sequence[Tensor],
    structure: Any,
    notes: Sequence[str],
) -> JointStep:
    nodes: list[OperatorNode] = []
    numbers: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        nodes.append(_described(node, numbers, nodes))
        numbers[node] = len(numbers)
    graph = OperatorGraph(
        nodes=tuple(nodes),
        loss=numbers[ends.loss],
        gradients={name: numbers[node] for name, node in ends.gradients.items()},
        buffers={name: numbers[node] for name, node in ends.buffers.items()},
        repeats=repeated_blocks(nodes),
        model=type(model).__name__,
        notes=tuple(notes),
    )
    return JointStep(
        parameters=tuple(name for name, _ in model.named_parameters()),
        buffers=tuple(name for name, _ in model.named_buffers()),
        batch=structure,
        leaves=tuple((leaf.shape, leaf.dtype) for leaf in leaves),
        graph=graph,
        module=module,
    )


def _described(node: fx.Node, numbers: dict[fx.Node, int], nodes: Sequence[OperatorNode]) -> OperatorNode:
    """A node as planners see it."""
    shape, parts, dtype = _value(node)
    backward = node.meta.get("partitioner_tag") == "is_backward"
    inputs, roles, arguments = _arguments(node, numbers)
    op, source = _op_of(node)
    return OperatorNode(
        name=node.name,
        op=op,
        inputs=inputs,
        roles=roles,
        arguments=arguments,
        shape=shape,
        parts=parts,
        dtype=dtype,
        flops=flops_of(node) if node.op == "call_function" and isinstance(node.target, OpOverload) else 0.0,
        phase="backward" if backward else "forward",
        module=_module_of(node, [nodes[one] for one in inputs], backward),
        source=source,
    )


def _op_of(node: fx.Node) -> tuple[str, str]:
    """Name of what a node does, and of the tensor that a placeholder is."""
    if node.op == "placeholder":
        kind, source = node.meta["wirewise"]
        return kind, source
    if node.op == "output":
        return "output", ""
    if node.op == "get_attr":
        return "constant", str(node.target)
    if node.target is operator.getitem:
        return "getitem", ""
    return WholeModules.named(node) or str(node.target), ""


def _module_of(node: fx.Node, inputs: Sequence[OperatorNode], backward: bool) -> str:
    if node.op == "placeholder" and node.meta["wirewise"][0] != "input":
        return str(node.meta["wirewise"][1].rpartition(".")[0])
    custom = node.meta.get("custom") or {}
    if _MODULE in custom or node.op != "call_function":
        return str(custom.get(_MODULE, ""))
    own = [one.module for one in inputs if one.phase == "backward"] if backward else []
    if not own:
        return ""
    # A sum of gradients belongs to the module around the one whose gradient comes last.
    words = own[-1].split(".")
    for other in (path.split(".") for path in own[:-1]):
        if other[: len(words)] != words:
            words = other if words[: len(other)] == other else words[:-1]
    return ".".join(words)


def _value(node: fx.Node) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], str]:
    """Shape, shapes of several outputs, and type of elements."""
    value: Any = node.meta.get("val")
    several = isinstance(value, tuple | list)
    tensors = [one for one in value if isinstance(one, Tensor)] if several else [value]
    if node.op == "output" or not tensors or not isinstance(tensors[0], Tensor):
        return (), (), "float32"
    parts = [one.shape if isinstance(one, Tensor) else () for one in value] if several else []
    for size in (size for shape in (*parts, tensors[0].shape) for size in shape):
        if not isinstance(size, int):
            raise InputError(f"the output of {node.name} has a size that is not known; expected fixed shapes")
    shapes = tuple(tuple(int(size) for size in shape) for shape in parts)
    return tuple(tensors[0].shape), shapes, str(tensors[0].dtype).removeprefix("torch.")


def _arguments(
    node: fx.Node, numbers: dict[fx.Node, int]
) -> tuple[tuple[int, ...], tuple[str, ...], dict[str, Any]]:
    """Indices of the inputs, their roles, and all other arguments by name."""
    if node.op == "output":
        results: Any = node.args[0]
        return tuple(numbers[one] for one in results), ("result",) * len(results), {}
    if node.target is operator.getitem:
        source: Any = node.args[0]
        return (numbers[source],), ("self",), {"index": node.args[1]}
    if not isinstance(node.target, OpOverload) or WholeModules.named(node):
        read = node.all_input_nodes
        drawn = {"random": True} if WholeModules.draws(node) else {}
        return tuple(numbers[one] for one in read), ("self",) * len(read), drawn
    inputs: list[int] = []
    roles: list[str] = []
    arguments: dict[str, Any] = {}
    for place, one in enumerate(node.target._schema.arguments):
        value = node.args[place] if place < len(node.args) else node.kwargs.get(one.name, one.default_value)
        given = value if isinstance(value, tuple | list) else [value]
        tensors = [numbers[entry] for entry in given if isinstance(entry, fx.Node)]
        if isinstance(value, tuple | list) and tensors and len(tensors) < len(value):
            places = iter(range(len(inputs), len(inputs) + len(tensors)))
            arguments[one.name] = [next(places) if isinstance(e, fx.Node) else _plain(e) for e in value]
        elif not tensors and one.name not in _PLACES:
            arguments[one.name] = _plain(value)
        inputs += tensors
        roles += [one.name] * len(tensors)
    return tuple(inputs), tuple(roles), arguments


_PLACES = ("layout", "device", "pin_memory", "non_blocking")
"""Arguments that say where a tensor lies, not what is computed."""


def _plain(value: Any) -> Any:
    """A value that JSON holds; names of types and devices, and of numbers that are not finite, as text."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    return str(value).removeprefix("torch.")
