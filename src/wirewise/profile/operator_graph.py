"""Time of each operator of a captured training step on this machine, measured alone on tensors of its shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import msgspec
import torch
from torch import Tensor, fx

from wirewise.sim.operator_times import DeviceFigures, moves_nothing, roofline_times
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["measured_times"]

_PASSES, _LONG_S = 5, 0.3


def measured_times(
    graph: OperatorGraph, module: fx.GraphModule, *, most_bytes: int = 2 << 30, budget_s: float = 60.0
) -> OperatorGraph:
    """Measure the operators of a graph on this machine's CPU, and return the graph with their times.

    Operators of equal kind, arguments, shapes and types are measured once: the median of five runs after a warm-up
    run, of fewer if a run is long. Tensors hold random numbers, integers zeros. Operators beyond the memory or time
    limit get times extrapolated from the rates of the measured ones, and the graph notes their number.

    Args:
        graph: Training step to time.
        module: Module with nodes of the same names that computes the step.
        most_bytes: Maximum bytes of an operator's tensors.
        budget_s: Time limit of the measurement, in seconds; operators with the most work go first.
    """
    named = {node.name: node for node in module.graph.nodes}
    groups: dict[bytes, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        if not moves_nothing(node):
            groups.setdefault(_key(graph, node), []).append(number)
    ends = time.perf_counter() + budget_s
    seconds: dict[int, float] = {}
    left: list[int] = []
    for own in sorted(groups.values(), key=lambda one: -_work(graph, graph.nodes[one[0]]) * len(one)):
        node = graph.nodes[own[0]]
        if _moved(graph, node) > most_bytes or time.perf_counter() > ends:
            left += own
            continue
        once = _measured(named[node.name])
        seconds.update(dict.fromkeys(own, once))
    nodes = list(graph.nodes)
    if left:
        estimated = roofline_times(graph, _figures(graph, seconds)).nodes
        seconds |= {number: estimated[number].time_s for number in left}
    for number, one in seconds.items():
        nodes[number] = msgspec.structs.replace(nodes[number], time_s=one)
    note = (
        f"{len(left)} of {len(seconds)} operators were too large or too many to measure; their seconds are from the "
        "rates of the others"
    )
    return msgspec.structs.replace(
        graph, nodes=tuple(nodes), device="cpu", notes=(*graph.notes, *([note] if left else []))
    )


def _key(graph: OperatorGraph, node: OperatorNode) -> bytes:
    read = [(graph.nodes[one].shape, graph.nodes[one].dtype) for one in node.inputs]
    return msgspec.json.encode((node.op, node.arguments, node.roles, node.shape, node.dtype, read))


def _moved(graph: OperatorGraph, node: OperatorNode) -> int:
    return node.output_bytes + sum(graph.nodes[one].output_bytes for one in node.inputs)


def _work(graph: OperatorGraph, node: OperatorNode) -> float:
    """Rough seconds, for the order of measuring alone."""
    return node.flops / 1e11 + _moved(graph, node) / 1e10


def _measured(node: fx.Node) -> float:
    made: dict[fx.Node, Any] = {}

    def example(one: fx.Node) -> Any:
        if one not in made:
            made[one] = _like(one.meta["val"])
        return made[one]

    args, kwargs = fx.map_arg(node.args, example), fx.map_arg(node.kwargs, example)
    run: Callable[..., Any] = node.target  # type: ignore[assignment]
    times: list[float] = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        spent = 0.0
        for _ in range(_PASSES + 1):
            begin = time.perf_counter()
            run(*args, **kwargs)
            times.append(time.perf_counter() - begin)
            spent += times[-1]
            if spent > _LONG_S and len(times) > 1:
                break
    return median(times[1:])


def _like(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_like(one) for one in value)
    if not isinstance(value, Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return made.uniform_() if made.is_floating_point() else made.zero_()


def _figures(graph: OperatorGraph, seconds: dict[int, float]) -> DeviceFigures:
    """Rates that measured operators show: products for computing, the others for bytes."""
    computing, moving = [], []
    for number, one in seconds.items():
        node = graph.nodes[number]
        if node.flops > 16 * node.elements:
            computing.append((node.flops, one))
        else:
            moving.append((float(_moved(graph, node)), one))
    rate = _rate(computing, 1e10)
    return DeviceFigures(rate, rate, _rate(moving, 5e9), min(seconds.values(), default=1e-6))


def _rate(pairs: Sequence[tuple[float, float]], default: float) -> float:
    amount, seconds = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return amount / seconds if seconds > 0 and amount > 0 else default
