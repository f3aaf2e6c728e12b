"""Captured step rebuilt from the record of its operators, so that ranks need not capture the model themselves."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from wirewise.errors import InputError
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["RebuiltStep", "rebuild_step"]


@dataclass(frozen=True)
class RebuiltStep:
    """Training step as an operator graph, and as an executable module."""

    graph: OperatorGraph
    module: fx.GraphModule
    """Module whose nodes have the names of the graph's; their `meta` holds shapes and types without memory."""


def rebuild_step(graph: OperatorGraph) -> RebuiltStep:
    """Rebuild the step described by a graph.

    Raises:
        InputError: This version of torch lacks an operator, or the graph only names it: a constant of the model's
            code, or an opaque module. Capture the model on every rank then.
    """
    made, nodes = fx.Graph(), list[fx.Node]()
    for node in graph.nodes:
        nodes.append(_made(made, node, nodes))
        nodes[-1].meta["val"] = _value(node)
    made.lint()
    return RebuiltStep(graph, fx.GraphModule(torch.nn.Module(), made))


def _made(graph: fx.Graph, node: OperatorNode, nodes: Sequence[fx.Node]) -> fx.Node:
    inputs = [nodes[number] for number in node.inputs]
    if node.op in ("input", "parameter", "buffer"):
        return graph.create_node("placeholder", node.name, name=node.name)
    if node.op == "output":
        return graph.create_node("output", "output", (tuple(inputs),), name=node.name)
    if node.op == "getitem":
        given: tuple[Any, ...] = (inputs[0], int(node.arguments["index"]))
        return graph.create_node("call_function", operator.getitem, given, name=node.name)
    target = _target(node)
    arguments = {
        one.name: _argument(node, one, inputs) for one in target._schema.arguments if _told(node, one.name)
    }
    keywords = {one.name for one in target._schema.arguments if one.kwarg_only}
    positional = [
        one.name for one in target._schema.arguments if one.name in arguments and one.name not in keywords
    ]
    return graph.create_node(
        "call_function",
        target,
        tuple(arguments[name] for name in positional),
        {name: value for name, value in arguments.items() if name in keywords},
        name=node.name,
    )


def _told(node: OperatorNode, name: str) -> bool:
    return name in node.arguments or name in node.roles


def _target(node: OperatorNode) -> Any:
    found: Any = torch.ops
    try:
        for word in node.op.split("."):
            found = getattr(found, word)
        found._schema  # noqa: B018
    except AttributeError as error:
        raise InputError(
            f"operator {node.op!r} of node {node.name!r} is none of this torch ({torch.__version__}); capture the "
            "model here, on every rank"
        ) from error
    return found


def _argument(node: OperatorNode, one: Any, inputs: Sequence[fx.Node]) -> Any:
    own = [source for source, role in zip(inputs, node.roles, strict=True) if role == one.name]
    told = node.arguments.get(one.name)
    if own and isinstance(told, list):
        return [inputs[entry] if isinstance(entry, int) else entry for entry in told]
    if own:
        return own if str(one.type).startswith("List") else own[0]
    return _decoded(told)


def _decoded(value: Any) -> Any:
    """An argument as torch takes it: names of types and of orders in memory are texts in the record."""
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if isinstance(value, str):
        if isinstance(found := getattr(torch, value, None), torch.dtype | torch.memory_format):
            return found
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _value(node: OperatorNode) -> Any:
    def made(shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, node.dtype), device="meta")

    return [made(shape) for shape in node.parts] if node.parts else made(node.shape)
