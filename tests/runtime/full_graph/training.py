"""Train small graphs on ranks that are threads, and gather what they computed by global node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.harness.threads import run_ranks_as_threads
from wirewise import graph
from wirewise.cost import ExchangeCosts, LinkCost, Links
from wirewise.results import EpochRecord
from wirewise.runtime import full_graph as fg

_SEEDING = threading.Lock()


@dataclass
class Run:
    """What all ranks together computed."""

    losses: list[float]
    logits: Tensor
    """[nodes, classes], by global id."""
    gradients: list[Tensor]
    """Gradients of the last epoch, summed over ranks."""
    records: list[EpochRecord]
    scores: dict[str, float]
    extra: list[Any] = field(default_factory=list)


def small_graph(**knobs: Any) -> graph.GraphData:
    """A block model of 300 nodes unless said otherwise."""
    return graph.block_model(
        graph.BlockModel(
            **{"nodes": 300, "features": 12, "classes": 4, "mean_degree": 6.0, "seed": 5, **knobs}
        )
    )


def split(data: graph.GraphData, parts: int) -> list[graph.Part]:
    """Random parts: nearly every node is marginal."""
    owners = (
        graph.partition(data, parts, method="random", seed=1) if parts > 1 else np.zeros(data.num_nodes, int)
    )
    return list(graph.split_graph(data, owners, num_parts=parts))


def on_slow_links(trainer: fg.Trainer) -> None:
    """Let the planner believe in links of 1 MB/s, on which every byte counts."""
    size = trainer.transport.world_size
    links = Links.of_pairs(LinkCost(latency_s=1e-4, s_per_byte=1e-6), size)
    trainer.bits.costs = ExchangeCosts(links=links)


def build_trainer(
    part: graph.Part,
    transport: fg.Transport,
    mode: fg.ExchangeMode | str,
    *,
    convolution: str = "gcn",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    hidden: int = 16,
    layers: int = 3,
    dropout: float = 0.5,
    norm: bool = True,
    journal: Any = None,
    **options: Any,
) -> fg.Trainer:
    """A trainer with the same initial weights on every rank and in every run."""
    tensors = fg.PartTensors(part, dtype=dtype, device=device)
    with _SEEDING:
        torch.manual_seed(0)
        model = fg.FullGraphNet(
            part.num_features,
            hidden,
            part.num_classes,
            layers=layers,
            convolution=convolution,
            dropout=dropout,
            norm=norm,
        ).to(device, dtype)
    chosen = fg.mode(mode) if isinstance(mode, str) else mode
    return fg.Trainer(
        tensors, model, transport, chosen, fg.TrainerOptions(seed=3, **options), journal=journal
    )


def train(
    parts: list[graph.Part],
    mode: fg.ExchangeMode | str,
    *,
    epochs: int = 3,
    before: Callable[[fg.Trainer], Any] | None = None,
    after: Callable[[fg.Trainer], Any] | None = None,
    **knobs: Any,
) -> Run:
    """Train on one thread a part; `before` and `after` are called on every rank."""

    def body(rank: int, group: Any, store: Any) -> tuple[Any, ...]:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainer = build_trainer(parts[rank], transport, mode, **knobs)
        if before is not None:
            before(trainer)
        # Ranks that are threads share the thread that torch keeps for each GPU: exchanges in it would wait for ever.
        with torch.autograd.set_multithreading_enabled(knobs.get("device", "cpu") == "cpu"):
            losses = [trainer.train_epoch() for _ in range(epochs)]
        gradients = [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]
        logits, scores = trainer.logits(bits=32), trainer.evaluate(bits=32)
        records = trainer.records()
        extra = after(trainer) if after is not None else None
        trainer.close()
        transport.close()
        return losses, logits, gradients, records, scores, extra

    results = run_ranks_as_threads(len(parts), body)
    logits = torch.empty(parts[0].num_nodes, results[0][1].shape[1], dtype=results[0][1].dtype)
    for part, result in zip(parts, results, strict=True):
        logits[torch.from_numpy(part.own_ids)] = result[1].cpu()
    return Run(results[0][0], logits, results[0][2], results[0][3], results[0][4], [r[5] for r in results])


def worst(a: list[Tensor], b: list[Tensor]) -> float:
    """Largest difference relative to the largest value."""
    pairs = zip(a, b, strict=True)
    return max(
        float((x.double() - y.double()).abs().max() / y.double().abs().max().clamp_min(1e-12))
        for x, y in pairs
    )


CONVOLUTIONS = ("gcn", "sage")
