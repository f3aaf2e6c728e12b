"""Recording of an unmodified script."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wirewise.profile.ending import end_process
from wirewise.profile.tracer import Tracer
from wirewise.trials.inside.tasks import Record

__all__ = ["record"]


def record(task: Record, may_end: Callable[[], bool] = lambda: True) -> Callable[[], None]:
    """Record from `init_process_group` on, or without one, from the first optimizer step on.

    Args:
        task: Steps to record, and the folder.
        may_end: Whether the script may be ended once all steps are recorded, if the task says so.

    Returns:
        A function that closes the recording of this rank; the process has to end then.
    """
    original_init, original_destroy = dist.init_process_group, dist.destroy_process_group
    tracers: list[Tracer] = []

    def begin() -> None:
        if not tracers:
            tracers.append(_tracer(task, may_end))

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

    def close() -> None:
        for tracer in tracers:
            tracer.close()

    return close


def _tracer(task: Record, may_end: Callable[[], bool]) -> Tracer:
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
        register_optimizer_step_post_hook(lambda *_: _stop(tracer, may_end))
    return tracer


def _stop(tracer: Tracer, may_end: Callable[[], bool]) -> None:
    if tracer.over and may_end():
        tracer.close()
        end_process()
