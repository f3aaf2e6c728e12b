"""Membership of a rank: its role, and the process group of each generation."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from wirewise.errors import InputError, PeerError
from wirewise.hosts import rank_variables
from wirewise.log import logger, set_position
from wirewise.runtime import points
from wirewise.runtime.recovery import control
from wirewise.runtime.recovery.clock import clock_s
from wirewise.runtime.recovery.generations import Generation
from wirewise.runtime.recovery.stores import join_store
from wirewise.runtime.startup import companion, join_group
from wirewise.runtime.transport import Transport

__all__ = ["Member", "join"]

_log = logger("recovery")
_JOIN_S, _COME_S = 10.0, 30.0
"""Seconds that a new group has to connect, and the others to come to it once what they waited in has timed out: one may
connect in the group before, to a peer that died meanwhile, or wait in a call of torch that an interruption missed."""
_GRACE_S = 10.0
"""Seconds that the agent has to tell of a failure after its first effect was seen here."""
_REPLACE_S = 10.0
"""Seconds that agents have to find and kill a rank that makes no progress, before calls of the group time out."""
_DOUBT_S = 0.5
"""Seconds likewise for an error that does not look like a failure of another rank."""


def join(
    timeout_s: float = 60.0,
    *,
    bound: str = "each rank has a part that no other has",
    backend: str = "gloo",
) -> Member:
    """Wait for a rank's role, and join the process group of all.

    A spare waits here. The group is torch's default one; after a failure `Member.regroup` joins the next.

    Args:
        timeout_s: Timeout of a process-group call, in seconds.
        bound: Reason why the training cannot continue with fewer ranks; "" if it can.
        backend: Backend of torch's default group. If it is not gloo, a separate gloo group serves recoveries.

    Raises:
        InputError: No agent has started this process, or it is elastic, which these ranks do not support; or the
            process has already joined a training.
        PeerError: This process was refused, or the job has failed.
    """
    link = control.current()
    if link is None:
        raise InputError(
            "no agent has started this process; start it by `wirewise run swift -- torchrun ...`, or as the target of "
            "recovery.Agent"
        )
    link.enter()
    member = Member(link, timeout_s, backend)
    if bound and member.generation.elastic:
        raise InputError(
            f"the agent lets training go on with fewer ranks (elastic=True), and {bound}; expected elastic=False, with "
            "which ranks wait for a spare"
        )
    member.regroup(None)
    return member


class Member:
    """Membership of this process, made by `join`.

    Args:
        link: Control channel to the agent.
        timeout_s: Timeout of a process-group call, in seconds.
        backend: Backend of torch's default group.

    Attributes:
        rank: Rank of this process, the same in all generations.
        world_size: Number of ranks of the job, including missing ones.
        generation: Generation of the members.
        local_rank: Unique index of this rank on its host, and of its device.
        transport: Transport between the processes of this generation, over gloo.
        device_transport: Transport over torch's default group; the same one if that is gloo's.
        memory: Folder in this host's memory, which outlives the processes of the job.
    """

    def __init__(self, link: control.ControlChannel, timeout_s: float, backend: str = "gloo") -> None:
        self._link, self._backend = link, backend
        self.memory = Path(link.memory)
        self._store = join_store(link.address, link.port, link.token)
        self._last = 0
        # The agents replace a rank that makes no progress; the group's own timeout only ends the job.
        self._limit_s = link.progress_timeout_s or timeout_s
        self._timeout_s = max(timeout_s, self._limit_s) + _REPLACE_S
        link.watch(self._limit_s)
        self.generation = link.next_generation(0, None)
        self.world_size = self.generation.world_size
        self.rank = next(rank for rank, one in self.generation.workers.items() if one == link.worker)
        self.local_rank = self.generation.local_ranks.get(self.rank, 0)
        os.environ.update(self._variables())
        self.transport: Transport
        self.device_transport: Transport

    def _variables(self) -> dict[str, str]:
        """Variables that torchrun would have set, had it known the role of this process."""
        host = self._link.worker[0]
        beside = [rank for rank, worker in self.generation.workers.items() if worker[0] == host]
        return rank_variables(
            self.rank,
            self.world_size,
            self._link.address,
            self._link.port,
            local_rank=self.local_rank,
            local_world_size=len(beside),
        )

    @property
    def fresh(self) -> bool:
        """Whether this process has just taken its role, and holds no state."""
        return self.rank in self.generation.fresh

    @property
    def store(self) -> Any:
        """The agent's store, which outlives all process groups."""
        return self._store

    @property
    def is_over(self) -> bool:
        """Whether another rank of the current generation is lost."""
        return self._link.over(self._last)

    def regroup(self, error: Exception | None) -> tuple[int, Transport]:
        """Leave the process group, and join that of the next stable generation.

        Args:
            error: Error raised on this rank. None when the group is joined for the first time.

        Returns:
            Number of the generation, and the transport between its processes.

        Raises:
            PeerError: The job has failed, or the error was not caused by a failure of another rank.
        """
        if error is not None:
            if not self.is_failure(error):
                raise error
            points.notify_point("fault")
            _log.warning("leaves generation %d: %s", self._last, (str(error).splitlines() or [""])[0])
        noticed_s = 0.0 if error is None else clock_s()
        while True:
            self.leave()
            self.generation = self._link.next_generation(self._last, None)
            self._last = self.generation.number
            self._link.join(self._last)
            try:
                self.report_phase("noticed", at_s=noticed_s)
                points.notify_point("regroup")
                self.transport, self.device_transport = self._joined(self.generation)
                self.report_phase("regrouped")
                set_position(generation=self._last)
                _log.info("joined the group of ranks %s", list(self.generation.ranks))
                return self._last, self.transport
            except (RuntimeError, ValueError, PeerError) as failed:
                if not self.is_failure(failed):
                    raise
                # What it holds would keep connections open.
                traceback.clear_frames(failed.__traceback__)
                noticed_s = clock_s()

    def is_failure(self, error: Exception) -> bool:
        """Whether an error was caused by a failure of another rank, as reported by the agent."""
        foreign = isinstance(error, PeerError) or "gloo" in str(error) or "onnection" in str(error)
        return self._link.is_over_within(self._last, _GRACE_S if foreign else _DOUBT_S)

    def report_phase(self, phase: str, step: int = -1, **more: Any) -> None:
        """Report the phase of a recovery to the agent."""
        self._link.progress(self.rank, self._last, phase, step, **more)

    def guard(self, groups: Iterable[dist.ProcessGroup]) -> None:
        """Interrupt further groups of this generation when a rank is lost, such as those of some ranks alone."""
        self._link.guard(self._last, groups)

    def follow(self, progress: Callable[[], tuple[dict[str, int], dict[str, int]]]) -> None:
        """Watch messages between ranks, which no group counts: counts reached and counts awaited, by name."""
        self._link.follow(progress)

    def arrive(self, step: int) -> None:
        """Record that this rank has its gradients of a step, for which all others wait."""
        self._link.arrive(step)

    def leave(self) -> None:
        """Destroy the process group; nothing may reference it any more."""
        self._link.release()
        if dist.is_initialized():
            assert dist.group.WORLD is not None
            if self._link.over(self._last) and not control.is_gloo(dist.group.WORLD):
                # A destruction waits for what is under way, and that for ranks that are lost.
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
        # A group that did not come about is counted too, and the name of the next one has the count in it.
        dist.distributed_c10d._world.group_count = 0

    def finish(self, step: int = -1, *, early: bool = False, cause: str = "") -> bool:
        """Report that this rank has finished training, and wait for all; False if another generation follows.

        Args:
            step: Number of updates made; -1 if they are not to be compared over ranks.
            early: Whether it has left its loop early, so that others may wait for it.
            cause: Error for which it has left its loop, in words. Defaults to none.

        Raises:
            PeerError: The job has failed.
        """
        return self._link.finish(self._last, step, early=early, cause=cause)

    def at_end(self, function: Callable[[], object] | None) -> None:
        """Call a function when the script ends."""
        self._link.at_end = function

    def _joined(self, generation: Generation) -> tuple[Transport, Transport]:
        ranks = generation.ranks
        store = PrefixStore(f"generation-{generation.number}", self._store)
        store.set(f"here-{self.rank}", "")
        missing = [rank for rank in ranks if rank != self.rank]
        limit_s = self._timeout_s + _COME_S
        deadline = time.monotonic() + limit_s
        # A wait of torch's could not be interrupted, so the group is joined when all are there.
        while missing and not self._link.over(generation.number):
            missing = [rank for rank in missing if not store.check([f"here-{rank}"])]
            if missing and time.monotonic() > deadline:
                raise PeerError(
                    f"rank {self.rank} waited {limit_s:g} s for ranks {missing} of generation {generation.number}; "
                    "look at their logs"
                )
            time.sleep(0.001)
        if missing:
            raise PeerError(f"generation {generation.number} was over before ranks {missing} came")
        points.notify_point("connect")
        place = ranks.index(self.rank)
        join_group(store, place, len(ranks), _JOIN_S, self._backend)
        group = dist.group.WORLD
        assert group is not None
        if control.is_gloo(group) or group.name() == "nccl":
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self._timeout_s), group)
        self._link.guard(generation.number, [group])
        # Interruptions have missed a collective, so whoever waits for one looks for himself.
        lost = partial(self._link.over, generation.number)
        own = Transport(group, timeout_s=self._timeout_s, is_lost=lost)
        if control.is_gloo(group):
            return own, own
        beside = companion(PrefixStore("companion", store), place, len(ranks), _JOIN_S)
        beside.set_timeout(timedelta(seconds=self._timeout_s))
        self._link.guard(generation.number, [beside])
        return Transport(beside, timeout_s=self._timeout_s, is_lost=lost), own
