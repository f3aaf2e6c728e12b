"""Losses of small trainings on one process, with and without gradients that are one update old."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.graph import BlockModel, block_model
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline import LayerGraph, Pipeline
from wirewise_papers.pipedream_2bw.job import PipelineJob
from wirewise_papers.text_model import batches, language_model, loss

TAIL = 10
"""The last 1 / TAIL of the updates count."""

CLIP = 1.0
"""Largest norm of the gradients."""

RATES = {
    ("text", "sgd"): (0.02, 0.01), ("text", "adamw"): (0.001, 0.0005),
    ("graph", "sgd"): (0.02,), ("graph", "adamw"): (0.001,), ("graph", "muon"): (0.01,),
}  # fmt: skip
"""Rates at which the synchronous training is stable; the larger one, the more a delay costs."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "synchronous": ("1f1b", {}),
    "delayed": ("2bw", {}),
    "corrected": ("2bw", {"delay_correction": "error_feedback"}),
}
"""Style of the timetable and further options."""


def optimizers(name: str, rate: float) -> Callable[[list[nn.Parameter]], Any]:
    def made(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        if name == "sgd":
            return [torch.optim.SGD(parameters, lr=rate, momentum=0.9)]
        matrices = [p for p in parameters if p.dim() == 2 and name == "muon"]
        others = [p for p in parameters if p.dim() != 2 or name != "muon"]
        muon = [torch.optim.Muon(matrices, lr=rate)] if matrices else []
        return [*muon, torch.optim.AdamW(others, lr=min(rate, 0.005))]

    return made


def schedule(updates: int) -> Callable[[torch.optim.Optimizer], Any]:
    """A tenth of the updates to warm up, then down to zero along a cosine, as models are trained."""
    warm = max(1, updates // 10)

    def share(update: int) -> float:
        if update < warm:
            return (update + 1) / warm
        return 0.5 * (1.0 + math.cos(math.pi * (update - warm) / (updates - warm)))

    return partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=share)


def trained(
    layers: LayerGraph, style: str, m: int, size: int, feed: Iterator[Any], **more: Any
) -> list[float]:
    """Loss of each update; the recurrence is the same for any number of stages, here one."""
    plan = StagePlan.from_cuts(layers.names, [], style=style, microbatches=m, microbatch_size=size)
    store = dist.HashStore()
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    group = dist.ProcessGroupGloo(store, 0, 1, options)
    pipeline = Pipeline(layers, plan, process_group=group, store=store, **more)
    found = [one.loss for one in pipeline.train(feed)]
    pipeline.close()
    return found  # type: ignore[return-value]


def last(losses: list[float]) -> float:
    return statistics.fmean(losses[-max(1, len(losses) // TAIL) :])


def text_losses(optimizer: str, rate: float, updates: int, seeds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for seed in range(seeds):
        job = PipelineJob(seed=seed, hosts=1, stages=1)
        for name, own in found.items():
            style, more = CASES[name]
            losses = trained(
                language_model(job), style, job.microbatches, job.microbatch_size, batches(job, 0, 0, updates),
                loss=loss, optimizer=optimizers(optimizer, rate), schedule=schedule(updates), clip=CLIP, **more,
            )  # fmt: skip
            own.append(last(losses))
    return {name: statistics.fmean(own) for name, own in found.items()}


class Sage(nn.Module):
    """A layer of GraphSAGE with means of neighbours, [nodes, width] -> [nodes, width]."""

    def __init__(self, neighbours: Tensor, width_in: int, width_out: int, last: bool) -> None:
        super().__init__()
        self.neighbours, self.last = neighbours, last
        self.own, self.others = nn.Linear(width_in, width_out), nn.Linear(width_in, width_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.own(x) + self.others(self.neighbours @ x)
        return out if self.last else torch.relu(out)


def graph_losses(optimizer: str, rate: float, updates: int, seeds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for seed in range(seeds):
        data = block_model(
            BlockModel(
                nodes=1500, classes=5, features=16, mean_degree=8.0, noise=4.0, norm_sigma=0.0, seed=seed
            )
        )
        x, y, neighbours = tensors(data)
        for name, own in found.items():
            style, more = CASES[name]
            torch.manual_seed(seed)
            layers = [
                Sage(neighbours, x.shape[1], 16, False),
                Sage(neighbours, 16, 16, False),
                Sage(neighbours, 16, 5, True),
            ]
            losses = trained(
                LayerGraph(layers), style, 1, len(x), iter([(x, y)] * updates),
                loss=nn.functional.cross_entropy, optimizer=optimizers(optimizer, rate),
                schedule=schedule(updates), clip=CLIP, **more,
            )  # fmt: skip
            own.append(last(losses))
    return {name: statistics.fmean(own) for name, own in found.items()}


def tensors(data: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Features, classes and the matrix of means over neighbours."""
    source, target = torch.from_numpy(data.edge_index.astype("int64"))
    count = len(data.y)
    degree = torch.bincount(target, minlength=count).clamp(min=1)
    means = torch.sparse_coo_tensor(
        torch.stack([target, source]), 1.0 / degree[target].float(), (count, count), check_invariants=True
    ).coalesce()
    x = torch.from_numpy(data.x)
    return x / x.std(), torch.from_numpy(data.y), means


class Stiff(nn.Module):
    """Least squares whose curvatures differ by a factor of 1,000; rows of noise in, rows of differences out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.register_buffer("curvature", torch.logspace(0, 3, size))

    def forward(self, noise: Tensor) -> Tensor:
        out: Tensor = self.curvature.sqrt() * (self.weight + 0.003 * noise)
        return out


def stiff_losses(seeds: int, updates: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        random = torch.Generator().manual_seed(seed)
        feed = [(x := torch.randn(4, 20, generator=random), x) for _ in range(updates)]
        for name in ("synchronous", "none", "nesterov", "error_feedback"):
            more = {} if name == "synchronous" else {"delay_correction": name}
            losses = trained(
                LayerGraph([Stiff(20)]), "1f1b" if name == "synchronous" else "2bw", 2, 2, iter(feed),
                loss=lambda out, _: 0.5 * out.square().sum(dim=1).mean(),
                # The velocity of "nesterov" is a momentum already.
                optimizer=partial(torch.optim.Adam, lr=0.1, betas=(0.0 if name == "nesterov" else 0.9, 0.999)), **more,
            )  # fmt: skip
            found.setdefault(name, []).append(last(losses))
    return {name: statistics.fmean(own) for name, own in found.items()}
