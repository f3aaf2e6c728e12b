"""A data-parallel training that goes on after failures, in three lines of the user's own script.

    training = recovery.protect(model, optimizer, loader, epochs=3)
    for batch in training:
        with training.step():
            loss_of(model, batch).backward()

A rank that dies is replaced by a spare, which takes the state from the other ranks; nothing that was committed is
computed again, and what was under way is finished or computed anew. The training is bit for bit the one that nothing
disturbed, because batches and random numbers are functions of step and share (`batches`), buffers follow the first
rank at every step, and a gradient is reduced by as many ranks as before.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from wirewise.errors import InputError, PeerError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import Reducer
from wirewise.runtime.recovery import control, points
from wirewise.runtime.recovery.batches import Batches, Drawn, seed_all, shares_of
from wirewise.runtime.recovery.consistency import Consistency, Updates
from wirewise.runtime.recovery.decision import NOTHING, Action, Decision, RankRecord, decide
from wirewise.runtime.recovery.folds import OrderedFold
from wirewise.runtime.recovery.generations import Generation
from wirewise.runtime.recovery.membership import Member, join
from wirewise.runtime.recovery.state import Stateful, TrainingState, copy_state
from wirewise.runtime.startup import start_group
from wirewise.runtime.transport import transport_of
from wirewise.runtime.trees import digest_of

__all__ = ["Training", "protect"]

Through = Literal["buckets", "ddp", "fold"]

_BUCKET_BYTES = 25 * 2**20


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
    consistency: Consistency = "auto",
    seed: int = 0,
    timeout_s: float = 60.0,
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
        objects: Further objects whose state changes with training and is the same on all ranks, by name.
        through: What reduces gradients: "buckets" of wirewise, under `plan`; "ddp", torch's DistributedDataParallel,
            whose model is `Training.model`; "fold", all shares in one order, so that results do not depend on the
            number of ranks.
        plan: Buckets for "buckets"; None: 25 MiB each, from the last parameter to the first.
        unused: What to do with a parameter without gradient, "error" or "zeros", with "buckets".
        consistency: How an update that was cut short is completed or taken back (`Updates`).
        seed: Seed of the order of the dataset, and of random numbers in the steps.
        timeout_s: Seconds that one call of the process group may take.

    Raises:
        InputError: Something that cannot be protected; the message names it.
        PeerError: The other ranks did not come.
    """
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                f"got a {kind}, whose process group dies with a rank; give the module that it wraps, and through='ddp'"
            )
        if kind.startswith("FSDP"):
            raise InputError(
                "got a module that fully_shard has sharded; its device mesh holds process groups that no other can "
                "take the place of, and a shard without replica is lost with its rank: protect the module unsharded"
            )
    if through not in ("buckets", "ddp", "fold"):
        raise InputError(f"got through={through!r}; expected 'buckets', 'ddp' or 'fold'")
    if plan is not None and through != "buckets":
        raise InputError(f"got a plan and through={through!r}; expected through='buckets' with a plan")
    if (steps is None) == (epochs is None):
        raise InputError(f"got steps={steps} and epochs={epochs}; expected one of them")
    state = TrainingState(
        model,
        optimizer,
        schedulers=schedulers,
        scaler=scaler,
        shared=objects,
        buffers="shared",
    )
    return Training(
        state,
        Updates(state, consistency=consistency, clip=clip),
        loader,
        steps=steps,
        epochs=epochs,
        through=through,
        plan=plan,
        unused=unused,
        seed=seed,
        timeout_s=timeout_s,
    )


class Training:
    """What `protect` returns: iterate over it, and compute the loss of each batch within `step()`.

    Args:
        state: State of the training.
        updates: Its updates.
        loader: Loader or function, as in `protect`; the other arguments likewise.
        steps: Number of updates.
        epochs: Number of passes over the dataset.
        through: What reduces gradients.
        plan: Plan of the buckets.
        unused: What to do with a parameter without gradient.
        seed: Seed of order and random numbers.
        timeout_s: Seconds that one call of the process group may take.

    Attributes:
        model: Model to call: that of the user, or DistributedDataParallel around it.
        rank: Rank of this process.
        world_size: Number of ranks of the job, also while some of them are missing.
    """

    def __init__(
        self,
        state: TrainingState,
        updates: Updates,
        loader: DataLoader | Drawn,
        *,
        steps: int | None,
        epochs: int | None,
        through: Through,
        plan: FusionPlan | None,
        unused: Literal["error", "zeros"],
        seed: int,
        timeout_s: float,
    ) -> None:
        self._state, self._updates, self._through, self._plan = state, updates, through, plan
        self._unused, self._seed, self._timeout_s = unused, seed, timeout_s
        self.model = state.model
        self._member: Member | None = None
        self._holds_state = False
        self._reducer: Reducer | None = None
        self._fold: OrderedFold | None = None
        self._share = 0
        self._drawn = False
        self._told_first = True
        for optimizer in state.optimizers:
            optimizer.register_step_pre_hook(lambda *_: points.reach("update"))
            optimizer.register_step_post_hook(lambda *_: points.reach("commit"))
        if control.current() is None:
            self._join_alone()
        else:
            self._member = join(timeout_s)
            self.rank, self.world_size = self._member.rank, self._member.world_size
            try:
                self._agree()
            except (RuntimeError, ValueError, PeerError) as error:
                self._recover(error)
        self._batches = Batches(loader, self.world_size, seed)
        if steps is None:
            if not self._batches.steps_per_epoch:
                raise InputError("got epochs and a function as loader; expected steps with a function")
            assert epochs is not None
            steps = epochs * self._batches.steps_per_epoch
        self.steps = steps

    @property
    def generation(self) -> int:
        """Number of the process group, counted from 1; 0 without an agent."""
        return 0 if self._member is None else self._member.generation.number

    @property
    def position(self) -> int:
        """Number of updates that are committed."""
        return self._updates.committed_step

    @property
    def epoch(self) -> int:
        """Number of the pass over the dataset; 0 where the loader is a function."""
        return self.position // self._batches.steps_per_epoch if self._batches.steps_per_epoch else 0

    @property
    def shares(self) -> range:
        """Shares of each global batch that this process computes; more than one while ranks are missing."""
        return shares_of(self._transport.rank, self._transport.world_size, self.world_size)

    def __iter__(self) -> Iterator[Any]:
        while True:
            if self.position >= self.steps:
                if self._member is None or self._member.finish():
                    self._quiesce()
                    return
                self._recover(PeerError("another rank was lost at the end of the training"))
                continue
            if self._drawn:
                raise InputError(
                    f"another batch was asked for before step {self.position} was computed; expected `with "
                    "training.step():` around forward and backward of every batch"
                )
            points.at(self.rank, self.position)
            own = self.shares
            batch = self._batches.draw(self.position, own[self._share], own)
            points.reach("batch")
            seed_all(self._seed, self.position, own[self._share])
            self._drawn = True
            yield batch

    @contextmanager
    def step(self) -> Iterator[None]:
        """Forward and backward of a batch; at the end gradients are reduced, and the update is made and committed.

        A failure of another rank inside is handled at the end: the batch comes again unless its step was finished.

        Raises:
            PeerError: The job has failed, or there is no agent and a rank is lost.
        """
        if not self._drawn:
            raise InputError(
                "got training.step() without a batch; expected it once for every batch of the loop"
            )
        last = self._share == len(self.shares) - 1
        try:
            self._begin()
            points.reach("forward")
            with nullcontext() if last else self._no_sync():
                yield
            self._drawn = False
            self._complete(last)
        except (RuntimeError, ValueError, PeerError) as error:
            self._drawn = False
            if self._member is None or not self._member.is_failure(error):
                raise
            # What its frames hold would keep connections open.
            traceback.clear_frames(error.__traceback__)
            failure = PeerError(str(error))
        else:
            return
        self._recover(failure)

    def _begin(self) -> None:
        if self._share == 0:
            for optimizer in self._state.optimizers:
                optimizer.zero_grad(set_to_none=True)
            self._buffers_before = self._buffer_copies() if len(self.shares) > 1 else []
        else:
            # Each share starts with the buffers of the step, and those of the first one stay.
            self._set_buffers(self._buffers_before)

    def _no_sync(self) -> Any:
        if self._fold is not None:
            return nullcontext()
        if self._reducer is not None:
            return self._reducer.no_sync()
        assert isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync()

    def _complete(self, last: bool) -> None:
        """Take the gradients of a share in; after the last one, update and commit."""
        if self._fold is not None:
            self._fold.keep()
        if self._share == 0 and not last:
            self._buffers_after = self._buffer_copies()
        if not last:
            self._share += 1
            return
        if self._share > 0:
            self._set_buffers(self._buffers_after)
        if self._fold is not None:
            self._fold.fold()
        elif self._reducer is not None:
            self._reducer.finish()
        self._scale()
        buffers = dict(self._state.model.named_buffers())
        if buffers:
            self._transport.broadcast(buffers, "the broadcast of the buffers", compared=True)
        points.reach("reduced")
        self._share = 0
        self._updates.step()
        points.reach("committed")
        if not self._told_first and self._member is not None:
            self._told_first = True
            self._member.tell("committed", self.position)

    def _scale(self) -> None:
        """Make the mean over processes that of all shares."""
        processes = self._transport.world_size
        if self._fold is None and processes < self.world_size:
            for parameter in self._state.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(processes / self.world_size)

    def _buffer_copies(self) -> list[Tensor]:
        return [buffer.detach().clone() for buffer in self._state.model.buffers()]

    @torch.no_grad()
    def _set_buffers(self, copies: Sequence[Tensor]) -> None:
        for buffer, copy in zip(self._state.model.buffers(), copies, strict=True):
            buffer.copy_(copy)

    def _recover(self, error: Exception) -> None:
        """Come to the next generation that holds, and to a step that all ranks agree on."""
        assert self._member is not None
        while True:
            self._quiesce()
            self._member.regroup(error)
            try:
                self._agree()
                return
            except (RuntimeError, ValueError, PeerError) as failed:
                error = failed
                traceback.clear_frames(error.__traceback__)

    def _quiesce(self) -> None:
        """Let go of all that holds the process group."""
        if self._reducer is not None:
            self._reducer.abandon()
        self._reducer, self._fold = None, None
        if self.model is not self._state.model:
            self.model = self._state.model
            gc.collect()

    def _join_alone(self) -> None:
        if not dist.is_initialized():
            if "RANK" not in os.environ:
                raise InputError(
                    "no agent has started this process, nor torchrun; start it by `wirewise run swift -- torchrun "
                    "...`, or by torchrun without protection"
                )
            start_group(self._timeout_s)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._transport = transport_of(timeout_s=self._timeout_s)
        shared = self._state.model.state_dict(keep_vars=True)
        self._transport.broadcast({n: t for n, t in shared.items() if isinstance(t, Tensor)})
        self._updates.adopt(0)
        self._connect()

    def _agree(self) -> None:
        """Tell all ranks of this generation what this one holds, decide on a step and come to it."""
        member = self._member
        assert member is not None
        self._transport = member.transport
        self._share, self._drawn = 0, False
        points.at(self.rank, self.position)
        before = self.position if self._holds_state else NOTHING
        record, heavy = self._record()
        records = [
            msgspec.json.decode(one, type=RankRecord) for one in self._gathered(msgspec.json.encode(record))
        ]
        decision = _decided(records, member.generation)
        points.reach("decide")
        member.tell("decided", self.position, strategy=decision.strategy)
        action = decision.of(self.rank)
        points.reach("restore")
        self._act(action, decision, member.generation.ranks)
        self._check_alike(heavy if action.kind == "keep" else None)
        member.tell("restored", self.position, lost=max(before - decision.step, 0))
        self._connect()
        points.reach("resume")
        self._told_first = False
        member.tell("resumed", self.position)

    def _record(self) -> tuple[RankRecord, str | None]:
        """What this rank holds, and the digest of its heavy part where that is whole."""
        updates = self._updates
        if not self._holds_state or updates.committed_step == NOTHING:
            return RankRecord(rank=self.rank), None
        heavy = None if updates.begun else digest_of(self._state.heavy())
        record = RankRecord(
            rank=self.rank,
            replica=self.rank,
            committed_step=updates.committed_step,
            versions=updates.versions,
            reduced=updates.reduced,
            can_restore=updates.can_restore,
            exact=updates.exact,
            digest=heavy or "",
        )
        return record, heavy

    def _act(self, action: Action, decision: Decision, ranks: Sequence[int]) -> None:
        """Come to the step of a decision; sources do so before others copy from them."""
        if action.kind in ("keep", "finish", "restore"):
            self._holds_state = True
            self._updates.bring_to(decision.step)
        copies = [one for one in decision.actions if one.kind == "copy"]
        if not copies:
            return
        sources = [ranks.index(rank) for rank in copies[0].sources]
        targets = [ranks.index(one.rank) for one in copies]
        copy_state(self._state, self._transport, sources, targets, self._timeout_s)
        if action.kind == "copy":
            self._updates.adopt(decision.step)
            self._holds_state = True

    def _check_alike(self, heavy: str | None) -> None:
        """Compare the digests of all replicas.

        Raises:
            PeerError: They differ.
        """
        heavy = digest_of(self._state.heavy()) if heavy is None else heavy
        found = self._gathered((heavy, digest_of(self._state.light())))
        if differ := [place for place, one in enumerate(found) if one != found[0]]:
            raise PeerError(
                f"after recovery processes {differ} of {len(found)} hold another state of step {self.position} than "
                "the first; look for an operation that is not deterministic, and start again from a checkpoint"
            )

    def _gathered(self, value: Any) -> list[Any]:
        """What each process of the group gives."""
        found: list[Any] = [None] * self._transport.world_size
        dist.all_gather_object(found, value)
        return found

    def _connect(self) -> None:
        """Have gradients reduced by the present group."""
        model = self._state.model
        if self._through == "fold":
            self._fold = OrderedFold(model, self.world_size, self._transport)
        elif self._through == "ddp":
            self.model = DistributedDataParallel(model, broadcast_buffers=False)
        else:
            plan = self._plan or _default_plan(model, self._transport.world_size)
            plan = msgspec.structs.replace(plan, world_size=self._transport.world_size)
            self._reducer = Reducer(model, plan, self._transport, unused=self._unused)


def _decided(records: Sequence[RankRecord], generation: Generation) -> Decision:
    """The decision on records; where nobody has trained yet, the first rank's initial state counts as step 0."""
    if all(record.committed_step == NOTHING for record in records):
        records = [msgspec.structs.replace(records[0], committed_step=0), *records[1:]]
    vacant = {rank: 0 for rank in range(generation.world_size) if rank not in generation.workers}
    return decide(records, dead=vacant)


def _default_plan(model: nn.Module, world_size: int) -> FusionPlan:
    sizes = {name: p.nbytes for name, p in reversed(list(model.named_parameters())) if p.requires_grad}
    return FusionPlan.by_size(sizes, world_size, _BUCKET_BYTES)
