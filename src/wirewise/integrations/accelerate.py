"""Compressed gradients for scripts that use Hugging Face Accelerate.

model, optimizer, data = accelerator.prepare(model, optimizer, data)
compress(accelerator, model, codec="efsign")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wirewise.errors import InputError
from wirewise.files import atomic_file
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import Compression, HookState, hook
from wirewise.runtime.data_parallel.ddp import check_hooked
from wirewise.runtime.data_parallel.pools import resize

__all__ = ["compress"]

_NAME = "wirewise-rank{}.pt"
"""Error-feedback state, a file for each rank beside a checkpoint."""


def compress(
    accelerator: Any,
    model: nn.Module,
    plan: FusionPlan | None = None,
    *,
    codec: str | None = None,
    compression: Compression | None = None,
) -> HookState | None:
    """Exchange the gradients of a prepared model under a plan or with a codec.

    Error-feedback state is written by `accelerator.save_state` and read by `accelerator.load_state`, on every rank.
    Accumulation, clipping and `no_sync` of Accelerate work as before.

    Args:
        accelerator: An `accelerate.Accelerator` for several processes without a sharding plugin.
        model: Return value of `accelerator.prepare`.
        plan: Plan from a planner; or pass a codec.
        codec: Name of a gradient codec for all gradients.
        compression: Options of the codecs' use.

    Returns:
        State of the hook, with `bytes_sent`. None if there is one process, and nothing is exchanged.

    Raises:
        InputError: The model is not wrapped by DistributedDataParallel, or neither or both of plan and codec are given.
        PlanError: The plan cannot be executed.
    """
    if plan is not None:
        check_hooked(plan)
    if accelerator.num_processes == 1:
        return None
    if not isinstance(model, DistributedDataParallel):
        raise InputError(
            f"got a {type(model).__name__} of {accelerator.num_processes} processes; expected the "
            "DistributedDataParallel that accelerator.prepare(model) returns without a sharding plugin"
        )
    state, carry = hook(plan, model.process_group, codec=codec, compression=compression, model=model.module)
    model.register_comm_hook(state, carry)
    accelerator.register_save_state_pre_hook(lambda _models, _weights, folder: _save_pools(state, folder))
    accelerator.register_load_state_pre_hook(lambda _models, folder: _load_pools(state, folder))
    return state


def _save_pools(state: HookState, folder: str | Path) -> None:
    """Write the file of this rank; InputError where the folder does not take it, and an older file is still whole."""
    with atomic_file(Path(folder) / _NAME.format(dist.get_rank())) as file:
        torch.save(state.state_dict(), file)


def _load_pools(state: HookState, folder: str | Path) -> None:
    """Read what this rank saved; where as many ranks as now did not save, the mean of what all saved."""
    files = sorted(Path(folder).glob(_NAME.format("*")))
    if not files:
        raise InputError(
            f"{folder} has no {_NAME.format('*')}; expected a checkpoint that was saved under compression"
        )
    states = [torch.load(file, map_location="cpu", weights_only=True) for file in files]
    world = dist.get_world_size()
    if len(files) == world:
        own = Path(folder) / _NAME.format(dist.get_rank())
        state.load_state_dict(states[files.index(own)])
    else:
        state.load_state_dict(resize(states, world))
