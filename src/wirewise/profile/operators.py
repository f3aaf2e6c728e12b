"""Time of each operator of a captured step alone, and its memory access pattern."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from statistics import median
from typing import Any

import msgspec
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.profile.layouts import node_layout
from wirewise.trace.operators import FusionGraph

__all__ = ["measure_operators"]


def measure_operators(
    module: fx.GraphModule,
    inputs: Sequence[Tensor],
    operators: FusionGraph,
    *,
    passes: int = 7,
    known_times: dict[Hashable, float] | None = None,
) -> FusionGraph:
    """Measure the layout and time of each operator, as the median of passes over the whole graph.

    In a pass every operator runs alone, in order and on the values of this step, so caches are in the same state as
    in training. Operators of equal kind, arguments, shapes and types share a measurement (DisCo, TPDS 2022, keys its
    profile by opcode and shape).

    Args:
        module: Functional graph, whose nodes have the operators' names.
        inputs: Inputs of the graph.
        operators: Operators of this graph.
        passes: Number of measured passes, after a warm-up pass.
        known_times: Times from earlier calls; new measurements are added. Nothing runs if it is complete.

    Raises:
        InputError: The graph lacks some of the operators, or there are no passes.
    """
    if passes < 1:
        raise InputError(f"got {passes} passes; expected at least 1")
    nodes = {node.name: node for node in module.graph.nodes}
    if missing := [one.name for one in operators.operators if one.name not in nodes]:
        raise InputError(
            f"the graph has no operators {', '.join(missing[:8])}; give the graph that they are of"
        )
    known_times = {} if known_times is None else known_times
    keys = {one.name: _key(nodes[one.name]) for one in operators.operators}
    if not known_times.keys() >= set(keys.values()):
        with torch.random.fork_rng(devices=[]):
            known_times |= _measured(module, inputs, keys, passes)
    return msgspec.structs.replace(
        operators,
        operators=tuple(
            msgspec.structs.replace(
                one, time_s=known_times[keys[one.name]], layout=node_layout(nodes[one.name])
            )
            for one in operators.operators
        ),
    )


def _measured(
    module: fx.GraphModule, inputs: Sequence[Tensor], keys: dict[str, Hashable], passes: int
) -> dict[Hashable, float]:
    watch = _Watch(module, keys)
    for number in range(passes + 1):
        if number == 1:
            watch.seconds.clear()
        watch.run(*inputs)
    found: dict[Hashable, list[float]] = {}
    for name, seconds in watch.seconds.items():
        found.setdefault(keys[name], []).extend(seconds)
    return {key: median(seconds) for key, seconds in found.items()}


class _Watch(fx.Interpreter):
    """Runs a graph and notes how long operators take."""

    def __init__(self, module: fx.GraphModule, keys: dict[str, Hashable]) -> None:
        super().__init__(module)
        self._keys = keys
        self.seconds: dict[str, list[float]] = {}

    def run_node(self, node: fx.Node) -> Any:
        if node.name not in self._keys:
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        function: Any = node.target
        tensors = (leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor))
        device = next((leaf.device for leaf in tensors), None)
        _synchronize(device)
        begin = time.perf_counter()
        result = function(*args, **kwargs)
        _synchronize(device)
        self.seconds.setdefault(node.name, []).append(time.perf_counter() - begin)
        return result


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _key(node: fx.Node) -> Hashable:
    """Kind and arguments of an operator; tensors by shape, strides and type."""
    return str(node.target), str(fx.map_arg((node.args, node.kwargs), _described))


def _described(node: fx.Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        return _Shape(f"{value.dtype}{list(value.shape)}{list(value.stride())}@{value.device}")
    return _Shape(str(type(value).__name__))


class _Shape(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
