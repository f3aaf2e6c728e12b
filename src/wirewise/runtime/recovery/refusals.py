"""Checks that refuse trainings that cannot be protected, by name, before the first step."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer, SparseAdam

from wirewise.errors import InputError
from wirewise.runtime.recovery import control
from wirewise.runtime.trees import pack

__all__ = ["check_model", "check_objects", "check_once", "check_optimizers", "remember"]

_trainings: dict[int, weakref.ref[Any]] = {}
"""Training of each thread of this process that called `protect` last."""


def check_model(model: nn.Module) -> None:
    """Raise for a model with process groups, which would be lost with a rank."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise InputError(
                f"parameter {name!r} of a lazy module has no shape yet; expected a batch through the model before "
                "protect()"
            )
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, DataParallel):
            raise InputError(
                "got a DataParallel, which splits batches itself; expected the module that it wraps"
            )
        if getattr(module, "sparse", False) is True and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise InputError(
                f"got {kind}(sparse=True), whose gradients are sparse; reduced ones are dense: sparse=False"
            )
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                f"got a {kind}, whose process group dies with a rank; give the module that it wraps, and sync=DDP()"
            )
        if kind.startswith("FSDP"):
            raise InputError(
                "got a module that fully_shard has sharded, on a mesh whose process groups die with a rank; give the "
                "module unsharded, and the calls of fully_shard as protect(sync=Shards(function, replicas=2))"
            )


def check_optimizers(optimizers: Optimizer | Sequence[Optimizer], schedulers: Iterable[Any]) -> None:
    """Raise for optimizers and schedules whose steps need values that only the script has.

    Raises:
        InputError: A step needs a closure or a metric, or gradients are sparse.
    """
    for one in [optimizers] if isinstance(optimizers, Optimizer) else optimizers:
        name = type(one).__name__
        if needed := _needed(one.step):
            raise InputError(
                f"got {name}, whose step needs {needed}, and computes the loss several times in one update; expected "
                "an optimizer that steps once by the gradients that are reduced"
            )
        if isinstance(one, SparseAdam):
            raise InputError(
                f"got {name}, which takes sparse gradients; reduced ones are dense: expected Adam"
            )
    for schedule in schedulers:
        if needed := _needed(schedule.step):
            raise InputError(
                f"got the scheduler {type(schedule).__name__}, whose step needs {needed}, which protect() does not "
                "know; expected it in State(objects=...), stepped by the script after the block with a metric that all "
                "ranks have alike"
            )


def check_objects(objects: Mapping[str, Any]) -> None:
    """Raise for objects whose state cannot be sent to another rank.

    Raises:
        InputError: An object has no state, or one that would need code.
    """
    for name, one in objects.items():
        if not hasattr(one, "state_dict") or not hasattr(one, "load_state_dict"):
            raise InputError(
                f"objects[{name!r}] is a {type(one).__name__}; expected methods state_dict and load_state_dict"
            )
        try:
            pack(one.state_dict())
        except InputError as error:
            raise InputError(f"objects[{name!r}] cannot travel: {error}") from error


def check_once() -> None:
    """Raise if a training of this process is still running, or its process group is not the agent's."""
    if control.current() is not None and dist.is_initialized():
        raise InputError(
            "the script has started a process group of its own, and an agent starts the ranks; expected none: leave "
            "init_process_group out, protect() makes the group of each generation"
        )
    known = _trainings.get(threading.get_ident())
    if known is None or known() is None:
        return
    # One that nobody holds any more is part of a cycle.
    gc.collect()
    training = known()
    if training is None or (training.is_over and control.current() is None):
        return
    if training.is_over:
        raise InputError(
            "protect() was called again in a process whose training is over; an agent starts the ranks of one "
            "training: start the next one as a job of its own"
        )
    raise InputError(
        "protect() was called while another protected training of this process is not over; expected one: give all "
        "models as one nn.Module, such as nn.ModuleDict, and their optimizers as a list"
    )


def remember(training: Any) -> None:
    """Register the training of this process for `check_once`."""
    _trainings[threading.get_ident()] = weakref.ref(training)


def _needed(step: Any) -> str:
    """First argument without default of a method; "" if there is none."""
    parameters = inspect.signature(inspect.unwrap(step)).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [one.name for one in parameters if one.kind in kinds and one.default is inspect.Parameter.empty]
    return next((name for name in wanted if name != "self"), "")
