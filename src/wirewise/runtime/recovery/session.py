"""Data-parallel training that continues after failures, in three lines of the user's own script.

    training = recovery.protect(model, optimizer, loader, epochs=3)
    for batch in training:
        with training.step():
            loss_of(model, batch).backward()

A dead rank is replaced by a spare, which copies the state from the other ranks; committed steps are never recomputed,
and the step in progress is completed or repeated. The training is bit-identical to an undisturbed one, because
batches and random numbers are functions of step and share (`batches`), buffers follow the first rank at every step,
and gradients are reduced over the same number of ranks as before.

What the script changes after the block, in `objects` or in `param_groups`, is part of the step: the state is stored
when the next batch is requested. Changes of an attempt that failed are undone there, and the attempt is repeated
(`phases`).
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from wirewise.errors import InputError, PeerError
from wirewise.log import logger, set_position
from wirewise.runtime import points
from wirewise.runtime.ranges import profile_range
from wirewise.runtime.recovery import control
from wirewise.runtime.recovery.agreement import decide_generation
from wirewise.runtime.recovery.arguments import Checkpoints, Ranks
from wirewise.runtime.recovery.batches import Drawn, TrainingBatches, shares_of
from wirewise.runtime.recovery.checkpoints import CheckpointFolder
from wirewise.runtime.recovery.comparison import ReplicaComparison, ReplicaDifference
from wirewise.runtime.recovery.consistency import Updates
from wirewise.runtime.recovery.decision import (
    NOTHING,
    Phase,
    RankRecord,
    RecoveryAction,
    RecoveryDecision,
)
from wirewise.runtime.recovery.early_stop import EarlyStop, check_loops
from wirewise.runtime.recovery.job_record import JobRecord, apply_accepted, check_folder, write_job_record
from wirewise.runtime.recovery.membership import Member, join
from wirewise.runtime.recovery.own_errors import describe_error, error_of_caught, error_without_gradient
from wirewise.runtime.recovery.phases import Continuation, continuations
from wirewise.runtime.recovery.placement import Placement
from wirewise.runtime.recovery.reduction import (
    Reduction,
    ReductionConfig,
    buckets_of,
)
from wirewise.runtime.recovery.refusals import (
    remember,
)
from wirewise.runtime.recovery.script_group import Mode, ScriptCollectives
from wirewise.runtime.recovery.seeded import seed_all
from wirewise.runtime.recovery.snapshots import Snapshots, fetch, mirror, write_snapshot
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.recovery.sync import Backward, Buckets
from wirewise.runtime.recovery.touched import TouchedParameters
from wirewise.runtime.recovery.transfer import (
    check_alike,
    copy_parameters,
    copy_replicated_state,
    gather_values,
)
from wirewise.runtime.startup import start_group
from wirewise.runtime.transport import transport_of
from wirewise.runtime.trees import digest_of

__all__ = ["CheckpointSettings", "Training"]

_log = logger("recovery")


class CheckpointSettings(NamedTuple):
    """Settings of checkpoints, and the job whose state they store."""

    checkpoints: Checkpoints
    record: JobRecord


class Training:
    """Training returned by `protect`: iterate over it, and compute the loss of each batch within `step()`.

    Args:
        state: State of the training.
        way: How gradients are reduced.
        clip: Largest norm of all gradients together.
        saving: Where checkpoints go; None if there are none.
        seed: Seed of order and random numbers.
        ranks: Limit of one call of the process group, and how often replicas are compared.
        placement: Device and backend of the ranks.

    Attributes:
        rank: Rank of this process.
        world_size: Number of ranks of the job, including missing ones.
        steps: Total number of updates.
        is_over: Whether all ranks have finished training.
    """

    def __init__(
        self,
        state: TrainingState,
        way: ReductionConfig,
        *,
        clip: float | None,
        saving: CheckpointSettings | None,
        seed: int,
        ranks: Ranks,
        placement: Placement,
    ) -> None:
        self._placement = placement
        self._state, self._way, self._saving = state, way, saving
        self._seed, self._timeout_s = seed, ranks.timeout_s
        prepare = None if way.pools is None else self._keep_own
        if way.shards is not None:
            prepare = self._meet
        buckets = buckets_of(state, way.sync.plan) if isinstance(way.sync, Backward) else None
        self._on_commit: list[Callable[[int], object]] = []
        self._make = partial(
            Updates,
            state,
            buckets=buckets,
            consistency=way.sync.consistency,
            clip=clip,
            prepare=prepare,
            on_commit=self._notify,
        )
        self._updates = self._make()
        self._holds_state = self._drawn = self._began = False
        self._told_first = True
        self._place = 0
        # How this rank stands in the script's loop: a batch is to be computed once more, without an update; an attempt
        # has failed and is to be undone; the batch under way is computed to its end; the position that the script sees.
        self._passing = self._failed = self._complete = self._cut = False
        self._shown: int | None = None
        self._left_by = ""
        """Error that has left a block since the last batch was asked for."""
        self._unannounced = False
        self._touched = TouchedParameters(state.parameters)
        self._script: ScriptCollectives | None = None
        self._compared = ReplicaComparison(state, ranks.compare_every)
        self._reduction: Reduction | None = None
        self._member: Member | None = None
        self._snapshots: Snapshots | None = None
        self._others: Snapshots | None = None
        self._checkpoints: CheckpointFolder | None = None
        self._changed: JobRecord = {}
        self._stop: EarlyStop | None = None
        self._ends_at, self._loops = NOTHING, 0
        self.steps, self.is_over = 0, False
        remember(self)
        for optimizer in state.optimizers:
            optimizer.register_step_pre_hook(lambda *_: points.notify_point("update"))
            optimizer.register_step_post_hook(lambda *_: points.notify_point("commit"))
        if control.current() is None:
            self._join_alone()
            return
        bound = "" if way.pools is None else "the plan's codecs remember what each has sent"
        if way.shards is not None:
            bound = "shards are cut for all ranks"
        self._member = join(ranks.timeout_s, bound=bound, backend=placement.backend)
        self.rank, self.world_size = self._member.rank, self._member.world_size
        placement.occupy(self._member.local_rank)
        if way.pools is not None:
            self._snapshots = Snapshots(self._member.memory, self.rank)
            if isinstance(way.sync, Buckets) and way.sync.mirrored:
                before = (self.rank - 1) % self.world_size
                self._others = Snapshots(self._member.memory / "mirror", before)
        self._open_folder()
        try:
            self._agree()
        except (RuntimeError, ValueError, PeerError) as error:
            self._recover(error)
        if self._member.generation.number > 1:
            self._enter_script("alone")

    def _take(self, loader: DataLoader | Drawn, steps: int | None, epochs: int | None) -> None:
        """Draw batches from a loader, for so many steps or epochs."""
        self._batches = TrainingBatches(loader, self.world_size, self._seed)
        if steps is None:
            if not self._batches.steps_per_epoch:
                raise InputError("got epochs and a function as loader; expected steps with a function")
            assert epochs is not None
            steps = epochs * self._batches.steps_per_epoch
        self.steps = steps

    @property
    def model(self) -> nn.Module:
        """Model to call: the user's, or its DistributedDataParallel wrapper."""
        return self._state.model if self._reduction is None else self._reduction.model

    @property
    def device(self) -> torch.device:
        """Device of the model, to which batches are moved."""
        return next(self._state.model.parameters()).device

    @property
    def generation(self) -> int:
        """Number of the process group, counted from 1; 0 without an agent."""
        return 0 if self._member is None else self._member.generation.number

    @property
    def position(self) -> int:
        """Number of committed updates; unchanged by a block that failed and is repeated."""
        return self._updates.committed_step if self._shown is None else self._shown

    @property
    def epoch(self) -> int:
        """Index of the pass over the dataset; 0 if the loader is a function."""
        return self.position // self._batches.steps_per_epoch if self._batches.steps_per_epoch else 0

    @property
    def shares(self) -> range:
        """Shares of each global batch that this process computes; more than one while ranks are missing."""
        return shares_of(self._transport.rank, self._transport.world_size, self.world_size)

    def on_commit(self, function: Callable[[int], object]) -> Callable[[int], object]:
        """Call a function inside each commit, once per committed step on every rank, also during a recovery.

        Its changes in `objects`, in `param_groups` or in the model are part of the step. A process that replaces a
        lost rank calls it from its first commit on, and lacks earlier changes made elsewhere.

        Args:
            function: Function of the number of updates including this one. It must not communicate with other ranks.

        Returns:
            The function, for use as a decorator.
        """
        if not callable(function):
            raise InputError(f"got on_commit({function!r}); expected a function of the number of updates")
        self._on_commit.append(function)
        return function

    def __iter__(self) -> Iterator[Any]:
        self._began, self._stop = True, None
        self._loops += 1
        ScriptCollectives.leave()
        while True:
            if self._drawn:
                raise InputError(
                    f"another batch was asked for before step {self.position} was computed; expected `with "
                    "training.step():` around forward and backward of every batch"
                )
            if self._left_by and self._transport.world_size > 1:
                raise error_of_caught(self.rank, self.position + 1, self._left_by)
            self._left_by = ""
            if not self._at_top():
                continue
            if self.position == self._ends_at:
                self._ends_at = NOTHING
                self._leave_early()
                return
            if self.position >= self.steps:
                if self._member is None or self._member.finish(self.position):
                    self._leave()
                    return
                self._recover(PeerError("another rank was lost at the end of the training"))
                continue
            points.announce_position(self.rank, self.position)
            share = self.shares[self._place]
            batch = self._batches.draw(self.position, share, self.shares)
            points.notify_point("batch")
            seed_all(self._seed, self.position, share)
            self._drawn = True
            self._enter_script()
            try:
                yield batch
            except GeneratorExit:
                self._leave_early()
                raise
            finally:
                ScriptCollectives.leave()

    def _leave_early(self) -> None:
        """Note that the script has left its loop; it counts when the script ends without another loop."""
        if self._member is None:
            return
        half = self._failed or self._passing or self._place > 0 or self._script_failure() is not None
        if not half and not self._updates.sealed:
            self._touched.detect_changes()
            self._updates.seal()
        self._drawn = False
        self._stop = EarlyStop(self.position, "" if half else digest_of(self._state.parameter_state()))
        self._member.at_end(self._end_early)

    def _end_early(self) -> None:
        """End the training at the step at which the script has left its loop, together with all ranks.

        Raises:
            InputError: The loop was left in an attempt that a failure had undone, or the ranks left it at other steps.
        """
        if self.is_over or self._stop is None:
            return
        assert self._member is not None
        self._stop.check_whole()
        while not self._member.finish(self._stop.step, early=True, cause=self._left_by):
            self._stop.check_unchanged(digest_of(self._state.parameter_state()))
            self._recover(PeerError("another rank was lost when this one had left its loop"))
            self._stop.check_repeated(self._passing, self._updates.committed_step)
        self._leave()

    def _at_top(self) -> bool:
        """Undo a failed attempt, or take the step with what the script has done after it; False: a rank was lost."""
        self._complete = False
        if failure := self._script_failure():
            if not self._failed:
                self._cut = True
                self._touched.restore()
            self._recover(failure)
            return False
        if self._failed or self._place:
            # With several shares a process the code after the last one counts.
            self._updates.rewind()
            if self._failed:
                self._touched.restore()
            self._failed = False
        if not self._passing:
            self._shown = None
        if self._passing or self._updates.sealed:
            return True
        if self._member is not None:
            self._touched.detect_changes()
        self._compared.observe(self._updates.committed_step)
        self._updates.seal()
        points.notify_point("sealed")
        try:
            self._compared.run(self.position, self._transport, self._width)
            self._save()
        except ReplicaDifference:
            raise
        except (RuntimeError, ValueError, PeerError) as error:
            self._handle(error)
            return False
        return True

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context of a batch's forward and backward; on exit gradients are reduced, and the update is committed.

        A failure of another rank inside is handled on exit: the batch is repeated unless its step was completed.

        Raises:
            PeerError: The job has failed, or there is no agent and a rank is lost.
        """
        if not self._drawn:
            raise InputError(
                "got training.step() without a batch; expected it once for every batch of the loop"
            )
        self._drawn = False
        ScriptCollectives.leave()
        try:
            yield from self._block()
        except Exception as error:
            self._left_by = describe_error(error)
            raise
        finally:
            self._enter_script()

    def _block(self) -> Iterator[None]:
        """Block of a step, from its begin to its end."""
        reduction, place = self._reduction, self._place
        assert reduction is not None
        try:
            if place == 0:
                for optimizer in self._state.optimizers:
                    optimizer.zero_grad(set_to_none=True)
            reduction.begin(place)
            points.notify_point("forward")
            with reduction.share_context(place, None if self._passing else self._updates):
                yield
                if failure := self._script_failure():
                    raise failure
                if missing := reduction.missing(place):
                    raise self._without_gradient(missing)
                self._complete = place == len(reduction.own) - 1
            if self._member is not None:
                self._member.arrive(self.position + 1)
            reduction.end(place)
            self._place = (place + 1) % len(reduction.own)
            if self._place == 0:
                reduction.finish()
                self._check_device()
                points.notify_point("reduced")
                self._commit()
            return
        except (RuntimeError, ValueError, PeerError) as error:
            failure = self._failure(error)
        del reduction
        self._recover(failure)

    def _without_gradient(self, missing: Literal["all", "some"]) -> Exception:
        """Error of a block without gradients; that of another rank where it is lost, and the script has caught it."""
        error = error_without_gradient(self.rank, self.position + 1, missing == "all")
        if self._member is not None and self._member.is_failure(error):
            return PeerError(str(error))
        return error

    def _wait_in_script(self, work: Any, label: str) -> None:
        """Wait for a collective of the script, and raise where it was aborted."""
        assert self._member is not None
        transport = self._member.device_transport
        transport.wait_for(work, label)
        if transport.aborts:
            self._placement.synchronize()
            transport.check_group(label)

    def _check_device(self) -> None:
        """Wait for the gradients of a device, and raise if their group was aborted: they would be anything."""
        if self._member is not None and self._member.device_transport is not self._member.transport:
            self._placement.synchronize()
            self._member.device_transport.check_group("the reduction of gradients")

    def _enter_script(self, mode: Mode = "live") -> None:
        """Hand over to the script's own code: its collectives outlive the loss of a rank."""
        if self._member is not None:
            mode = "muted" if self._failed else mode
            self._script = ScriptCollectives(mode, self._wait_in_script, self._member.is_failure)
            self._script.enter()

    def _script_failure(self) -> PeerError | None:
        """Failure of another rank that a collective of the script has met since the last look."""
        failure = None if self._script is None else self._script.failure
        self._script = None
        return failure

    def _commit(self) -> None:
        """Make the update, or where it is made already come to the end of its block."""
        if self._passing:
            if self._unannounced:
                self._updates.announce(self._updates.committed_step)
            self._updates.rewind()
            self._passing = self._unannounced = self._cut = False
            self._shown = None
            self._touched.keep()
            return
        with profile_range("commit"):
            self._updates.step()
        set_position(step=self._updates.committed_step)
        points.notify_point("committed")
        if self._member is not None:
            self._touched.keep()
        if not self._told_first and self._member is not None:
            self._told_first = True
            self._member.report_phase("committed", self.position)

    def _notify(self, step: int) -> None:
        for function in self._on_commit:
            function(step)

    def _open_folder(self) -> None:
        """Open the folder of checkpoints, unless it is of another job."""
        if self._saving is not None:
            self._saving.record["world_size"] = self.world_size
            saved = self._saving.checkpoints
            self._changed = check_folder(saved.folder, self._saving.record, self.rank, saved.accept_changes)
            self._checkpoints = CheckpointFolder(saved.folder, self.rank)

    def _resume_from(self, step: int, tree: Any) -> None:
        """Take a state from a checkpoint, with the changes that are accepted."""
        assert self._saving is not None
        self._state.load_state_dict(tree)
        apply_accepted(self._state, self._changed, self._saving.record)
        self._updates.adopt_sealed(step)

    def _save(self) -> None:
        """Write a checkpoint where one is due."""
        if self._checkpoints is None or self._saving is None:
            return
        if self.position and self.position % self._saving.checkpoints.every == 0:
            points.notify_point("checkpoint")
            self._checkpoints.save(self.position, self._state.state_dict())
            _log.info("a checkpoint of step %d is being written", self.position)
            self._checkpoints.agree(self._transport)
            if self._changed and self.rank == 0:
                write_job_record(self._saving.checkpoints.folder, self._saving.record)

    def _keep_own(self, step: int) -> None:
        """Write down what no replica has, before any rank may update; without an agent nobody would read it."""
        if self._snapshots is not None:
            write_snapshot(self._snapshots, step, self._state.own(), self._transport, self._others)

    def _meet(self, step: int) -> None:
        """Wait until all ranks have their gradients; then replicas of each shard can finish the step, whoever dies."""
        self._updates.mark_reduced(0)
        self._transport.all_gather(torch.tensor([step]), "the gradients of all shards")

    def _failure(self, error: Exception) -> PeerError:
        """A failure of another rank out of what it has raised here; anything else is raised again."""
        if self._member is None or not self._member.is_failure(error):
            raise error
        # What its frames hold would keep connections open.
        traceback.clear_frames(error.__traceback__)
        return PeerError(str(error))

    def _handle(self, error: Exception) -> None:
        self._recover(self._failure(error))

    def _recover(self, error: Exception) -> None:
        """Come to the next generation that holds, and to a step that all ranks agree on."""
        assert self._member is not None
        seen = self.position if self._began else None
        while True:
            self._let_go()
            self._member.regroup(error)
            try:
                self._agree(seen)
                return
            except (RuntimeError, ValueError, PeerError) as failed:
                traceback.clear_frames(failed.__traceback__)
                error = failed

    def _let_go(self) -> None:
        """Let go of all that holds the process group."""
        if self._reduction is not None:
            self._reduction.abandon()
            self._reduction = None
        if self._way.shards is not None and self._member is not None:
            self._way.shards.release()

    def _leave(self) -> None:
        """End the training on this rank."""
        self.is_over = True
        self._batches.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._let_go()
        if self._member is not None:
            self._member.leave()

    def _join_alone(self) -> None:
        """Train with the ranks of torchrun, unprotected."""
        if not dist.is_initialized():
            if "RANK" not in os.environ:
                raise InputError(
                    "no agent has started this process, nor torchrun; start it by `wirewise run swift -- torchrun "
                    "...`, or by torchrun without protection"
                )
            start_group(self._timeout_s, self._placement.backend)
        self._placement.occupy(int(os.environ.get("LOCAL_RANK", "0")))
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._transport = transport_of(timeout_s=self._timeout_s)
        model = self._state.model
        self._transport.broadcast(dict([*model.named_parameters(), *model.named_buffers()]))
        self._updates.adopt(0)
        self._connect(lambda groups: None)
        self._open_folder()
        if self._checkpoints is not None:
            told = gather_values(self._transport, self._checkpoints.steps(), list[int])
            if set.intersection(*map(set, told)):
                self._resume_from(*self._checkpoints.load(self._transport))
        self._reduction = Reduction(self._way, model, self._transport, self.world_size)

    def _agree(self, seen: int | None = None) -> None:
        """Tell all ranks of this generation what this one holds, decide on a step and come to it."""
        member = self._member
        assert member is not None
        self._transport = member.transport
        self._place, self._drawn = 0, False
        self._connect(member.guard)
        points.announce_position(self.rank, max(self._updates.committed_step, 0))
        before = self._updates.committed_step if self._holds_state else NOTHING
        record, heavy = self._record()
        saved = [] if self._checkpoints is None else self._checkpoints.steps()
        built = "" if self._way.shards is None else self._way.shards.built
        stopped = NOTHING if self._stop is None else self._stop.step
        told = gather_values(
            self._transport,
            (record, saved, built, stopped, self._loops),
            tuple[RankRecord, list[int], str, int, int],
        )
        common = sorted(set.intersection(*(set(steps) for _, steps, *_ in told)))
        records, decision = decide_generation(
            [one for one, *_ in told], common, member.generation, {model for _, _, model, *_ in told}
        )
        # Where others have left their loops, that of a replacement ends at the same step.
        self._ends_at = max(step for *_, step, _ in told)
        check_loops(self._loops, max(loops for *_, loops in told))
        points.notify_point("decide")
        member.report_phase("decided", self._updates.committed_step, strategy=decision.strategy)
        action, how = decision.of(self.rank), continuations(records, decision)
        points.notify_point("restore")
        self._act(action, decision, how, member.generation.ranks)
        own = how[self.rank]
        self._check_alike(heavy if action.kind == "keep" and not own.weights else None, own.phase)
        self._continue(own.then, seen)
        self._compared.start(decision.step)
        step = self._updates.committed_step
        lost = max(max(before, member.generation.committed_step) - step, 0)
        member.report_phase("restored", step, lost=lost)
        set_position(step=step)
        if member.generation.number > 1:
            _log.info("resumes from step %d by strategy %s, %d steps are lost", step, decision.strategy, lost)
        self._reduction = Reduction(self._way, self._state.model, member.device_transport, self.world_size)
        points.notify_point("resume")
        self._told_first = False
        member.report_phase("resumed", step)

    def _continue(self, then: Literal["top", "return", "pass"], seen: int | None) -> None:
        """Set where in the script's loop this rank is.

        Args:
            then: Where it goes on.
            seen: Position that the script has seen last; None if it has not begun its loop.
        """
        self._passing, self._failed, self._shown = then == "pass", then != "return" and seen is not None, None
        self._cut = self._cut and self._passing
        if self._failed:
            # Until the loop comes to its top the script sees a block that has not committed.
            self._shown = seen
            self._state.attributes.detect_changes()
        self._touched.keep(whole=self._failed)
        if self._passing:
            self._shown = self._updates.committed_step - 1
        elif self._unannounced:
            if then == "return":
                self._updates.announce(self._updates.committed_step)
                self._updates.rewind()
            self._unannounced = False

    def _connect(self, guard: Callable[[Any], None]) -> None:
        """Give shards the groups of this generation; all ranks call it."""
        if self._way.shards is not None and self._way.shards.connect(self._state, self._transport, guard):
            # Parameters are the shards now.
            self._updates = self._make()

    @property
    def _width(self) -> int:
        """Number of shards of the model; replicas of one are as many ranks apart."""
        return 1 if self._way.shards is None else self._way.shards.width

    def _record(self) -> tuple[RankRecord, str | None]:
        """State of this rank, and the digest of its heavy part where that is whole."""
        updates = self._updates
        if not self._holds_state or updates.committed_step == NOTHING:
            return RankRecord(rank=self.rank, stage=self.rank % self._width), None
        heavy = None if updates.begun else digest_of(self._state.parameter_state())
        record = RankRecord(
            rank=self.rank,
            stage=self.rank % self._width,
            replica=self.rank // self._width,
            committed_step=updates.committed_step,
            versions=updates.versions,
            reduced=updates.reduced,
            can_restore=updates.can_restore,
            exact=updates.exact,
            digest=heavy or "",
            phases=updates.phases,
            complete=self._complete,
            cut=self._cut,
            touches=bool(self._touched.names),
        )
        return record, heavy

    def _act(
        self,
        action: RecoveryAction,
        decision: RecoveryDecision,
        how: Mapping[int, Continuation],
        ranks: Sequence[int],
    ) -> None:
        """Come to the step of a decision; sources do so before others copy from them."""
        own = how[self.rank]
        if action.kind in ("keep", "finish", "restore"):
            self._updates.restore_step(decision.step)
            if own.phase == "after" and not own.sources:
                self._updates.seal()
            elif action.kind == "keep" and not own.sources:
                self._updates.unseal()
        elif action.kind == "load":
            assert self._checkpoints is not None
            step, tree = self._checkpoints.load(self._transport)
            self._resume_from(step, tree)
        weights = copy_parameters(self._state, self._transport, self.rank, how, ranks)
        if self._snapshots is not None and self._others is not None:
            fetch(self._snapshots, self._others, decision.step, self._transport)
        light = copy_replicated_state(self._updates, self._transport, how, ranks)
        if light is not None:
            if self._holds_state and self._updates.committed_step == decision.step - 1 >= 0:
                self._updates.announce(decision.step)
            else:
                self._unannounced = own.phase == "before"
            self._state.load_replicated_state(light)
        if action.kind == "copy" and self._snapshots is not None and (decision.step or self._snapshots.steps):
            # All ranks have written this step, or none has committed it.
            self._state.load_own(self._snapshots.read(decision.step))
        if weights or light is not None:
            adopt = self._updates.adopt_sealed if own.phase == "after" else self._updates.adopt
            adopt(decision.step)
        self._holds_state = True
        step = self._updates.committed_step
        if self._snapshots is not None and step not in self._snapshots.steps:
            self._snapshots.write(step, self._state.own())
        if self._snapshots is not None and self._others is not None:
            mirror(self._snapshots, self._others, step, self._transport)

    def _check_alike(self, heavy: str | None, phase: Phase) -> None:
        heavy = digest_of(self._state.parameter_state()) if heavy is None else heavy
        light = digest_of(self._state.replicated_state())
        check_alike(self._transport, self._width, self._updates.committed_step, (phase, heavy, light))
