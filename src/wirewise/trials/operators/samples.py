"""Samples of fused operators: regions of steps of small models and random chains, compiled and measured."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.profile.layouts import node_layout
from wirewise.profile.regions import (
    PRIME,
    CapturedRegion,
    compile_dynamic,
    random_region,
    resize_batch,
    seconds_alone,
    seconds_of,
)
from wirewise.runtime.data_parallel.capture import Loss, is_operator, parts_of_result, producer_of, size_bytes
from wirewise.runtime.data_parallel.categories import category_of, flops_of
from wirewise.runtime.data_parallel.regions import Segment, module_of
from wirewise.trace.operators import FusionGraph, Operator
from wirewise.trials.operators.models import SOURCES, captured_graph, captured_step

__all__ = ["Sample", "collect", "collect_step", "read_samples", "samples_of"]

_SMALLEST, _LARGEST = 2**11, 2**22.5
"""Elements of the largest value of a region, at the least and the greatest batch."""

_MOST_S = 0.015

_PATIENCE_S = 0.3
"""Longest wait for each undisturbed loop of a region, whose time the estimator learns and is judged by."""

_DRAWN = (*SOURCES, "chain", "chain", "chain")


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Fused region at one size, with its measured time."""

    source: str
    """Model, or "chain"."""
    graph: FusionGraph
    """Operators of the region; those outside that it reads are opaque ones of kind "outside"."""
    operators: tuple[int, ...]
    """Indices of the operators of the region."""
    outputs: tuple[int, ...]
    seconds: float
    """Measured seconds."""
    size: int
    draw: int = 0
    """Index of the captured step."""
    details: tuple[str, ...] = ()
    """Type, shape, strides and arguments of each operator."""


def collect(
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    structures: float = 300,
    sizes: int = 10,
    regions_per_step: int = 5,
    sources: Sequence[str] = (),
    steps: float = inf,
) -> Iterator[list[Sample]]:
    """Measure random regions on this machine with one thread; appends the samples of each to `out` as a line.

    Samples already in `out` count, so that an interrupted run continues.

    Args:
        out: File of JSON lines.
        seed: Seed of the samples.
        structures: Regions in `out` at the end, unless the steps are used up.
        sizes: Batches at which each is measured.
        regions_per_step: Number of regions sampled from a captured step, without duplicates.
        sources: Sources of the captured steps, in order. Defaults to sampling from all, chains more often.
        steps: Maximum number of captured steps.
    """
    path = Path(out)
    known = read_samples(path) if path.exists() else []
    done, draw = len(known), known[-1][0].draw + 1 if known else 0
    torch.set_num_threads(1)
    while done < structures and draw < steps:
        random = Random(f"{seed}/{draw}")
        source = sources[draw % len(sources)] if sources else random.choice(_DRAWN)
        regions = _regions(random, source, sizes, regions_per_step)
        for samples in regions:
            found = [msgspec.structs.replace(one, draw=draw) for one in samples]
            with path.open("ab") as file:
                file.write(msgspec.json.encode(found) + b"\n")
            done += 1
            yield found
            if done == structures:
                return
        draw += 1


def collect_step(
    model: nn.Module, loss: Loss, batch: Any, *, draws: int = 400, sizes: int = 3, seed: int = 0
) -> Iterator[list[Sample]]:
    """Measure random regions of a model's step on this machine, one thread; each takes some seconds.

    Args:
        model: Model, none of whose widths is a multiple of `PRIME`.
        loss: Loss of the model and a batch.
        batch: Batch of `PRIME` samples; regions are measured at smaller and larger ones.
        draws: Number of regions to sample, without duplicates.
        sizes: Batches at which each is measured.
        seed: Seed of the samples.

    Raises:
        InputError: The step cannot be captured, or it is ambiguous which sizes grow with the batch.
    """
    module, graph, bounds = captured_step(model, loss, batch)
    torch.set_num_threads(1)
    yield from _drawn(
        module, graph, bounds, Random(seed), source=type(model).__name__, sizes=sizes, draws=draws
    )


def read_samples(path: str | os.PathLike[str]) -> list[list[Sample]]:
    """Read the samples that `collect` wrote, by region.

    Raises:
        InputError: The file cannot be read; names it.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
        return [decode_json(line, list[Sample]) for line in lines]
    except (OSError, msgspec.MsgspecError) as cause:
        raise InputError(
            f"cannot read samples from {os.fspath(path)}: {cause}; collect them again"
        ) from cause


def _regions(random: Random, source: str, sizes: int, count: int) -> Iterator[list[Sample]]:
    try:
        module, graph, bounds = captured_graph(source, random)
    except InputError as error:
        warnings.warn(f"left out {source}: {error}", RuntimeWarning, stacklevel=2)
        return
    yield from _drawn(module, graph, bounds, random, source=source, sizes=sizes, draws=count)


def _drawn(
    module: fx.GraphModule,
    graph: FusionGraph,
    bounds: dict[str, int],
    random: Random,
    *,
    source: str,
    sizes: int,
    draws: int,
) -> Iterator[list[Sample]]:
    seen = set[CapturedRegion]()
    for _ in range(draws):
        most = min(2 + int(random.expovariate(1 / 12)), 32)
        picked = random_region(graph, random, most)
        if picked in seen or len(picked.operators) < 2:
            continue
        seen.add(picked)
        try:
            yield samples_of(module, graph, picked, bounds, random, source=source, sizes=sizes)
        except InputError as error:
            warnings.warn(f"left out a region of {source}: {error}", RuntimeWarning, stacklevel=2)


def samples_of(
    module: fx.GraphModule,
    graph: FusionGraph,
    captured: CapturedRegion,
    bounds: dict[str, int],
    random: Random,
    *,
    source: str = "",
    sizes: int = 10,
) -> list[Sample]:
    """Compile a region and measure it at some sizes.

    Args:
        module: Captured at a batch of `PRIME`.
        graph: Operators of the module.
        captured: Operators of the region.
        bounds: One more than the largest value of each node that has integers, by name.
        random: Random number generator of the sizes.
        source: Name of the module's model.
        sizes: Number of sizes to measure.

    Raises:
        InputError: It does not grow with the batch, or cannot be compiled.
    """
    region = _module(module, graph, captured)
    batches = _batches(region, random, sizes)
    places = region.graph.find_nodes(op="placeholder")
    calls = (
        (size, [_values(node.meta["val"], size, bounds.get(node.name, 2)) for node in places])
        for size in batches
    )
    found, alone, kernels, first = [], [], [], []
    for size, inputs, kernel in compile_dynamic(region, calls):
        kernels.append(kernel)
        first += seconds_of([kernel], repeats=2)
        at = resize_batch(region, size)
        FakeTensorProp(at, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*inputs)
        alone.append(seconds_alone(at, inputs))
        found.append((size, at))
        if max(sum(alone[-1].values()), first[-1]) > _MOST_S:
            break
    # The least of two times of measuring: a neighbour's load on the caches may last as long as one.
    measured = map(min, first, seconds_of(kernels, repeats=4, patience_s=_PATIENCE_S))
    return [
        _sample(source, size, at, times, seconds)
        for (size, at), times, seconds in zip(found, alone, measured, strict=True)
    ]


def _module(module: fx.GraphModule, graph: FusionGraph, picked: CapturedRegion) -> fx.GraphModule:
    by_name = {node.name: node for node in module.graph.nodes}
    nodes = [by_name[graph.operators[i].name] for i in picked.operators]
    whole = [part for node in nodes for part in (node, *parts_of_result(node))]
    inside = set(whole)
    inputs = list(dict.fromkeys(r for node in nodes for r in node.all_input_nodes if r not in inside))
    leaving = {by_name[graph.operators[i].name] for i in picked.outputs}
    outputs = [
        n for n in whole if producer_of(n) in leaving and (n is not producer_of(n) or not parts_of_result(n))
    ]
    region = module_of(Segment(tuple(whole), tuple(inputs), tuple(outputs), True))
    for node, read in zip(region.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.meta["outside"] = read.op != "call_function"
    return region


def _batches(region: fx.GraphModule, random: Random, count: int) -> list[int]:
    """Ascending; equal steps on a log scale, moved at random."""
    values = [node.meta["val"] for node in region.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    largest = max((v.numel() for v in values if v.numel() % PRIME == 0), default=0)
    if not any(
        length and length % PRIME == 0
        for node in region.graph.find_nodes(op="placeholder")
        for length in node.meta["val"].shape
    ):
        raise InputError("a region reads nothing that grows with the batch; pick another one")
    steps = [(i + random.random()) / count for i in range(count)]
    elements = [_SMALLEST * (_LARGEST / _SMALLEST) ** step for step in steps]
    return sorted({max(3, round(one / largest * PRIME)) for one in elements})


def _values(like: Tensor, size: int, bound: int) -> Tensor:
    """Random values with the shape and the strides of another tensor, but for a batch of the given size."""
    shape, strides = ([_grown(i, size) for i in one] for one in (like.shape, like.stride()))
    bound = 2 if like.dtype == torch.bool else _grown(bound, size)
    # Expanded values hold some elements more than once: fill what they are a view of.
    held = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + 1
    flat = torch.empty(held, dtype=like.dtype)
    flat = flat.uniform_(0.1, 1.0) if like.dtype.is_floating_point else flat.random_(0, bound)
    return flat.as_strided(shape, strides)


def _grown(length: int, size: int) -> int:
    return length // PRIME * size if length and length % PRIME == 0 else length


def _sample(
    source: str, size: int, region: fx.GraphModule, times: dict[str, float], seconds: float
) -> Sample:
    described = _operators(region, times)
    numbers = {node: number for number, node in enumerate(described)}
    (end,) = region.graph.find_nodes(op="output")
    return Sample(
        source=source,
        graph=FusionGraph(operators=tuple(described.values()), model=source, device="cpu"),
        operators=tuple(i for i, one in enumerate(described.values()) if one.kind != "outside"),
        outputs=tuple(sorted({numbers[producer_of(node)] for node in end.all_input_nodes})),
        seconds=seconds,
        size=size,
        details=tuple(_detail(node) for node in described),
    )


def _operators(region: fx.GraphModule, times: dict[str, float]) -> dict[fx.Node, Operator]:
    found: dict[fx.Node, Operator] = {}
    nodes = [n for n in region.graph.nodes if is_operator(n) or "outside" in n.meta]
    inner = [n for n in nodes if not n.meta.get("outside", False)]
    number = {node: i for i, node in enumerate(inner)}
    for node in inner:
        reads = dict.fromkeys(producer_of(read) for read in node.all_input_nodes)
        outside = "outside" in node.meta
        found[node] = Operator(
            name=node.name,
            kind="outside" if outside else str(node.target),
            category="opaque" if outside else category_of(node),
            inputs=tuple(sorted(number[read] for read in reads if read in number)),
            outside_bytes=sum(size_bytes(read) for read in reads if read not in number),
            output_bytes=size_bytes(node),
            elements=sum(v.numel() for v in _tensors(node)),
            flops=0.0 if outside else flops_of(node),
            time_s=times.get(node.name, 0.0),
            layout=node_layout(node),
        )
    return found


def _tensors(node: fx.Node) -> Sequence[Tensor]:
    value: Any = node.meta.get("val")
    return [v for v in (value if isinstance(value, tuple | list) else [value]) if isinstance(v, Tensor)]


def _detail(node: fx.Node) -> str:
    values, reads = (
        " ".join(f"{v.dtype}{list(v.shape)}{list(v.stride())}" for one in nodes for v in _tensors(one))
        for nodes in ([node], node.all_input_nodes)
    )
    return f"{values} <- {node.args} {node.kwargs} <- {reads}"
