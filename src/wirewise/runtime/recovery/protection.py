"""The call that protects a script's training: what it checks, and what it makes a `Training` of."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from wirewise.errors import InputError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import Compression
from wirewise.runtime.recovery import control
from wirewise.runtime.recovery.batches import Drawn
from wirewise.runtime.recovery.consistency import Consistency, check_apart
from wirewise.runtime.recovery.job_record import record_of
from wirewise.runtime.recovery.placement import Placement
from wirewise.runtime.recovery.reduction import ReductionConfig, Through, default_plan, pools_of
from wirewise.runtime.recovery.refusals import (
    check_beside_shard,
    check_model,
    check_objects,
    check_once,
    check_optimizers,
)
from wirewise.runtime.recovery.session import CheckpointSettings, Training
from wirewise.runtime.recovery.state import Stateful, TrainingState
from wirewise.runtime.trees import digest_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["protect"]


def protect(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loader: DataLoader | Drawn,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    schedulers: Sequence[LRScheduler] = (),
    scaler: Stateful | None = None,
    clip: float | None = None,
    objects: Mapping[str, Stateful] | None = None,
    through: Through = "buckets",
    plan: FusionPlan | None = None,
    unused: Literal["error", "zeros"] = "error",
    shard: Callable[[Any, DeviceMesh], object] | None = None,
    replicas: int = 0,
    compression: Compression | None = None,
    mirrored: bool = False,
    consistency: Consistency = "auto",
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 100,
    seed: int = 0,
    timeout_s: float = 60.0,
    device: str | None = None,
    backend: str | None = None,
    compare_every: int | None = None,
    accept_changes: Sequence[str] = (),
) -> Training:
    """Join the training of all ranks, and protect it from failures where an agent has started this process.

    A spare waits here until it takes the role of a rank. Without an agent the ranks are those of torchrun, and a
    failure raises `PeerError` as it does elsewhere.

    Args:
        model: Model that is built alike on every rank, not wrapped; all take the values of rank 0.
        optimizer: One or several optimizers of its parameters. The script does not call their `step`, `zero_grad`.
        loader: A `DataLoader` over a map-style dataset, whose batch size is that of one rank; or a function of step and
            share that returns a batch.
        steps: Number of updates; with a `DataLoader` it may be left out for `epochs`.
        epochs: Number of passes over the dataset.
        schedulers: Schedules of the learning rates, which move on once an update.
        scaler: A `torch.amp.GradScaler` of the script.
        clip: Largest norm of all gradients together.
        objects: Further objects whose state changes with training and is the same on all ranks, by name. They may
            change within the block, after it, or in a function of `Training.on_commit`.
        through: What reduces gradients: "buckets" of wirewise, under `plan`; "ddp", torch's DistributedDataParallel,
            whose model is `Training.model`; "fold", all shares in one order, so that results do not depend on the
            number of ranks; "backward", the buckets of `plan`, each of which is updated as soon as it is reduced, while
            back-propagation goes on.
        plan: Buckets for "buckets" and "backward"; None: those of DistributedDataParallel.
        unused: What to do with a parameter without gradient, "error" or "zeros", with "buckets".
        shard: Function of the model and a mesh, of replicas by shards, that calls torch's `fully_shard` on modules of
            the model and then on the model itself. It is called once, when this process has its role; FSDP2 then
            reduces gradients, and the model is called within `step()` only. None: each rank has all.
        replicas: Number of ranks that have each shard, with `shard`: a lost one takes its shard from another.
        compression: How the codecs of the plan are used. What they remember on a rank is kept in the memory of its
            host, where a spare of that host finds it.
        mirrored: Whether the next rank keeps what codecs remember too, so that a spare of another host finds it when
            the host is lost; it travels in every step.
        consistency: How an update that was cut short is completed or taken back (`Updates`).
        checkpoints: Folder on a disk that all hosts see, for when all replicas are lost, and for a job that is started
            again; None: there are no checkpoints.
        checkpoint_every: Updates from one checkpoint to the next.
        seed: Seed of the order of the dataset, and of random numbers in the steps.
        timeout_s: Seconds that one call of the process group may take.
        device: Type of the device that the model is moved to once this process has its role, such as "cuda", of which
            each rank of a host has one. Defaults to that of the model.
        backend: Backend that reduces gradients. Defaults to "nccl" where the model is on CUDA, else "gloo".
        compare_every: Steps from one comparison of the replicas to the next; a difference is raised with its name.
            Defaults to as many as let comparisons take less than 0.5 % of the time.
        accept_changes: Properties of the job, such as "lr" or "steps", that may differ from those of the job whose
            checkpoints are resumed. Without it a difference is refused by its name.

    Raises:
        InputError: Something that cannot be protected; the message names it.
        PeerError: The other ranks did not come.
    """
    control.check_main_program()
    check_model(model)
    check_optimizers(optimizer, schedulers)
    _check_reduction(through, plan)
    if shard is not None:
        others = {
            "through": through != "buckets",
            "plan": plan is not None,
            "compression": compression is not None,
            "unused": unused != "error",
            "scaler": scaler is not None,
            "consistency": consistency not in ("auto", "roll-forward"),
        }
        check_beside_shard(others)
    elif replicas:
        raise InputError(
            f"got replicas={replicas} without shard; expected both, or none where each rank has all"
        )
    _check_counts(steps, epochs, compare_every, checkpoint_every)
    check_objects({**(objects or {}), **({} if scaler is None else {"scaler": scaler})})
    pools = pools_of(model, plan, compression)
    if mirrored and pools is None:
        raise InputError("got mirrored=True and no plan with codecs; replicas hold all else, so leave it out")
    if through == "backward":
        if pools is not None or unused != "error":
            raise InputError(
                f"got through='backward' with {'codecs' if pools is not None else f'unused={unused!r}'}; expected a "
                "plan without codecs and a gradient for each parameter, or through='buckets'"
            )
        check_apart(clip, scaler, None)
        plan = plan or default_plan(model)
    state = TrainingState(
        model,
        optimizer,
        schedulers=schedulers,
        scaler=scaler,
        shared=objects,
        own={} if pools is None else {"pools": pools},
        buffers="shared",
    )
    shards = None
    if shard is not None:
        # Imported here: it takes a second, in a spare before it has a role.
        from wirewise.runtime.recovery.sharding import Shards

        shards = Shards(shard, replicas, clip)
        shards.check(state)
    check_once()
    if isinstance(accept_changes, str):
        raise InputError(f"got accept_changes={accept_changes!r}; expected names in a list")
    saving = None
    if checkpoints is not None:
        record = record_of(
            state,
            loader,
            steps=steps,
            epochs=epochs,
            seed=seed,
            clip=clip,
            through=through,
            plan=None if plan is None else digest_of(msgspec.to_builtins(plan)),
            objects=sorted(objects or {}),
            replicas=replicas,
        )
        saving = CheckpointSettings(Path(checkpoints), checkpoint_every, record, tuple(accept_changes))
    training = Training(
        state,
        ReductionConfig(through, plan, compression, pools, unused, shards),
        consistency=consistency,
        clip=None if shards is not None else clip,
        saving=saving,
        mirrored=mirrored,
        seed=seed,
        timeout_s=timeout_s,
        placement=Placement.of(model, device, backend, state, pools is not None, shard is not None),
        compare_every=compare_every,
    )
    training._take(loader, steps, epochs)
    return training


def _check_reduction(through: Through, plan: FusionPlan | None) -> None:
    if through not in get_args(Through):
        raise InputError(f"got through={through!r}; expected one of {', '.join(get_args(Through))}")
    if plan is not None and through not in ("buckets", "backward"):
        raise InputError(f"got a plan and through={through!r}; expected 'buckets' or 'backward' with a plan")


def _check_counts(
    steps: int | None, epochs: int | None, compare_every: int | None, checkpoint_every: int
) -> None:
    if (steps is None) == (epochs is None):
        raise InputError(f"got steps={steps} and epochs={epochs}; expected one of them")
    if compare_every is not None and compare_every < 1:
        raise InputError(f"got compare_every={compare_every}; expected at least 1, or None")
    if checkpoint_every < 1:
        raise InputError(f"got checkpoint_every={checkpoint_every}; expected at least 1")
