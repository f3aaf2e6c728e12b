"""Full-graph training that resumes after failures.

    for trainer in recovery.train_epochs(build, 200):
        print(trainer.epoch)

An epoch is committed when every rank has stored its state (`full_graph.checkpoint.state_of`): weights, optimizer, bit
widths, traces, and rows that were received but not yet used. The end of an epoch therefore waits for the messages of
stale modes. After a failure all ranks resume from the newest epoch that all have stored. A replacement rereads
features and edges of its partition, and takes the rest from the memory of its host; dropout, stochastic rounding and
sampled rows are functions of seed and epoch.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator

from wirewise.errors import InputError, PeerError
from wirewise.runtime import points
from wirewise.runtime.full_graph import checkpoint
from wirewise.runtime.full_graph.trainer import Trainer
from wirewise.runtime.full_graph.warm import warm
from wirewise.runtime.recovery.membership import Member, join
from wirewise.runtime.recovery.snapshots import Snapshots, agree_on_step, write_snapshot
from wirewise.runtime.transport import Transport

__all__ = ["train_epochs"]


def train_epochs(
    build: Callable[[Transport], Trainer],
    epochs: int,
    *,
    mirrored: bool = False,
    timeout_s: float = 60.0,
) -> Iterator[Trainer]:
    """Train a full graph through failures, as a rank of a job started by an agent.

    Yields the trainer after each epoch, evaluated if due. Between epochs it must not be used for collective calls: a
    failure within them would not be handled.

    Args:
        build: Function that makes a new trainer on a transport, with the same model and options each time. It is
            called after each failure on all ranks: read graphs and parts before, not in it.
        epochs: Number of epochs.
        mirrored: Whether the next rank also keeps a copy, so that no state is lost with a host.
        timeout_s: Timeout of a process-group call, in seconds.

    Raises:
        InputError: The process was not started by an agent, or state of one rank alone is lost.
        PeerError: The job has failed.
    """
    if epochs < 1:
        raise InputError(f"epochs is {epochs}; expected at least 1")
    # A spare has both behind it when its role comes.
    warm()
    _keep_for_good()
    member = join(timeout_s)
    kept = _Kept(member, mirrored)
    trainer: Trainer | None = None
    old: Trainer | None
    done = told = 0

    def progress() -> tuple[dict[str, int], dict[str, int]]:
        now = trainer
        counts = {"exchanges": now.exchange.posted, "epochs": now.epoch} if now is not None else {}
        return counts, counts

    member.follow(progress)
    while True:
        try:
            if trainer is None:
                trainer = _placed(build(member.transport), kept)
                lost = max(done - trainer.epoch, 0)
                member.report_phase("restored", trainer.epoch, strategy="snapshot", lost=lost)
                points.notify_point("resume")
                member.report_phase("resumed", trainer.epoch)
            if trainer.epoch >= epochs:
                if member.finish():
                    break
                old, trainer = trainer, None
                _leave(old)
                old = None
                member.regroup(None)
                continue
            points.announce_position(member.rank, trainer.epoch)
            points.notify_point("batch")
            trainer.train_epoch()
            kept.write(trainer)
            points.notify_point("committed")
            if told < member.generation.number:
                # The first one only: a recovery's record would end with the last epoch before the next failure.
                told = member.generation.number
                member.report_phase("committed", trainer.epoch)
            done = trainer.epoch
            if trainer.due() or trainer.epoch == epochs:
                trainer.evaluate()
        except (RuntimeError, ValueError, PeerError) as error:
            traceback.clear_frames(error.__traceback__)
            old, trainer = trainer, None
            _leave(old)
            old = None
            member.regroup(error)
            continue
        yield trainer


class _Kept:
    """Snapshots of this rank, and where they are mirrored those of the rank before."""

    def __init__(self, member: Member, mirrored: bool) -> None:
        before = (member.rank - 1) % member.world_size
        self._own = Snapshots(member.memory, member.rank)
        self._others = Snapshots(member.memory / "mirror", before) if mirrored else None

    def write(self, trainer: Trainer) -> None:
        """Keep the state of an epoch; returns when all ranks have."""
        write_snapshot(
            self._own, trainer.epoch, checkpoint.state_of(trainer), trainer.transport, self._others
        )

    def restore(self, trainer: Trainer) -> None:
        """Put a new trainer at the newest epoch that all ranks have kept."""
        if not self._own.steps:
            # Every rank can begin anew, and need not go further back.
            self._own.write(0, checkpoint.state_of(trainer))
        epoch = agree_on_step(self._own, trainer.transport, self._others)
        checkpoint.restore(trainer, self._own.read(epoch))


def _placed(trainer: Trainer, kept: _Kept) -> Trainer:
    points.notify_point("restore")
    kept.restore(trainer)
    return trainer


def _keep_for_good() -> None:
    """Leave what lives now out of later collections of garbage.

    A trainer is held by cycles, and is collected before its group can be left: that took 0.7 s of each recovery among
    the objects of torch and numba, and takes milliseconds without them.
    """
    gc.collect()
    gc.freeze()


def _leave(trainer: Trainer | None) -> None:
    """Let go of the process group."""
    if trainer is not None:
        trainer.reducer.abandon()
    gc.collect()
