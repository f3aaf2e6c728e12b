"""Training of a pipeline that goes on when ranks are lost: the others stay where they are, replacements catch up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from wirewise.errors import PeerError
from wirewise.runtime.pipeline import Pipeline, UpdateResult
from wirewise.runtime.pipeline.feed import Batch
from wirewise.runtime.recovery.helping import Helping, recompute_together
from wirewise.runtime.recovery.recompute import RecoveryJournal
from wirewise.runtime.transport import Transport

__all__ = ["Checkpoints", "train_through_faults"]


class Checkpoints(NamedTuple):
    """When a rank saves its state, and how."""

    every: int
    """Updates from one to the next."""
    save: Callable[[int, dict[str, Any]], object]
    """Makes the state after so many updates durable; returns when it is."""


def train_through_faults(
    pipeline: Pipeline,
    journal: RecoveryJournal,
    batches: Callable[[int], Iterable[Batch]],
    regroup: Callable[[PeerError], tuple[int, Transport]],
    *,
    checkpoints: Checkpoints | None = None,
    helping: Helping | None = None,
) -> Iterator[UpdateResult]:
    """Train to the last batch, whatever ranks are lost meanwhile.

    A replacement makes a `Pipeline` on the new process group, loads the newest state that its rank saved (where there
    is none, it starts as all ranks did, from the model), and calls this too; it then gives the results of the updates
    that it recomputes, first (`RecoveryJournal.catching_up`).

    Args:
        pipeline: Pipeline of this rank, made with `journal`.
        journal: Journal of this rank.
        batches: Batches from the update with this number on, the same at each call.
        regroup: Called when a peer is lost, with the error: waits for the next process group of all ranks, and gives
            its number and its transport.
        checkpoints: How often states are saved; None: never, so that replacements recompute all updates.
        helping: How ranks that wait help a replacement, the same on all ranks; None: they do not.

    Yields:
        Result of each update, as `Pipeline.train`.

    Raises:
        InputError: The logs lack what a replacement needs; all ranks are to go back to a checkpoint that all have.
    """
    fault: PeerError | None = None
    while True:
        try:
            if fault is not None:
                journal.generation, transport = regroup(fault)
                pipeline.reconnect(transport)
                fault = None
            if helping is not None and journal.generation > 0:
                recompute_together(pipeline, journal, batches, helping)
            for result in pipeline.train(batches(pipeline.update)):
                if checkpoints is not None and pipeline.update % checkpoints.every == 0:
                    checkpoints.save(pipeline.update, pipeline.state_dict())
                    journal.checkpointed(pipeline.update)
                yield result
            # Until all are done, each may have to give a replacement what it needs.
            pipeline.transport.barrier("the end of the training")
            return
        except PeerError as error:
            fault = error
            fault.__traceback__ = None
