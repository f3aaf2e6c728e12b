"""Recomputation of lost pipeline stages from messages logged by the others: survivors never roll back.

Every rank resumes from the last update that it has done; a replacement from its checkpoint. A message of an update
that its sender has completed is read from the sender's log, a message of an update that its receiver has completed is
not sent, and all others are sent. Stages that are lost together, including neighbours, therefore need the logs of the
surviving ones only. Random numbers of a module depend on seed, update and microbatch, and batches are read by
position, so the weights are bit by bit those of a training without faults.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wirewise.errors import InputError, PeerError
from wirewise.runtime.pipeline.messages import MessageJournal, ValueSpec
from wirewise.runtime.pipeline.stage import MicrobatchKey
from wirewise.runtime.recovery.fetching import fetch_logs
from wirewise.runtime.recovery.logs import ALL_RANKS, LoggedMessages, MessageKey, SenderLog
from wirewise.runtime.transport import Transport

__all__ = ["RecoveryJournal"]

_LOOK_S = 0.002
"""How often a rank that waits for those that catch up looks at the store."""
_UPDATES = "updates"
_UPDATE_BITS = 20
"""A line has fewer messages in an update than two to this power."""


class RecoveryJournal(MessageJournal):
    """Journal of a recoverable pipeline: `Pipeline(..., journal=RecoveryJournal(...))`.

    A session increments `generation` before survivors call `Pipeline.reconnect`, and passes it to the replacement's
    journal.

    Args:
        log: Log of this rank.
        folders: Folders with the logs of all ranks.
        store: Torch store that outlives process groups, shared by all ranks.
        generation: Number of the first process group that this rank joins, counted from 1.
        fetched: Private folder of this rank for logs of other hosts: if ranks share no folder, one that is behind is
            sent the logs of the others, and `folders` is that of this host. None if `folders` has all.
        interrupted: Function that returns whether the session wants this rank to stop waiting, which then raises an
            error.
    """

    def __init__(
        self,
        log: SenderLog,
        folders: Iterable[str | os.PathLike[str]],
        store: Any,
        *,
        generation: int = 1,
        fetched: str | os.PathLike[str] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.log, self.generation = log, generation
        self._folders, self._store, self._interrupted = [Path(one) for one in folders], store, interrupted
        self._fetched = None if fetched is None else Path(fetched)
        self._begun = (generation, 0)
        self.incomplete = False
        """Whether the logs lacked what a rank needs, when all last began."""
        self._done: list[int] = []
        self._sent, self._awaited = _LineCounts(), _LineCounts()
        self._meeting: dict[str, int] = {}
        self._settling: dict[str, int] = {}
        self._timeout_s = 0.0
        self._past: LoggedMessages | None = None
        self._uncollected: int | None = None

    @property
    def done(self) -> tuple[int, ...]:
        """Number of updates that each rank had done at the last common start."""
        return tuple(self._done)

    def progress(self) -> tuple[dict[str, int], dict[str, int]]:
        """Counts that this rank has reached, and counts that it awaits from other ranks, by name; thread-safe."""
        done = {**self._sent.numbers, **self._settling, _UPDATES: self.log.committed}
        return done, {**self._awaited.numbers, **self._settling, **self._meeting}

    @property
    def fetches(self) -> bool:
        """Whether logs are fetched from other hosts."""
        return self._fetched is not None

    def past(self, rank: int) -> LoggedMessages:
        """Messages sent to a rank before, from the logs of all ranks."""
        return LoggedMessages([*self._folders, *([] if self._fetched is None else [self._fetched])], rank)

    @property
    def is_behind(self) -> bool:
        """Whether this rank is behind another one."""
        return self.log.committed < max(self._done, default=0)

    def begin(
        self, transport: Transport, update: int, senders: Iterable[int], replicas: Iterable[int]
    ) -> None:
        """Exchange the update from which each rank resumes, and check that the logs cover ranks that are behind.

        Raises:
            InputError: The logs lack messages, or replicas of a stage have done different updates; raised on every
                rank.
            PeerError: A peer is gone.
        """
        rank, number = transport.rank, self._begun[1] if self._begun[0] == self.generation else 0
        self._begun = (self.generation, number + 1)
        # Updates that were broken off are sent again from their first message on.
        self._sent, self._awaited = _LineCounts(), _LineCounts()
        self._meeting, self._settling = {}, {}
        self._timeout_s = transport.timeout_s
        told = transport.all_gather(torch.tensor([update]), "the comparison of updates")
        self._done = [int(one) for one in told]
        self.log.begin(update, self.generation)
        self._past = None
        self.incomplete = False
        if len(set(self._done)) == 1:
            return
        if self._fetched is not None:
            behind = [one for one, done in enumerate(self._done) if done < max(self._done)]
            fetch_logs(self.log, self._fetched, transport, behind)
        fault = ""
        for replica in replicas:
            if self._done[replica] != update:
                fault = (
                    f"rank {rank} has done {update} updates and rank {replica} of the same stage "
                    f"{self._done[replica]}; copy the state of one to the other before both go on"
                )
        if not fault and update < max(self._done):
            self._past = self.past(rank)
            fault = next(self._gaps(update, senders), "")
        faults = transport.all_gather(torch.tensor([bool(fault)]), "the comparison of logs")
        if behind := [one for one, found in enumerate(faults) if found]:
            self._past = None
            self.incomplete = True
            raise InputError(
                fault
                or f"ranks {behind} cannot be recomputed; their messages say why: go back to a checkpoint that all have"
            )

    def meet(self, update: int) -> int | None:
        """Wait until all ranks that were behind have reached this update; returns the next one to meet at, or None.

        Raises:
            PeerError: No rank that catches up made progress within the timeout, or the session interrupts.
        """
        levels = sorted(set(self._done))
        if update in levels[1:]:
            self._meeting = {_UPDATES: update}
            self._wait_for(update)
            self._meeting = {}
        if update >= levels[-1]:
            self._past = None
        return next((one for one in levels if one > update), None)

    def sent(self, peer: int, line: int, key: MicrobatchKey, tensor: Tensor, description: ValueSpec) -> bool:
        """Log a message; returns whether the peer still lacks its update."""
        self.log.append(MessageKey(self.log.rank, peer, line, *key), tensor, description)
        self._sent.add(line, key)
        return key[0] >= self._done[peer]

    def holds(self, peer: int, key: MicrobatchKey) -> bool:
        """Whether a peer's message is in its log."""
        return key[0] < self._done[peer]

    def take(self, peer: int, line: int, key: MicrobatchKey) -> tuple[Tensor, ValueSpec]:
        """Read a message from a peer's log."""
        assert self._past is not None
        return self._past.take(MessageKey(peer, self.log.rank, line, *key))

    def awaits(self, line: int, key: MicrobatchKey) -> None:
        """Record the message that this rank needs next, for the search for hung ranks."""
        self._awaited.add(line, key)

    def waits(self, arrived: Callable[[], bool]) -> None:
        """Write the log while the rank would otherwise wait."""
        self.log.flush(arrived)

    def on_reduce(self, update: int) -> None:
        """Record that all ranks are awaited at the end of an update."""
        self._settling = {"gradients": update + 1}

    def agree(self, update: int, number: int, settle: Callable[[], Tensor]) -> Tensor:
        """Get the agreed result, logging it, or from a log if another rank has already done the update."""
        if self.knows(update):
            assert self._past is not None
            found = self._past.read_agreed(number, update)
        else:
            found = settle()
        self.log.append(MessageKey(self.log.rank, ALL_RANKS, number, update), found.detach().cpu().clone())
        return found

    def knows(self, update: int) -> bool:
        """Whether another rank has already done this update."""
        return update < max(self._done, default=0)

    def commit(self, updates: int) -> None:
        """Write the pending messages and the watermark; waiting ranks see that this one makes progress."""
        if updates > self.log.committed:
            catching_up = self.is_behind
            self.log.commit(updates)
            if catching_up:
                self._store.add(self._key("progress"), 1)
        self._collect()

    def checkpointed(self, update: int) -> None:
        """Mark this rank's state after `update` updates as durable, or restorable from a replica.

        Messages of earlier updates are deleted once all ranks have done so.
        """
        self._store.set(f"wirewise/durable/{self.log.rank}", str(update))
        self._uncollected = update
        self._collect()

    def _collect(self) -> None:
        if self._uncollected is None or not self._done:
            return
        keys = [f"wirewise/durable/{rank}" for rank in range(len(self._done))]
        if self._store.check(keys):
            durable = min(map(int, self._store.multi_get(keys)))
            self.log.collect(durable)
            if durable >= self._uncollected:
                self._uncollected = None

    def _gaps(self, update: int, senders: Iterable[int]) -> Iterator[str]:
        """Messages that this rank needs and that the logs of ranks ahead lack."""
        assert self._past is not None
        for peer in sorted(senders):
            if self._done[peer] > update:
                first, end = self._past.span(peer)
                if first > update or end < self._done[peer]:
                    yield (
                        f"rank {self.log.rank} cannot be recomputed from update {update}: the log of rank {peer} has "
                        f"whole updates {first} to {end - 1}, expected {update} to {self._done[peer] - 1}; go back to "
                        "a checkpoint that all ranks have"
                    )

    def _wait_for(self, update: int) -> None:
        awaited = sum(done <= update for done in self._done)
        here = self._key(f"reached-{update}")
        came, progress = self._store.add(here, int(self._done[self.log.rank] <= update)), -1
        deadline = time.monotonic() + self._timeout_s
        while came < awaited:
            if self._interrupted():
                raise PeerError(
                    f"rank {self.log.rank} stopped waiting for ranks that catch up: a rank is lost"
                )
            if (now := self._store.add(self._key("progress"), 0)) != progress:
                progress, deadline = now, time.monotonic() + self._timeout_s
            if time.monotonic() > deadline:
                behind = [rank for rank, done in enumerate(self._done) if done < update]
                raise PeerError(
                    f"rank {self.log.rank} waited for ranks {behind} to catch up with update {update}, and none got "
                    f"further for {self._timeout_s:g} s; look at the logs of these ranks"
                )
            time.sleep(_LOOK_S)
            came = self._store.add(here, 0)

    def _key(self, label: str) -> str:
        generation, number = self._begun
        return f"wirewise/recompute/{generation}/{number}/{label}"


class _LineCounts:
    """Newest message of each line, as a number that is the same at both ends."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._newest: dict[int, tuple[MicrobatchKey, int]] = {}

    def add(self, line: int, key: MicrobatchKey) -> None:
        """Count a message; a line's description comes with the first one, and counts as that."""
        before, place = self._newest.get(line, (None, 0))
        if before != key:
            place = place + 1 if before is not None and before[0] == key[0] else 0
            self._newest[line] = key, place
        self.numbers[f"line {line}"] = (key[0] << _UPDATE_BITS) + place
