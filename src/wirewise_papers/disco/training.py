"""Rank side of the comparison: times of operators and all-reduces, the plan, and both training variants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from wirewise.cli.profile_stages import user_function
from wirewise.cost.link import LinkCost, fit_link
from wirewise.errors import InputError
from wirewise.planners.fusion.disco import (
    AnalyticCosts,
    Estimator,
    Knobs,
    RegionCosts,
    StepModel,
    costs_for,
    plan_operators,
)
from wirewise.plans import FusionPlan
from wirewise.profile.operators import measure_operators
from wirewise.profile.rounds import Bench, concurrent_times
from wirewise.runtime.data_parallel.capture import Capture, capture
from wirewise.runtime.data_parallel.changes import compiler_obstacle
from wirewise.runtime.data_parallel.compiled import compile_step
from wirewise.trace.operators import FusionGraph
from wirewise.trials.rank import Rank
from wirewise_papers.disco.experiment import DDP, PLANNED, DiscoOptions

__all__ = ["MODELS", "subjects"]

Loss = Callable[[nn.Module, Any], Tensor]
Built = tuple[nn.Module, Any, Loss]
_CLASSES = 10


class _Mixer(nn.Module):
    """Layers that mix patches and channels in turn (MLP-Mixer)."""

    def __init__(self, blocks: int = 4, patches: int = 64, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.ModuleList(_dense(patches, 2 * patches) for _ in range(blocks))
        self.channels = nn.ModuleList(_dense(width, 4 * width) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * blocks))
        self.out = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for number, (patches, channels) in enumerate(zip(self.patches, self.channels, strict=True)):
            x = x + patches(self.norms[2 * number](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * number + 1](x))
        return self.out(x.mean(1))


def _dense(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def _mlp() -> nn.Module:
    layers = [m for _ in range(4) for m in (nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128))]
    return nn.Sequential(*layers, nn.Linear(128, _CLASSES))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mixer": (_Mixer, (16, 64, 128)),
    "mlp": (_mlp, (128, 128)),
}
"""Models that come with the experiment, and the shape of a batch."""


def subjects(rank: Rank[DiscoOptions]) -> dict[str, _Training]:
    """Both variants, with the same initial parameters."""
    job, transport = rank.job, rank.transport
    # Before minutes of measurement: a plan whose regions run operator by operator is no plan of DisCo.
    if job.compiler == "inductor" and (obstacle := compiler_obstacle("cpu")):
        raise InputError(
            f"{obstacle}; expected a C++ compiler such as g++: install one, or give --compiler none"
        )
    plan = _planned(rank)
    plain, planned = _built(job.model, transport.rank), _built(job.model, transport.rank)
    step = compile_step(
        planned[0], planned[2], planned[1], plan, transport, compiler=job.compiler, timeout_s=job.timeout_s
    )
    for place, why in step.fallbacks.items():
        rank.log(f"not compiled, runs operator by operator: {place}: {why}")
    wrapped = DistributedDataParallel(plain[0], process_group=transport.group)
    return {
        DDP: _Training(plain[0], lambda: _backward(plain[2](wrapped, plain[1])), transport.world_size, None),
        PLANNED: _Training(planned[0], lambda: step(planned[1]), transport.world_size, plan),
    }


class _Training:
    """Steps of one variant with SGD."""

    def __init__(
        self, model: nn.Module, step: Callable[[], Tensor], ranks: int, plan: FusionPlan | None
    ) -> None:
        self.step, self.ranks, self.plan = step, ranks, plan
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def train(self, steps: int) -> Iterator[float]:
        """Train n steps."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.step()
            self.optimizer.step()
            yield float(loss) / self.ranks

    def outcome(self) -> Any:
        """The plan, if the variant has one."""
        return None if self.plan is None else msgspec.to_builtins(self.plan)

    def close(self) -> None:
        """Nothing is held."""


def _backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss.detach()


def _built(name: str, rank: int) -> Built:
    """A model with the same parameters on all ranks, and this rank's batch."""
    torch.manual_seed(0)
    if ":" in name:
        file, _, function = name.rpartition(":")
        made = user_function(file, function)()
        if not isinstance(made, tuple) or len(made) != 3 or not isinstance(made[0], nn.Module):
            raise InputError(f"{name} returns {type(made).__name__}; expected a model, a batch and a loss")
        return made  # type: ignore[return-value]
    if name not in MODELS:
        raise InputError(f"unknown model {name!r}; expected FILE.py:NAME or one of: {', '.join(MODELS)}")
    build, shape = MODELS[name]
    model, draw = build(), torch.Generator().manual_seed(rank + 1)
    batch = torch.randn(shape, generator=draw), torch.randint(_CLASSES, shape[:1], generator=draw)
    return model, batch, lambda own, pair: functional.cross_entropy(own(pair[0]), pair[1])


def _planned(rank: Rank[DiscoOptions]) -> FusionPlan:
    """The plan of rank 0, for what all ranks measured together."""
    job, transport = rank.job, rank.transport
    model, batch, loss = _built(job.model, transport.rank)
    captured = capture(model, loss, batch)
    transport.barrier("the measuring of operators")
    graph = measure_operators(
        captured.module, captured.inputs(model, batch), captured.operators, passes=job.passes
    )
    total_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    wire = fit_link(concurrent_times(Bench(transport), total_bytes, torch.device("cpu")))
    overlap_rate = _overlap_rate(rank, captured, captured.inputs(model, batch), total_bytes)
    optimizer_s = float(transport.slowest(_optimizer_s(model, job.passes)))
    plan = None
    if rank.first:
        step = StepModel(
            graph,
            _costs(graph, job.estimator),
            LinkCost(latency_s=max(wire.latency_s, 0.0), s_per_byte=max(wire.s_per_byte, 0.0)),
            overlap_rate=overlap_rate,
            ranks=transport.world_size,
        )
        plan = plan_operators(step, other_s=optimizer_s, knobs=Knobs(stop=job.stop, seed=job.seed)).plan
    found: FusionPlan = rank.from_first(plan, FusionPlan)
    return found


def _costs(graph: FusionGraph, estimator: str) -> RegionCosts:
    if estimator == "formula":
        return AnalyticCosts(graph)
    return costs_for(graph, None if estimator == "shipped" else Estimator.load(Path(estimator))).costs


def _overlap_rate(
    rank: Rank[DiscoOptions], captured: Capture, inputs: list[Tensor], total_bytes: int
) -> float:
    """Speed of computing while gradients travel, as a fraction of that alone; mean of the ranks.

    A network thread takes processor time from computing: an assumed 1 promised gains that did not come.
    """
    # Twice the gradients, so that the message outlasts computing.
    flat = torch.zeros(total_bytes // 2)
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rank.job.passes):
        for beside, own in taken.items():
            rank.transport.barrier("the measuring of overlap")
            work = rank.transport.group.allreduce([flat]) if beside else None
            begin_s = time.perf_counter()
            captured.module(*inputs)
            own.append(time.perf_counter() - begin_s)
            if work is not None:
                work.wait()
    rates = rank.transport.mean([median(taken[False]) / median(taken[True])], "the measuring of overlap")
    return float(np.clip(rates[0], 0.05, 1.0))


def _optimizer_s(model: nn.Module, passes: int) -> float:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer, taken = torch.optim.SGD(model.parameters(), lr=0.0), []
    for _ in range(passes):
        begin_s = time.perf_counter()
        optimizer.step()
        taken.append(time.perf_counter() - begin_s)
    return median(taken)
