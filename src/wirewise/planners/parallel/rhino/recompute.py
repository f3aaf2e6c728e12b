"""Recomputation: parts of the forward pass that are recomputed in the backward pass instead of kept."""

from __future__ import annotations

from typing import Literal

from wirewise.planners.parallel.rhino.loops import POINTWISE, VIEWS
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["RECOMPUTE", "Recompute", "recomputed_nodes"]

Recompute = Literal["nothing", "cheap operators", "blocks"]
RECOMPUTE: tuple[Recompute, ...] = ("nothing", "cheap operators", "blocks")
"""Recomputation modes: nothing; pointwise operators, norms and softmax between compute-intensive operators; or
everything between the joints of blocks."""

_RANDOM = frozenset({"native_dropout", "bernoulli", "rand_like", "randn_like", "rand", "randn"})
_CHEAP = (POINTWISE | VIEWS | frozenset({
    "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "permute", "transpose", "t", "expand",
    "slice", "split", "split_with_sizes", "chunk", "select", "cat",
})) - _RANDOM  # fmt: skip


def recomputed_nodes(graph: OperatorGraph, mode: Recompute) -> tuple[frozenset[int], frozenset[int]]:
    """Forward nodes to recompute, and nodes whose outputs are kept for that.

    Args:
        graph: Training step as operators.
        mode: One of `RECOMPUTE`.
    """
    if mode == "nothing":
        return frozenset(), frozenset()
    kept = _joints(graph) if mode == "blocks" else frozenset()
    again: set[int] = set()
    # Only what the backward pass takes, itself or through others, is worth it.
    for number in reversed(range(len(graph.nodes))):
        node = graph.nodes[number]
        wanted = any(graph.nodes[u].phase == "backward" or u in again for u in graph.users[number])
        if node.phase == "forward" and wanted and number not in kept and _can(graph, node, mode):
            again.add(number)
    return frozenset(again), kept


def _can(graph: OperatorGraph, node: OperatorNode, mode: Recompute) -> bool:
    source = graph.nodes[node.inputs[0]] if node.op == "getitem" else node
    name = source.op.split(".")[1] if source.op.startswith("aten.") else source.op
    return source.computes and name not in _RANDOM and (mode == "blocks" or name in _CHEAP)


def _joints(graph: OperatorGraph) -> frozenset[int]:
    """Forward nodes past which no other forward tensor is read, every one that begins a new module."""
    found, latest = list[int](), -1
    for number, node in enumerate(graph.nodes):
        if node.phase != "forward" or not (node.computes or node.op == "getitem"):
            continue
        last = max((u for u in graph.users[number] if graph.nodes[u].phase == "forward"), default=number)
        if node.computes and latest <= number < last and node.shape:
            before = graph.nodes[found[-1]].module if found else None
            if node.module != before:
                found.append(number)
            else:
                found[-1] = number
        latest = max(latest, last)
    return frozenset(found)
