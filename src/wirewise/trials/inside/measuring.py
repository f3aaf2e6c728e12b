"""Measures, inside an unmodified script, what a plan of its gradients needs to know; then ends the script.

The script trains as it is, with DistributedDataParallel; after some steps its ranks time codecs and collectives among
themselves.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wirewise.cost.gradients import Advised
from wirewise.files import write_json
from wirewise.profile.ending import end_process
from wirewise.profile.gradients import GradientWatch, measure_costs_of
from wirewise.runtime.data_parallel.unmodified import replace_wrapper
from wirewise.runtime.transport import Transport
from wirewise.trials.inside.tasks import Measure

__all__ = ["measure"]


def measure(task: Measure) -> None:
    """Watch the first model that DistributedDataParallel wraps from now on."""
    watch = _Script(task)
    replace_wrapper(_Watched, begun=staticmethod(watch.begin))
    register_optimizer_step_pre_hook(lambda *_: watch.before_step())
    register_optimizer_step_post_hook(lambda *_: watch.after_step())


class _Watched(DistributedDataParallel):
    begun: Callable[[DistributedDataParallel], None]

    def __init__(self, module: nn.Module, *args: Any, **options: Any) -> None:
        super().__init__(module, *args, **options)
        self.begun(self)


class _Script:
    """One rank of the script."""

    def __init__(self, task: Measure) -> None:
        self.task = task
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
        if len(self.ends) > self.task.warmup + self.task.steps:
            self._finish()

    def _finish(self) -> None:
        assert self.model is not None
        ranks = dist.get_process_group_ranks(self.model.process_group)
        group = dist.new_group(ranks)
        assert isinstance(group, dist.ProcessGroup)
        transport = Transport(group, store=dist.distributed_c10d._get_default_store())
        steps = self.task.steps
        trace = self.gradients.trace(steps, transport)
        self.gradients.close()
        found = Advised(
            trace=trace,
            costs=measure_costs_of(
                trace,
                transport,
                self.task.codecs,
                ratio=self.task.ratio,
                device=next(self.model.parameters()).device,
            ),
            ranks=transport.world_size,
            step_s=float(transport.slowest(statistics.median(self._steps_s()))),
            forward_s=float(transport.slowest(statistics.median(self._forward_s()))),
        )
        if dist.get_rank() == ranks[0]:
            write_json(self.task.file, found)
        end_process()

    def _steps_s(self) -> list[float]:
        last = self.ends[-self.task.steps - 1 :]
        return [after - before for before, after in pairwise(last)]

    def _forward_s(self) -> list[float]:
        """Seconds from the end of a step to the end of its last forward pass, and in the optimizer."""
        begins = self.ends[-self.task.steps - 1 : -1]
        forwards = self.gradients.forward_ends_s(self.task.steps)
        spent = self.optimizing[-self.task.steps :]
        return [
            forward - begin + optimizing
            for begin, forward, optimizing in zip(begins, forwards, spent, strict=True)
        ]
