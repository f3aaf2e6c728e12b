"""Records a script that knows nothing of wirewise."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wirewise.profile.ending import end_process
from wirewise.profile.tracer import Tracer
from wirewise.trials.inside.tasks import Record

__all__ = ["record"]


def record(task: Record) -> None:
    """Record from `init_process_group` on, or where a job has none, from its first optimizer step on."""
    original_init, original_destroy = dist.init_process_group, dist.destroy_process_group
    tracers: list[Tracer] = []

    def begin() -> None:
        if not tracers:
            tracers.append(_tracer(task))

    def init(*args: Any, **kwargs: Any) -> None:
        original_init(*args, **kwargs)
        begin()

    def destroy(group: Any = None) -> None:
        if group is None and tracers:
            # While an error is on its way the other ranks may not come here.
            (tracers[0].close if sys.exc_info()[0] is None else tracers[0].abandon)()
        original_destroy(group)

    for module in (dist, dist.distributed_c10d):
        for name, ours in (("init_process_group", init), ("destroy_process_group", destroy)):
            setattr(module, name, ours)
    register_optimizer_step_pre_hook(lambda *_: begin())


def _tracer(task: Record) -> Tracer:
    tracer = Tracer(
        task.folder,
        optimizer="first",
        warmup=task.warmup,
        steps=task.steps,
        every=task.every,
        # A full disk is no reason to end the user's training.
        forgiving=True,
    )
    tracer.watch_all()
    if task.stop:
        register_optimizer_step_post_hook(lambda *_: _stop(tracer))
    return tracer


def _stop(tracer: Tracer) -> None:
    if tracer.over:
        tracer.close()
        end_process()
