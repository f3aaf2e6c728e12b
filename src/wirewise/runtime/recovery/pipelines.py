"""Pipeline training that continues when ranks are lost: survivors keep their progress, replacements catch up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from wirewise.errors import InputError, PeerError
from wirewise.runtime import points
from wirewise.runtime.pipeline import Pipeline, UpdateResult
from wirewise.runtime.pipeline.feed import Batch
from wirewise.runtime.recovery.checkpoints import CheckpointFolder
from wirewise.runtime.recovery.helping import HelperOptions, recompute_together
from wirewise.runtime.recovery.recompute import RecoveryJournal
from wirewise.runtime.recovery.state import copy_tree
from wirewise.runtime.transport import Transport

__all__ = ["Membership", "train_through_faults"]


class Membership(Protocol):
    """Membership of a rank, as `recovery.Member` implements it."""

    def regroup(self, error: Exception | None) -> tuple[int, Transport]:
        """Leave the process group after an error, and join the next one; returns its number and transport."""
        ...

    def guard(self, groups: Iterable[dist.ProcessGroup]) -> None:
        """Interrupt further groups of this generation when a rank is lost."""
        ...

    def follow(self, progress: Callable[[], tuple[dict[str, int], dict[str, int]]]) -> None:
        """Watch messages between ranks: counts reached by this rank, and counts awaited."""
        ...

    def finish(self) -> bool:
        """Wait until all ranks have finished training; False if a rank is lost, and another group follows."""
        ...

    def report_phase(self, phase: Any, step: int = -1, **more: Any) -> None:
        """Report the phase of a recovery."""
        ...


def train_through_faults(
    pipeline: Pipeline,
    journal: RecoveryJournal,
    batches: Callable[[int], Iterable[Batch]],
    member: Membership,
    *,
    checkpoints: CheckpointFolder | None = None,
    every: int = 0,
    helping: HelperOptions | None = None,
    keep: Literal["checkpoint", "replicas"] = "checkpoint",
) -> Iterator[UpdateResult]:
    """Train to the last batch, whichever ranks are lost meanwhile.

    A replacement makes a `Pipeline` on the new process group and calls this too. It takes the state of a replica of
    its stage. If there is none, it loads the newest state that its rank saved, or starts from the initial model, and
    first yields the results of the updates that it recomputes (`RecoveryJournal.is_behind`). If the logs lack a
    message, all ranks roll back to the newest checkpoint that all have.

    Args:
        pipeline: Pipeline of this rank, made with `journal`.
        journal: Journal of this rank.
        batches: Batches from the given update on, the same at each call.
        member: Membership of this rank; it has joined the group of the pipeline.
        checkpoints: Checkpoints of this rank. None if replacements recompute all updates.
        every: Number of updates between checkpoints; 0 for none.
        helping: How waiting ranks help a replacement, the same on all ranks. None if they do not.
        keep: Retention of messages: until a checkpoint that all ranks have, or, if replicas of each stage can restore
            its state, until all ranks have done their update. In the latter case all roll back if a stage has lost all
            replicas.

    Yields:
        Result of each update, as in `Pipeline.train`.

    Raises:
        InputError: The logs lack what a replacement needs, and no checkpoint is intact on all ranks; or messages are
            not kept and there are no replicas.
        PeerError: The job has failed.
    """
    if keep == "replicas" and pipeline.plan.replicas == 1:
        raise InputError(
            f"got keep={keep!r} and a plan without replicas; expected replicas of each stage, or keep='checkpoint'"
        )
    states = _States(pipeline, journal, checkpoints, every)
    member.follow(journal.progress)
    if journal.generation > 1:
        states.load()
    fault: Exception | None = None
    transport: Transport | None = None
    while True:
        if fault is not None:
            # What it raises comes from no failure of another rank, or tells of the end of the job.
            journal.generation, transport = member.regroup(fault)
            fault = None
        try:
            if transport is not None:
                pipeline.reconnect(transport)
                # A replacement does not know of it; where logs lack something still, all learn so again.
                journal.incomplete = False
                transport = None
            member.guard(pipeline.groups)
            points.notify_point("restore", int(journal.incomplete))
            if back := journal.incomplete:
                states.go_back()
            copied = journal.generation > 1 and not back and _take_from_replicas(pipeline)
            strategy = "checkpoint" if back else "replica" if copied else "log"
            progress = _Progress(member, journal, pipeline.update, strategy)
            if journal.generation > 1 and helping is not None:
                recompute_together(pipeline, journal, batches, helping)
                if pipeline.update == max(journal.done):
                    progress.resumed(pipeline.update)
            points.announce_position(pipeline.transport.rank, pipeline.update)
            points.notify_point("resume")
            for result in pipeline.train(_reached(batches(pipeline.update))):
                points.notify_point("committed")
                points.announce_position(pipeline.transport.rank, pipeline.update)
                progress.committed(pipeline.update)
                states.save()
                if keep == "replicas":
                    journal.checkpointed(pipeline.update)
                yield result
            if member.finish():
                return
            fault = PeerError("a rank is lost at the end of the training")
        except PeerError as error:
            # What it holds would keep connections open.
            fault = error.with_traceback(None)
        except InputError:
            if not journal.incomplete or checkpoints is None:
                raise


def _take_from_replicas(pipeline: Pipeline) -> bool:
    """Give each rank the state of the replica of its stage that has done most updates; whether nobody is behind then.

    All ranks call it. A stage that all replicas have lost stays behind, and its ranks recompute it.

    Raises:
        PeerError: A peer is gone.
    """
    if pipeline.plan.replicas == 1:
        return False
    transport, behind = pipeline.transport, False
    told = transport.all_gather(torch.tensor([pipeline.update]), "the updates of replicas")
    done = [int(one) for one in told]
    for own in pipeline.plan.ranks:
        ranks = [rank for replica in own for rank in replica]
        newest = max(done[rank] for rank in ranks)
        behind = behind or newest < max(done)
        targets = [rank for rank in ranks if done[rank] < newest]
        if targets:
            sources = [rank for rank in ranks if done[rank] == newest]
            found = copy_tree(pipeline.state_dict, transport, sources, targets)
            if found is not None:
                pipeline.load_state_dict(found)
    return len(set(done)) > 1 and not behind


def _reached(batches: Iterable[Batch]) -> Iterator[Batch]:
    for batch in batches:
        points.notify_point("batch")
        yield batch


class _States:
    """States of a rank on disk, which bound what is logged."""

    def __init__(
        self, pipeline: Pipeline, journal: RecoveryJournal, checkpoints: CheckpointFolder | None, every: int
    ) -> None:
        self._pipeline, self._journal, self._checkpoints, self._every = pipeline, journal, checkpoints, every
        self._saved = -1

    def load(self) -> None:
        """Take the newest state of this rank."""
        found = self._checkpoints.newest() if self._checkpoints is not None else None
        if found is not None:
            self._take(*found)

    def go_back(self) -> None:
        """Take the newest state that is whole on all ranks; all call it."""
        assert self._checkpoints is not None
        self._take(*self._checkpoints.load(self._pipeline.transport))
        self._journal.incomplete = False

    def save(self) -> None:
        """Save the state where one is due; one counts when the update after it is done."""
        if self._checkpoints is None or not self._every:
            return
        if self._saved >= 0:
            # It was written beside the update that is done now.
            self._checkpoints.wait()
            if self._saved in self._checkpoints.steps():
                self._journal.checkpointed(self._saved)
                self._checkpoints.discard(self._saved)
            self._saved = -1
        if self._pipeline.update % self._every == 0:
            self._saved = self._pipeline.update
            self._checkpoints.save(self._saved, self._pipeline.state_dict())

    def _take(self, update: int, state: Any) -> None:
        self._pipeline.load_state_dict(state)
        self._journal.checkpointed(update)
        self._saved = -1


class _Progress:
    """Events of a recovery: the state is there, all ranks are where the first was, the next update is done."""

    def __init__(self, member: Membership, journal: RecoveryJournal, update: int, strategy: str) -> None:
        self._member, self._journal, self._first = member, journal, update
        self._told = journal.generation == 1
        self._resumed = False
        if not self._told:
            member.report_phase("restored", update, strategy=strategy)

    def resumed(self, update: int) -> None:
        """All ranks are at this update."""
        if not self._told and not self._resumed:
            self._resumed = True
            self._member.report_phase("resumed", update)

    def committed(self, updates: int) -> None:
        """Note how many updates are done."""
        caught_up = max(self._journal.done)
        if self._told or updates < caught_up:
            return
        # Ranks that were ahead wait for those behind, and have nothing to tell of it.
        if updates == caught_up or min(self._journal.done) == caught_up:
            self.resumed(caught_up)
        if updates > caught_up:
            self._told = True
            self._member.report_phase("committed", updates, computed=caught_up - self._first)
