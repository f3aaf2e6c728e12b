"""Small models, batches and plans, and what one process makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests.harness.threads import run_ranks_as_threads
from wirewise.plans import StagePlan
from wirewise.plans.timetables import weight_version
from wirewise.runtime.pipeline import LayerGraph, Pipeline

WIDTH = 6


class Add(nn.Module):
    """The sum of what a layer makes of its first input and of a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return torch.tanh(self.own(x)) + skip


def chain(count: int = 8, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> LayerGraph:
    torch.manual_seed(3)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(dropout), nn.LayerNorm(WIDTH))
        for _ in range(count)
    ]
    return LayerGraph(nn.ModuleList(layers).to(dtype))


def unet() -> LayerGraph:
    """Eight modules; the later ones take the outputs of the earlier ones over several stages."""
    torch.manual_seed(4)
    names = [f"down{n}" for n in range(4)] + [f"up{n}" for n in range(4)]
    modules = {n: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) if "down" in n else Add() for n in names}
    sources = {f"up{n}": (names[3 + n], f"down{3 - n}") for n in range(4)}
    return LayerGraph({n: m.double() for n, m in modules.items()}, sources)


def arms() -> LayerGraph:
    """Two arms of two modules between the first and the last one."""
    torch.manual_seed(6)
    names = ["first", "left0", "left1", "right0", "right1", "last"]
    modules = {n: Add() if n == "last" else nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for n in names}
    sources = {"right0": ("first",), "last": ("left1", "right1")}
    return LayerGraph({n: m.double() for n, m in modules.items()}, sources)


def tied() -> LayerGraph:
    """First and last module share their weight."""
    layers = chain(6)
    modules = dict(layers.modules)
    first, last = nn.Linear(WIDTH, WIDTH).double(), nn.Linear(WIDTH, WIDTH, bias=False).double()
    last.weight = first.weight
    return LayerGraph({"first": first, **modules, "last": last})


def plan_for(layers: LayerGraph, positions: int, **more: Any) -> StagePlan:
    each = more.get("chunks", 2) if more.get("style") == "interleaved" else 1
    count, size = len(layers.names), positions * each
    cuts = [count * n // size for n in range(1, size)]
    return StagePlan.from_cuts(layers.names, cuts, edges=layers.edges(cuts), microbatch_size=2, **more)


def batches(count: int, plan: StagePlan, replica: int = 0, dtype: torch.dtype = torch.float64) -> list[Any]:
    random = torch.Generator().manual_seed(10 + replica)
    rows = plan.microbatches * plan.microbatch_size
    return [
        (
            torch.randn(rows, WIDTH, generator=random, dtype=dtype),
            torch.randn(rows, WIDTH, generator=random, dtype=dtype),
        )
        for _ in range(count)
    ]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def outputs(layers: LayerGraph, x: Tensor) -> Tensor:
    values = {"input": x}
    for name, module in layers.modules.items():
        values[name] = module(*(values[source] for source in layers.sources[name]))
    return values[layers.output]


def parameters_of(layers: LayerGraph) -> dict[str, nn.Parameter]:
    return {f"{n}.{k}": p for n, m in layers.modules.items() for k, p in m.named_parameters()}


def alone(
    build: Callable[[], LayerGraph],
    plan: StagePlan,
    feeds: Sequence[Sequence[Any]],
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    *,
    clip: float | None = None,
) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and losses of one process that follows the plan's recurrence.

    Args:
        feeds: Batches of each replica.
    """
    layers, delayed = build(), build()
    weights = list(dict.fromkeys(parameters_of(layers).values()))
    stale = list(dict.fromkeys(parameters_of(delayed).values()))
    made, m = optimizer(weights), plan.microbatches
    history = [[p.detach().clone() for p in weights]]
    losses = []
    for update in range(len(feeds[0])):
        version = weight_version(update * m, m) if plan.weight_versions == 2 else update
        for own, old in zip(stale, history[version], strict=True):
            own.data.copy_(old)
            own.grad = None
        total = 0.0
        for feed in feeds:
            x, y = feed[update]
            for k in range(m):
                rows = slice(k * plan.microbatch_size, (k + 1) * plan.microbatch_size)
                found = loss(outputs(delayed, x[rows]), y[rows]) / m
                found.backward()
                total += float(found.detach()) / len(feeds)
        for parameter, own in zip(weights, stale, strict=True):
            parameter.grad = None if own.grad is None else own.grad / len(feeds)
        if clip is not None:
            nn.utils.clip_grad_norm_(weights, clip)
        made.step()
        history.append([p.detach().clone() for p in weights])
        losses.append(total)
    return {name: p.detach() for name, p in parameters_of(layers).items()}, losses


def piped(
    build: Callable[[], LayerGraph],
    plan: StagePlan,
    count: int,
    optimizer: Callable[[list[nn.Parameter]], Any],
    **more: Any,
) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and losses of a pipeline whose ranks are threads, one replica."""

    # Threads share torch's generator, so models are made before they start.
    built = [build() for _ in range(plan.world_size)]

    def body(rank: int, group: Any, store: Any) -> Any:
        pipeline = Pipeline(
            built[rank],
            plan,
            loss=loss,
            optimizer=optimizer,
            process_group=group,
            store=store,
            timeout_s=20,
            **more,
        )
        found = [one.loss for one in pipeline.train(batches(count, plan))]
        pipeline.close()
        return {n: p.detach() for n, p in pipeline.weights.named.items()}, found

    ranks = run_ranks_as_threads(plan.world_size, body)
    losses = next(found for _, found in ranks if found and found[0] is not None)
    return {n: p for weights, _ in ranks for n, p in weights.items()}, losses


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference of any weight."""
    return max(float((found[n] - expected[n]).abs().max()) for n in found)
