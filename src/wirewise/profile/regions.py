"""Random fused operators, measured as samples for a learned cost estimator.

Generated as in DisCo (TPDS 2022): an operator of a captured step repeatedly absorbs its predecessors. A region is
captured at a batch of a prime size; every length and argument that the prime divides grows with the batch, so that
one compiled kernel is measured at many sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from operator import mul
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from wirewise.errors import InputError
from wirewise.profile.undisturbed import is_undisturbed
from wirewise.trace.operators import FusionGraph

__all__ = [
    "PRIME",
    "CapturedRegion",
    "Kernel",
    "compile_dynamic",
    "random_region",
    "resize_batch",
    "seconds_alone",
    "seconds_of",
]

PRIME = 61
"""Size of the batch at capture; no width of a captured model may be a multiple of it."""

_LOOP_S = 2e-4
_MOST_KERNELS = 3
"""Compilations of a region: where Inductor made a kernel for some sizes only, it compiles again."""
_PATIENCE_S = 0.05


class CapturedRegion(NamedTuple):
    """Region of a captured step."""

    operators: tuple[int, ...]
    """Indices of the operators, ascending."""
    outputs: tuple[int, ...]
    """Indices of the operators whose results leave the region."""


def random_region(graph: FusionGraph, random: Random, maximum: int) -> CapturedRegion:
    """Sample a legal region: an operator, and predecessors until it has `maximum` operators or none can be added.

    A predecessor with other readers either keeps serving them, or is copied for this region alone; always copied
    where a path would otherwise leave the region and return.

    Args:
        graph: Graph of the captured step.
        random: Random number generator.
        maximum: Maximum number of operators, at least 1.

    Raises:
        InputError: The graph has only views and opaque operators.
    """
    starts = [i for i, one in enumerate(graph.operators) if one.category not in ("view", "opaque")]
    if not starts:
        raise InputError(f"none of {len(graph.operators)} operators can be fused; capture another step")
    readers = _readers(graph)
    # The later of two draws, since early operators have few predecessors.
    members, copies = {max(random.choice(starts), random.choice(starts))}, set[int]()
    while len(members) < maximum:
        before = {i for one in members for i in graph.operators[one].inputs} - members
        found = sorted(i for i in before if _takes(graph, members, i))
        if not found:
            break
        one = random.choice(found)
        members.add(one)
        outside = readers[one] - members
        if outside and (random.random() < 0.3 or _comes_back(readers, outside, members)):
            copies.add(one)
    leaves = (i for i in members - copies if not readers[i] <= members or graph.operators[i].gradient)
    outputs = {*leaves, *(i for i in members if not readers[i] & members)}
    return CapturedRegion(tuple(sorted(members)), tuple(sorted(outputs)))


def _readers(graph: FusionGraph) -> list[set[int]]:
    readers: list[set[int]] = [set() for _ in graph.operators]
    for number, one in enumerate(graph.operators):
        for i in one.inputs:
            readers[i].add(number)
    return readers


def _takes(graph: FusionGraph, members: set[int], one: int) -> bool:
    """Whether a region takes an operator: no opaque one, one matmul at most, and none of what a matmul reads."""
    category = graph.operators[one].category
    matmuls = [i for i in members if graph.operators[i].category == "matmul"]
    read = {i for matmul in matmuls for i in graph.operators[matmul].inputs}
    return category != "opaque" and one not in read and not (category == "matmul" and matmuls)


def _comes_back(readers: Sequence[set[int]], outside: set[int], members: set[int]) -> bool:
    """Whether a path from outside leads into the region."""
    seen, waiting = set(outside), list(outside)
    while waiting:
        following = readers[waiting.pop()] - seen
        if following & members:
            return True
        seen |= following
        waiting.extend(following)
    return False


def resize_batch(module: fx.GraphModule, size: int | None) -> fx.GraphModule:
    """Rebuild the region for another batch size.

    Args:
        module: Region captured at a batch of `PRIME`.
        size: New batch size. None for a symbolic size, passed as the length of an additional first input.
    """
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    if size is None:
        ruler = graph.placeholder("ruler")
        batch: Any = graph.call_function(torch.ops.aten.sym_size.int, (ruler, 0))
    else:
        batch = size

    def scaled(value: Any) -> Any:
        if type(value) is not int or value < PRIME or value % PRIME:
            return value
        factor = value // PRIME
        if isinstance(batch, int):
            return batch * factor
        return batch if factor == 1 else graph.call_function(mul, (batch, factor))

    for node in module.graph.nodes:
        copy = graph.node_copy(node, copies.__getitem__)
        with graph.inserting_before(copy):
            copy.args, copy.kwargs = _mapped(scaled, (copy.args, copy.kwargs))
        copies[node] = copy
    return fx.GraphModule(module, graph)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Map as `tree_map` does, and into the lists of fx, whose type torch's trees do not know."""
    if isinstance(value, tuple | list):
        return tuple(_mapped(function, one) for one in value)
    if isinstance(value, dict):
        return {name: _mapped(function, one) for name, one in value.items()}
    return function(value)


class Kernel(NamedTuple):
    """Compiled region, called without the guards of torch.compile."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]


def compile_dynamic(
    module: fx.GraphModule, calls: Iterator[tuple[int, list[Tensor]]]
) -> Iterator[tuple[int, list[Tensor], Kernel]]:
    """Compile a region once by Inductor, with symbolic sizes, and yield its kernel for each call.

    Args:
        module: Region captured at a batch of `PRIME`.
        calls: Batch sizes, and inputs.

    Raises:
        InputError: Inductor cannot compile it, or recompiled it.
    """
    kernels: list[Kernel] = []
    compiled = 0

    def backend(graph: fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        nonlocal compiled
        compiled += 1
        if compiled > _MOST_KERNELS:
            raise RuntimeError(f"{_MOST_KERNELS} kernels do not serve all sizes")
        # Loaded late: it warns of what it uses itself.
        from torch._inductor.compile_fx import compile_fx

        function: Any = compile_fx(graph, example)

        def run(*inputs: Any) -> Any:
            kernels.append(Kernel(function, inputs))
            return function(*inputs)

        return run

    torch._dynamo.reset()
    placeholders = module.graph.find_nodes(op="placeholder")
    called = torch.compile(resize_batch(module, None), backend=backend, fullgraph=True)
    for size, inputs in calls:
        ruler = torch.empty(size)
        torch._dynamo.maybe_mark_dynamic(ruler, 0)
        for node, one in zip(placeholders, inputs, strict=True):
            grows = [d for d, length in enumerate(node.meta["val"].shape) if length and length % PRIME == 0]
            torch._dynamo.maybe_mark_dynamic(one, grows)
        try:
            with torch.no_grad():
                called(ruler, *inputs)
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise InputError(
                f"Inductor cannot compile a region: {type(error).__name__}: {first[:200]}"
            ) from error
        yield size, inputs, kernels[-1]


def seconds_of(kernels: Sequence[Kernel], repeats: int = 3, patience_s: float = _PATIENCE_S) -> list[float]:
    """CPU time of each kernel in this thread, in seconds: the minimum over loops of at least 200 us.

    Time while preempted does not count. A process on the core's other hyperthread does slow a kernel down, by half
    and more, for seconds on end, so a loop counts as undisturbed only if short reference loops before and after it
    ran at full speed. Waiting for that is a busy loop, as a kernel takes several times as long after a sleep.

    Args:
        kernels: Kernels, run round-robin, so that the loops of one are spread in time.
        repeats: Number of undisturbed loops per kernel.
        patience_s: Time limit for each of these loops, in seconds, after which those so far count.
    """
    loops = [_loops(one) for one in kernels]
    least, undisturbed = [float("inf")] * len(kernels), [0] * len(kernels)
    end = time.monotonic() + patience_s * repeats * len(kernels)
    while min(undisturbed, default=repeats) < repeats:
        for i, kernel in enumerate(kernels):
            if undisturbed[i] < repeats:
                while not (before := is_undisturbed()) and time.monotonic() < end:
                    pass
                # The reference and the other kernels have put its values out of the caches.
                _looped(kernel, 1)
                least[i] = min(least[i], _looped(kernel, loops[i]))
                undisturbed[i] += is_undisturbed() and before
        if time.monotonic() >= end:
            break
    return least


def _loops(kernel: Kernel) -> int:
    _looped(kernel, 1)
    return max(1, int(_LOOP_S / max(_looped(kernel, 2), 1e-7)) + 1)


def _looped(kernel: Kernel, loops: int) -> float:
    function, inputs = kernel
    begin = time.thread_time_ns()
    for _ in range(loops):
        function(*inputs)
    return (time.thread_time_ns() - begin) / loops * 1e-9


class _Calls(fx.Interpreter):
    """Runs a graph and keeps what each operator was called with."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.kernels: dict[str, Kernel] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function":
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            target: Any = n.target
            self.kernels[n.name] = Kernel(lambda: target(*args, **kwargs), ())
        return super().run_node(n)


def seconds_alone(module: fx.GraphModule, inputs: Sequence[Tensor], repeats: int = 4) -> dict[str, float]:
    """CPU time of each node of a graph run alone in eager mode, in seconds, by name."""
    calls = _Calls(module)
    with torch.no_grad():
        calls.run(*inputs)
        return dict(zip(calls.kernels, seconds_of(list(calls.kernels.values()), repeats), strict=True))
