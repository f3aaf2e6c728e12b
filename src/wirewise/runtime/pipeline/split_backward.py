"""Back-propagation in two parts: input gradients of a stage first, then weight gradients.

The graph is cut at the nodes where a path to the weights branches off a path to the inputs. The first part runs the
paths to the inputs and keeps the gradients at these nodes; the second runs from there to the weights alone, so
nothing is computed twice. A weight reached from several such nodes would be counted twice along one of them; its
gradient is computed by a separate pass over the whole graph.

Source: zero bubble pipeline parallelism (Qi et al., ICLR 2024), section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

__all__ = ["SplitBackward", "accumulate"]


class SplitBackward:
    """Back-propagation through a stage in two calls: `input_gradients` first, then `weight_gradients`.

    Args:
        outputs: Output tensors of the stage.
        gradients: Gradient of each of them.
        inputs: Input leaves of the stage that need gradients.
        parameters: Trained parameters of the stage.
    """

    def __init__(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],
    ) -> None:
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        self._outputs, self._gradients = [o for o, _ in pairs], [g for _, g in pairs]
        self._inputs, self._parameters = list(inputs), list(parameters)
        self._to_inputs: list[bool] = []
        self._arrived: dict[Node, tuple[Tensor | None, ...]] = {}
        self._entries: dict[Node, list[nn.Parameter]] = {}
        self._whole: list[nn.Parameter] = list(parameters)
        if self._inputs and self._outputs:
            self._cut()

    def _cut(self) -> None:
        """Find the nodes at which ways to weights leave ways to inputs, and the weights behind each."""
        roots = [get_gradient_edge(output).node for output in self._outputs]
        order = _children_first(roots)
        goals = {get_gradient_edge(one).node for one in self._inputs}
        weights = {get_gradient_edge(p).node: p for p in self._parameters}
        to_inputs: set[Node] = set()
        behind: dict[Node, frozenset[nn.Parameter]] = {}
        ways: dict[nn.Parameter, int] = {}
        for node in order:
            children = [child for child, _ in node.next_functions if child is not None]
            if node in goals or any(child in to_inputs for child in children):
                to_inputs.add(node)
            if node in to_inputs:
                own = [behind[child] for child in children if child not in to_inputs]
            else:
                own = [behind[child] for child in children]
            found = frozenset[nn.Parameter]().union(*own)
            behind[node] = found | {weights[node]} if node in weights else found
        for node in order:
            # A root that leads to no input is an entry too: its gradient is given.
            if behind[node] and (node in to_inputs or node in roots):
                self._entries[node] = list(behind[node])
                for parameter in behind[node]:
                    ways[parameter] = ways.get(parameter, 0) + 1
        single = {parameter for parameter, count in ways.items() if count == 1}
        self._entries = {
            node: kept for node, own in self._entries.items() if (kept := [p for p in own if p in single])
        }
        for output, gradient in zip(self._outputs, self._gradients, strict=True):
            edge = get_gradient_edge(output)
            if edge.node in self._entries and edge.node not in to_inputs:
                self._put(edge, gradient)
        self._to_inputs = [root in to_inputs for root in roots]
        self._whole = [p for p in self._parameters if p not in single and p in ways]

    def _put(self, edge: GradientEdge, gradient: Tensor) -> None:
        slots = list(self._arrived.get(edge.node, ()))
        slots += [None] * (edge.output_nr + 1 - len(slots))
        held = slots[edge.output_nr]
        slots[edge.output_nr] = gradient if held is None else held + gradient
        self._arrived[edge.node] = tuple(slots)

    def input_gradients(self) -> list[Tensor | None]:
        """Compute the gradient of each input. None for an input on which the outputs do not depend."""
        chosen = [i for i, leads in enumerate(self._to_inputs) if leads]
        if not chosen:
            return [None] * len(self._inputs)
        hooks = [
            node.register_prehook(partial(self._keep, node))
            for node in self._entries
            if node not in self._arrived
        ]
        try:
            return list(
                torch.autograd.grad(
                    [self._outputs[i] for i in chosen],
                    self._inputs,
                    [self._gradients[i] for i in chosen],
                    retain_graph=True,
                    allow_unused=True,
                )
            )
        finally:
            for hook in hooks:
                hook.remove()

    def _keep(self, node: Node, arrived: tuple[Tensor | None, ...]) -> None:
        self._arrived[node] = arrived

    def weight_gradients(self) -> None:
        """Accumulate the weight gradients in `.grad`, and free the graph."""
        if self._whole and self._outputs:
            found = torch.autograd.grad(
                self._outputs,
                self._whole,
                self._gradients,
                retain_graph=bool(self._entries),
                allow_unused=True,
            )
            for parameter, gradient in zip(self._whole, found, strict=True):
                accumulate(parameter, gradient)
        for node, parameters in self._entries.items():
            arrived = [(n, g) for n, g in enumerate(self._arrived.get(node, ())) if g is not None]
            if not arrived:
                continue
            edges: Any = [GradientEdge(node, number) for number, _ in arrived]
            found = torch.autograd.grad(edges, parameters, [g for _, g in arrived], allow_unused=True)
            for parameter, gradient in zip(parameters, found, strict=True):
                accumulate(parameter, gradient)
        self._outputs, self._entries, self._arrived = [], {}, {}


def accumulate(leaf: Tensor, gradient: Tensor | None) -> None:
    """Add a gradient to a leaf's `.grad`, as back-propagation does."""
    if gradient is None:
        return
    if leaf.grad is None:
        leaf.grad = gradient.detach()
    else:
        with torch.no_grad():
            leaf.grad += gradient


def _children_first(roots: Sequence[Node]) -> list[Node]:
    """All nodes that the roots lead to, each behind those that it leads to."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions if child is not None]
    return order
