"""Entry point that protects a script's training: argument checks, and construction of a `Training`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import msgspec
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from wirewise.errors import InputError
from wirewise.runtime.recovery import control
from wirewise.runtime.recovery.arguments import Checkpoints, Ranks, State
from wirewise.runtime.recovery.batches import Drawn
from wirewise.runtime.recovery.consistency import check_apart
from wirewise.runtime.recovery.job_record import record_of
from wirewise.runtime.recovery.old_arguments import refuse_old_arguments
from wirewise.runtime.recovery.placement import Placement
from wirewise.runtime.recovery.reduction import ReductionConfig, default_plan, pools_of
from wirewise.runtime.recovery.refusals import check_model, check_once, check_optimizers
from wirewise.runtime.recovery.session import CheckpointSettings, Training
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.recovery.sync import Backward, Buckets, Shards, Sync, check_sync
from wirewise.runtime.trees import digest_of

__all__ = ["protect"]


@refuse_old_arguments
def protect(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loader: DataLoader | Drawn,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    sync: Sync | None = None,
    state: State | None = None,
    checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
    seed: int = 0,
    ranks: Ranks | None = None,
) -> Training:
    """Join the training of all ranks, and protect it from failures if an agent has started this process.

    A spare waits here until it takes the role of a rank. Without an agent the ranks are those of torchrun, and a
    failure raises `PeerError` as it does elsewhere.

    Args:
        model: Model built identically on every rank, unwrapped; all ranks take the values of rank 0.
        optimizer: One or several optimizers of its parameters. The script must not call their `step` and `zero_grad`.
        loader: A `DataLoader` over a map-style dataset, whose batch size is that of one rank; or a function of step and
            share that returns a batch.
        steps: Number of updates; with a `DataLoader` it may be omitted in favour of `epochs`.
        epochs: Number of passes over the dataset.
        sync: How gradients are reduced: `Buckets`, `DDP`, `Fold`, `Backward` or `Shards`. Defaults to `Buckets()`.
        state: Schedules, scaler, clipping and further objects. Defaults to none of them.
        checkpoints: Where and how often checkpoints are written; a path means `Checkpoints(path)`. Defaults to no
            checkpoints.
        seed: Seed of the order of the dataset, and of random numbers in the steps.
        ranks: Device, backend and time limit of the ranks, and how often replicas are compared. Defaults to `Ranks()`.

    Raises:
        InputError: Something that cannot be protected, or an argument of older versions; the message names it.
        PeerError: The other ranks did not come.
    """
    control.check_main_program()
    check_model(model)
    sync = Buckets() if sync is None else sync
    state = State() if state is None else state
    ranks = Ranks() if ranks is None else ranks
    _check_kinds(sync, state, ranks)
    check_optimizers(optimizer, state.schedulers)
    if (steps is None) == (epochs is None):
        raise InputError(f"got steps={steps} and epochs={epochs}; expected one of them")
    if isinstance(sync, Backward):
        check_apart(state.clip, state.scaler, None)
        sync = dataclasses.replace(sync, plan=sync.plan or default_plan(model))
    compression = sync.compression if isinstance(sync, Buckets) else None
    pools = pools_of(model, sync.plan, compression)
    training_state = TrainingState(
        model,
        optimizer,
        schedulers=state.schedulers,
        scaler=state.scaler,
        shared=state.objects,
        own={} if pools is None else {"pools": pools},
        buffers="shared",
    )
    shards = None
    if isinstance(sync, Shards):
        # Imported here: it takes a second, in a spare before it has a role.
        from wirewise.runtime.recovery.sharding import ShardGroups

        shards = ShardGroups(sync, state.clip)
        shards.check(training_state)
    check_once()
    saving = None
    if checkpoints is not None:
        record = _record(training_state, loader, sync, state, steps=steps, epochs=epochs, seed=seed)
        saving = CheckpointSettings(Checkpoints.of(checkpoints), record)
    training = Training(
        training_state,
        ReductionConfig(sync, pools, shards),
        clip=None if shards is not None else state.clip,
        saving=saving,
        seed=seed,
        ranks=ranks,
        placement=Placement.of(
            model, ranks.device, ranks.backend, training_state, pools is not None, shards is not None
        ),
    )
    training._take(loader, steps, epochs)
    return training


def _check_kinds(sync: object, state: object, ranks: object) -> None:
    check_sync(sync)
    for name, value, kind in (("state", state, State), ("ranks", ranks, Ranks)):
        if not isinstance(value, kind):
            raise InputError(
                f"got {name}={value!r}; expected {kind.__name__}(...) of wirewise.runtime.recovery, or none"
            )


def _record(
    training_state: TrainingState, loader: DataLoader | Drawn, sync: Sync, state: State, **others: Any
) -> dict[str, Any]:
    """Record of the job in its folder of checkpoints."""
    return record_of(
        training_state,
        loader,
        **others,
        clip=state.clip,
        sync=sync.name,
        plan=None if sync.plan is None else digest_of(msgspec.to_builtins(sync.plan)),
        objects=sorted(state.objects or {}),
        replicas=sync.replicas if isinstance(sync, Shards) else 0,
    )
