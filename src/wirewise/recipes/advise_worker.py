"""Measures, inside an unmodified script, what a plan of its gradients needs to know; then ends the script.

`profile.launch.environment` has `install` called in every rank. The script trains as it is, with
DistributedDataParallel; after some steps its ranks time codecs and collectives among themselves.
"""

from __future__ import annotations

import os
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wirewise.cost.gradients import GradientCosts
from wirewise.files import atomic_file
from wirewise.profile.ending import end_process
from wirewise.profile.gradients import GradientWatch, measure_costs
from wirewise.runtime.transport import Transport
from wirewise.trace.gradients import GradientTrace

__all__ = ["ENTRY", "VARIABLE", "AdviceWish", "Advised", "install", "read"]

ENTRY = "wirewise.recipes.advise_worker:install"
"""What the environment of a command names to have `install` called."""
VARIABLE = "WIREWISE_ADVICE"
"""Environment variable with an `AdviceWish`."""


class AdviceWish(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    file: str
    """Rank 0 writes an `Advised` there."""
    codecs: tuple[str, ...]
    ratio: float = 0.01
    warmup: int = 5
    steps: int = 20


class Advised(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    trace: GradientTrace
    costs: GradientCosts
    ranks: int
    step_s: float
    """From one optimizer step to the next, median, of the slowest rank."""
    forward_s: float
    """Of it: all but the last backward pass: data, forward passes, backward passes that exchange nothing, and the
    optimizer."""


def install() -> None:
    """From now on the first model that DistributedDataParallel wraps is watched."""
    watch = _Script(msgspec.json.decode(os.environ[VARIABLE], type=AdviceWish))

    class Watched(DistributedDataParallel):
        def __init__(self, module: nn.Module, *args: Any, **options: Any) -> None:
            super().__init__(module, *args, **options)
            watch.begin(self)

    Watched.__name__ = Watched.__qualname__ = "DistributedDataParallel"
    nn.parallel.DistributedDataParallel = Watched  # type: ignore[misc]
    nn.parallel.distributed.DistributedDataParallel = Watched  # type: ignore[misc]
    register_optimizer_step_pre_hook(lambda *_: watch.before_step())
    register_optimizer_step_post_hook(lambda *_: watch.after_step())


class _Script:
    """One rank of the script."""

    def __init__(self, wish: AdviceWish) -> None:
        self.wish = wish
        self.model: DistributedDataParallel | None = None
        self.ends: list[float] = []
        self.optimizing: list[float] = []
        self._began_s = 0.0

    def begin(self, model: DistributedDataParallel) -> None:
        """Watch the first model that is wrapped."""
        if self.model is None:
            self.model = model
            self.gradients = GradientWatch(model.module, lambda: bool(model.require_backward_grad_sync))

    def before_step(self) -> None:
        """An optimizer begins."""
        if self.model is not None and self.gradients.has_gradients:
            self._began_s = time.perf_counter()

    def after_step(self) -> None:
        """An optimizer is done; after the last step that counts, measure the rest and end.

        One that comes without new gradients of the model, such as a second optimizer, belongs to the step before.
        """
        if self.model is None:
            return
        now = time.perf_counter()
        if self.gradients.step_ended():
            self.ends.append(now)
            self.optimizing.append(now - self._began_s)
        elif self.ends:
            self.ends[-1], self.optimizing[-1] = now, now - self._began_s
        if len(self.ends) > self.wish.warmup + self.wish.steps:
            self._finish()

    def _finish(self) -> None:
        assert self.model is not None
        ranks = dist.get_process_group_ranks(self.model.process_group)
        group = dist.new_group(ranks)
        assert isinstance(group, dist.ProcessGroup)
        transport = Transport(group, store=dist.distributed_c10d._get_default_store())
        steps = self.wish.steps
        trace = self.gradients.trace(steps, transport)
        self.gradients.close()
        found = Advised(
            trace=trace,
            costs=self._costs(trace, transport),
            ranks=transport.world_size,
            step_s=self._slowest(self._steps_s(), transport),
            forward_s=self._slowest(self._forward_s(), transport),
        )
        if dist.get_rank() == ranks[0]:
            with atomic_file(self.wish.file) as file:
                file.write(msgspec.json.encode(found))
        end_process()

    def _steps_s(self) -> list[float]:
        last = self.ends[-self.wish.steps - 1 :]
        return [after - before for before, after in pairwise(last)]

    def _forward_s(self) -> list[float]:
        """From the end of a step to the end of its last forward pass, and in the optimizer."""
        begins = self.ends[-self.wish.steps - 1 : -1]
        forwards = self.gradients.forward_ends_s(self.wish.steps)
        spent = self.optimizing[-self.wish.steps :]
        return [
            forward - begin + optimizing
            for begin, forward, optimizing in zip(begins, forwards, spent, strict=True)
        ]

    def _costs(self, trace: GradientTrace, transport: Transport) -> GradientCosts:
        sizes = [tensor.elements for tensor in trace.tensors]
        low, high = max(min(sizes), 64), max(sum(sizes), 128)
        grid = {int(low * (high / low) ** (place / 7)) for place in range(8)}
        device = next(iter(self.model.parameters())).device if self.model is not None else None
        return measure_costs(
            transport,
            self.wish.codecs,
            sizes=sorted(grid),
            ratio=self.wish.ratio,
            device=device,
            tensor_elements=max(sum(sizes) // len(sizes), 1),
        )

    @staticmethod
    def _slowest(seconds: list[float], transport: Transport) -> float:
        median = torch.tensor([statistics.median(seconds)], dtype=torch.float64)
        transport.all_reduce(median, "the exchange of measured times", dist.ReduceOp.MAX)
        return float(median)


def read(file: str | Path) -> Advised:
    """What rank 0 wrote."""
    return msgspec.json.decode(Path(file).read_bytes(), type=Advised)
