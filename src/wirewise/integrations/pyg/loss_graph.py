"""Autograd graph of a plain loss, checked to be a sum of constants times means over this rank's training nodes.

A plain loss is weighted by the rank's fraction of training nodes. That is the loss of one process for L = sum_k c_k
R_k + penalties on parameters, where R_k is a mean over all own training nodes and c_k is the same constant on all
ranks. The graph is walked from the loss down to the outputs of distributed models, before each back-propagation; this
takes some microseconds a node. The rows that a mean reads are proven by `loss_rows`, at intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from wirewise.integrations.pyg.parameters import is_distributed

__all__ = ["GLOBAL", "KNOWN", "PLAIN", "UNKNOWN", "LossGraph", "Term", "kind_of", "plain_edges"]

PLAIN, GLOBAL, KNOWN, UNKNOWN = 1, 2, 4, 8
"""Leaves that a node reaches: outputs, outputs through `Job.mean` or `Job.sum`, distributed parameters, others."""

_SAME = set(
    "Clone View UnsafeView ReshapeAlias Alias ToCopy Squeeze Unsqueeze Neg Stack Cat Copys Permute T".split()
)
"""Nodes that hand each element on, or its negative."""
_REDUCING = (1, 2)
"""Numbers that torch gives to reduction="mean" and reduction="sum"."""
_MAX_PATHS = 10_000


@dataclass
class Term:
    """Term of the loss: a mean over rows."""

    node: Any
    """Node of the mean in the autograd graph."""
    rows: int
    """Rows of its input: the training nodes, or all own nodes where constants leave the others out."""
    scale: float
    """Own training nodes times the weight of one element of its input, for a gradient of 1."""


@dataclass
class LossGraph:
    """Result of walking the graph of one loss."""

    reaches: dict[Any, int] = field(default_factory=dict)
    """Kinds of leaves below each node above the outputs."""
    outputs: list[tuple[Any, Any]] = field(default_factory=list)
    """Nodes of outputs, and the calls of distributed models that they belong to."""
    sums: list[Any] = field(default_factory=list)
    """Nodes of `Job.mean` and `Job.sum`."""
    unknown: list[Tensor] = field(default_factory=list)
    """Leaves that require a gradient and belong to no distributed model."""
    known: list[Tensor] = field(default_factory=list)
    """Parameters of distributed models that are used outside their forward."""
    names: list[str] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    fault: str = ""
    """Reason why the loss cannot be weighted across ranks."""

    @staticmethod
    def of(root: Any) -> LossGraph:
        """Walk the graph from the loss's node to outputs and leaves."""
        graph = LossGraph()
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                for below, _ in node.next_functions:
                    graph.reaches[node] |= graph.reaches.get(below, 0)
                if is_global(node):
                    graph.reaches[node] = GLOBAL | graph.reaches[node] & (KNOWN | UNKNOWN)
            elif node not in graph.reaches:
                graph.reaches[node] = graph._leaf(node)
                if not graph.reaches[node] & ~GLOBAL:
                    stack.append((node, True))
                    stack += [(below, False) for below, _ in node.next_functions if below is not None]
        return graph

    def _leaf(self, node: Any) -> int:
        """The kind of a node at which the walk ends; 0 for others."""
        self.names.append(node.name())
        output = getattr(node, "wirewise_output", None)
        if output is not None:
            self.outputs.append((node, output))
            return PLAIN
        if is_global(node):
            self.sums.append(node)
            return GLOBAL
        variable = getattr(node, "variable", None)
        if variable is None:
            return 0
        if is_distributed(variable):
            self.known.append(variable)
            return KNOWN
        self.unknown.append(variable)
        return UNKNOWN

    def decompose(self, root: Any, count: int, own: int) -> None:
        """Decompose the loss into a sum of means, or record the fault.

        Args:
            root: Autograd node of a loss.
            count: Number of own training nodes.
            own: Number of own nodes.
        """
        paths: list[tuple[Any, tuple[float, ...], str]] = [(root, (), "")]
        for _ in range(_MAX_PATHS):
            if not paths or self.fault:
                break
            paths += self._descend(*paths.pop(), count, own)
        if paths and not self.fault:
            self.fault = f"adds up more than {_MAX_PATHS} terms"

    def penalties(self, root: Any) -> list[tuple[Any, int]]:
        """Edges to terms of the loss that use parameters and no outputs."""
        found, left = [], [root]
        while left:
            node = left.pop()
            below = [(n, i) for n, i in node.next_functions if n is not None]
            if kind_of(node) in ("Add", "Sub", "Rsub", *_SAME) or len(below) == 1:
                with_outputs = [n for n, _ in below if self.reaches[n] & (PLAIN | GLOBAL)]
                left += [n for n in with_outputs if not (is_global(n) or hasattr(n, "wirewise_output"))]
                found += [(n, i) for n, i in below if n not in with_outputs and self.reaches[n] & KNOWN]
        return found

    def _descend(
        self, node: Any, divisors: tuple[float, ...], why: str, count: int, own: int
    ) -> list[tuple[Any, tuple[float, ...], str]]:
        """Nodes below a node that is linear, with the constants on the way; none below a mean."""
        if hasattr(node, "wirewise_output"):
            self.fault = why or "has no mean over rows"
            return []
        kind, below = kind_of(node), [(n, i) for n, i in node.next_functions if n is not None]
        plain = [n for n, _ in below if self.reaches[n] & PLAIN]
        term = (
            None if kind in ("Mean", "Sum") and _stacks(plain[0]) else _term(node, kind, divisors, count, own)
        )
        if isinstance(term, Term):
            if self.reaches[node] != PLAIN:
                self.fault = (
                    f"takes a mean ({kind}) of values that use parameters, or job.mean, beside the outputs"
                )
            if all(term.node is not other.node for other in self.terms):
                self.terms.append(term)
            return []
        why = term or why
        if kind in ("Mean", "Sum") or kind in _SAME:
            return [(n, divisors, why) for n in plain]
        if kind in ("Add", "Sub", "Rsub"):
            return [(n, divisors, why) for n in plain]
        if kind in ("Mul", "Div") and len(below) == 1:
            return [(plain[0], (*divisors, *_divisor(node, kind)), why)]
        self.fault = (
            why or f"goes through {kind or node.name()}, which is not linear in means over training nodes"
        )
        return []


def is_global(node: Any) -> bool:
    """Whether a node belongs to `Job.mean` or `Job.sum`."""
    return getattr(node, "wirewise_global", False)


def kind_of(node: Any) -> str:
    """Name of a node's operation, without number: "Mean" for MeanBackward0."""
    name = str(node.name()).rsplit("::", 1)[-1]
    return name.rstrip("0123456789").removesuffix("Backward")


def plain_edges(term: Term, reaches: dict[Any, int]) -> Iterator[tuple[Any, int]]:
    """Inputs of a mean that depend on outputs."""
    return (
        (node, place)
        for node, place in term.node.next_functions
        if node is not None and reaches[node] & PLAIN
    )


def _stacks(node: Any) -> bool:
    """Whether a reduction reads numbers that were stacked, not rows."""
    while (
        kind_of(node) in ("View", "Clone", "Alias", "Mul", "ToCopy") and node.next_functions[0][0] is not None
    ):
        node = node.next_functions[0][0]
    return kind_of(node) == "Stack" and not _shape(node.next_functions[0][0])


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node._input_metadata[0].shape)


def _divisor(node: Any, kind: str) -> tuple[float, ...]:
    """The number by which a node divides; nothing where its constant is no number."""
    other = getattr(node, "_saved_other", None)
    if other is None:
        other = getattr(node, "_saved_self", None)
    if isinstance(other, Tensor):
        if other.numel() != 1:
            return ()
        other = other.item()
    if not isinstance(other, (int, float)) or not other:
        return ()
    return (float(other) if kind == "Div" else 1.0 / other,)


def _term(node: Any, kind: str, divisors: tuple[float, ...], count: int, own: int) -> Term | str:
    """The mean that a node takes, the reason for which it is none over the training nodes, or ""."""
    if kind in ("Mean", "Sum"):
        shape, takes = tuple(node._saved_self_sym_sizes), _reduced(node)
        mean = kind == "Mean"
    elif getattr(node, "_saved_reduction", None) in _REDUCING:
        shape, mean = tuple(node._saved_self.shape), node._saved_reduction == 1
        takes = set(range(len(shape)))
        if kind in ("NllLoss", "NllLoss2D"):
            return _classes(node, shape, mean, divisors, count)
    else:
        return ""
    size = math.prod(shape[d] for d in takes)
    if mean:
        if not _has_rows(shape, takes, count):
            return f"takes a mean over {size} values ({kind}), where this rank has {count} training nodes"
        return Term(node, count, count / max(size, 1))
    rows = next((n for n in (count, own) if _has_rows(shape, takes, n)), None)
    if rows is None or not _divides(divisors, count, size // max(rows, 1)):
        return f"takes a sum over {size} values ({kind}), not divided by this rank's {count} training nodes"
    return Term(node, rows, float(count))


def _classes(
    node: Any, shape: tuple[int, ...], mean: bool, divisors: tuple[float, ...], count: int
) -> Term | str:
    """The term of a loss over classes, which may weigh them or leave some out."""
    weight, places = node._saved_weight, math.prod(shape) // max(shape[1], 1) if len(shape) > 1 else 1
    if weight is not None and not bool((weight == weight[0]).all()):
        return "weighs classes, and so divides by the weights of this rank's training nodes"
    if not mean:
        if not shape or shape[0] != count or not _divides(divisors, count, places // max(count, 1)):
            return f"takes a sum over {places} values (NllLoss), not divided by this rank's {count} training nodes"
        return Term(node, count, float(count))
    total = float(node._saved_total_weight) / (1.0 if weight is None else float(weight[0]))
    if not shape or shape[0] != count or abs(total - places) > 1e-6 * places:
        return f"takes a mean over {total:g} values (NllLoss), where this rank has {count} training nodes"
    return Term(node, count, count / max(places, 1))


def _reduced(node: Any) -> set[int]:
    """Dimensions that a mean or a sum takes."""
    dims = len(node._saved_self_sym_sizes)
    # torch gives negative ones as unsigned numbers.
    taken = [d - (1 << 64) if d >= 1 << 63 else d for d in getattr(node, "_saved_dim", ()) or ()]
    return {d % dims for d in taken} or set(range(dims))


def _has_rows(shape: tuple[int, ...], takes: set[int], rows: int) -> bool:
    if any(shape[d] == rows for d in takes):
        return True
    return len(takes) == len(shape) == 1 and rows > 0 and shape[0] % rows == 0


def _divides(divisors: tuple[float, ...], count: int, columns: int) -> bool:
    """Whether one of the constants divides by the rows, or by their elements."""
    sizes = {count, count * columns}
    return count == 1 or any(abs(d - n) <= 1e-6 * n for d in divisors for n in sizes)
