"""Measurement of a plan's inputs inside an unmodified script, which is then ended.

The script trains unchanged, with DistributedDataParallel; after some steps its ranks time codecs and collectives.
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
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wirewise.cost.gradients import OtherModel, TrainingMeasurements
from wirewise.errors import InputError
from wirewise.files import write_json
from wirewise.profile.ending import end_process
from wirewise.profile.gradients import GradientWatch, measure_costs_of
from wirewise.runtime.data_parallel.unmodified import replace_wrapper
from wirewise.runtime.transport import Transport
from wirewise.trials.inside.recording import record
from wirewise.trials.inside.tasks import Measure

__all__ = ["measure"]


def measure(task: Measure) -> None:
    """Watch future models that DistributedDataParallel wraps."""
    script = _Script(task)
    replace_wrapper(_Watched, begun=staticmethod(script.begin))
    register_optimizer_step_pre_hook(lambda optimizer, *_: script.before_step(optimizer))
    register_optimizer_step_post_hook(lambda optimizer, *_: script.after_step(optimizer))
    if task.record is not None:
        # Behind the hooks above: a tracer begins in the first step and adds hooks, which only the last one may.
        script.end_recording = record(task.record, lambda: not script.models)


class _Watched(DistributedDataParallel):
    begun: Callable[[DistributedDataParallel], None]

    def __init__(self, module: nn.Module, *args: Any, **options: Any) -> None:
        super().__init__(module, *args, **options)
        self.begun(self)

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Refuse a hook: what it does to gradients is not what is measured.

        Raises:
            InputError: Always; the message names the hook.
        """
        raise InputError(
            f"the script registers the communication hook {getattr(hook, '__name__', hook)!r}, in whose place a plan "
            "would go; leave the hook away to be advised"
        )


class _Model:
    """A wrapped model and its steps, which end with the optimizers of its parameters."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model = model
        self.gradients = GradientWatch(model.module, lambda: bool(model.require_backward_grad_sync))
        self.size_bytes = sum(
            p.numel() * p.element_size() for p in model.module.parameters() if p.requires_grad
        )
        self._parameters = {id(p) for p in model.module.parameters()}
        self.ends: list[float] = []
        self.optimizing: list[float] = []
        self._began_s = 0.0

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer begins."""
        if self.gradients.has_gradients and self.owns(optimizer):
            self._began_s = time.perf_counter()

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer is done.

        One that comes without new gradients of the model, such as a second optimizer, belongs to the step before.
        """
        now = time.perf_counter()
        if self.owns(optimizer) and self.gradients.step_ended():
            self.ends.append(now)
            self.optimizing.append(now - self._began_s)
        elif self.ends and not self.gradients.has_gradients:
            self.ends[-1], self.optimizing[-1] = now, now - self._began_s

    def owns(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer has parameters of this model."""
        return any(id(p) in self._parameters for group in optimizer.param_groups for p in group["params"])


class _Script:
    """One rank of the script."""

    def __init__(self, task: Measure) -> None:
        self.task = task
        self.models: list[_Model] = []
        self.end_recording: Callable[[], None] = lambda: None

    @property
    def main(self) -> _Model:
        """The model with the most bytes of gradients, which the advice is on."""
        return max(self.models, key=lambda one: one.size_bytes)

    def begin(self, model: DistributedDataParallel) -> None:
        """Watch a model that is wrapped."""
        self.models.append(_Model(model))

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer begins."""
        for one in self.models:
            one.before_step(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer is done; after the last step that counts, measure the rest and end."""
        # That of another model is no part of this one's step.
        for one in [one for one in self.models if one.owns(optimizer)] or self.models:
            one.after_step(optimizer)
        if self.models and len(self.main.ends) > self._skipped + self.task.steps:
            self._finish()

    @property
    def _skipped(self) -> int:
        """Steps before those that count."""
        recorded = self.task.record
        return self.task.warmup + (0 if recorded is None else recorded.warmup + (recorded.steps or 0) + 1)

    def _finish(self) -> None:
        self.end_recording()
        main = self.main
        ranks = dist.get_process_group_ranks(main.model.process_group)
        group = dist.new_group(ranks)
        assert isinstance(group, dist.ProcessGroup)
        transport = Transport(group, store=dist.distributed_c10d._get_default_store())
        steps = self.task.steps
        seconds = self._steps_s()
        trace = main.gradients.trace(steps, transport)
        for one in self.models:
            one.gradients.close()
        found = TrainingMeasurements(
            trace=trace,
            costs=measure_costs_of(
                trace,
                transport,
                self.task.codecs,
                ratio=self.task.ratio,
                device=next(main.model.parameters()).device,
            ),
            ranks=transport.world_size,
            step_s=float(transport.slowest(statistics.median(seconds))),
            seconds=tuple(transport.slowest(seconds).tolist()),
            forward_s=float(transport.slowest(statistics.median(self._forward_s()))),
            others=tuple(
                OtherModel(type(one.model.module).__name__, one.size_bytes)
                for one in self.models
                if one is not main
            ),
        )
        if dist.get_rank() == ranks[0]:
            write_json(self.task.file, found)
        end_process()

    def _steps_s(self) -> list[float]:
        last = self.main.ends[-self.task.steps - 1 :]
        return [after - before for before, after in pairwise(last)]

    def _forward_s(self) -> list[float]:
        """Seconds from the end of a step to the end of its last forward pass, and in the optimizer."""
        main = self.main
        begins = main.ends[-self.task.steps - 1 : -1]
        forwards = main.gradients.forward_ends_s(self.task.steps)
        spent = main.optimizing[-self.task.steps :]
        return [
            forward - begin + optimizing
            for begin, forward, optimizing in zip(begins, forwards, spent, strict=True)
        ]
