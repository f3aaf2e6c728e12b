"""Rank's end of the control channel: its generation, and interruption of its blocking calls.

gloo cannot abort another thread's blocking call. But a receive that times out closes all connections of its group, so
that everything blocked on them fails at once (`interrupt`). Other backends, such as NCCL, abort; operations in flight
then end with undefined buffers. The group is then destroyed, and the next generation has another one.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from wirewise.errors import InputError, PeerError
from wirewise.runtime.recovery.clock import clock_s
from wirewise.runtime.recovery.generations import (
    AbortJob,
    BeginGeneration,
    Command,
    End,
    Event,
    Generation,
    GenerationEnded,
    PhaseReached,
    ProgressReport,
    RankStalled,
    RefuseProcess,
    RequestProgress,
    TrainingFinished,
    Worker,
    WorkerReady,
)
from wirewise.runtime.recovery.progress import RankProgress, locate_thread

__all__ = [
    "ControlChannel",
    "Heartbeat",
    "Welcome",
    "adopt_channel",
    "check_main_program",
    "current",
    "fingerprint",
    "interrupt",
    "is_gloo",
]

BEAT_S = 0.1
_AGAIN_S = 1.0
"""Seconds from one complaint to the next, as long as nothing moves."""
_PATIENCE = 10.0
_LEFT_S = 3.0
"""Seconds that a rank which has left its loop waits before ranks compare: others leave it within a step."""
_ALL_STEPS = 2**62
_POISON = timedelta(milliseconds=3)
_POISON_TAG = 0x0F0F
_LOST_AGENT = 70
"""Exit code of a process whose agent is gone."""


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Heartbeat of the process."""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """First message of the agent: the identity of this process, and its resources."""

    worker: Worker
    address: str
    port: int
    token: str
    """Secret of the job."""
    progress_timeout_s: float
    """Seconds without progress after which a rank counts as hung; 0 for the timeout of the group's calls."""
    memory: str
    """Folder in shared memory of this host, which survives its processes and is removed with the agent."""


_from_agent = msgspec.json.Decoder(Welcome | Command)
_to_agent = msgspec.json.Encoder()


def interrupt(group: dist.ProcessGroup) -> None:
    """Interrupt everything that any thread waits for in a group, within milliseconds; the group is then unusable."""
    if not is_gloo(group):
        group.abort()
        return
    for peer in range(group.size()):
        if peer != group.rank():
            try:
                group.recv([torch.empty(1)], peer, _POISON_TAG).wait(_POISON)
            except (RuntimeError, ValueError):
                # The timeout closes the connections; so had the peer's death closed one.
                continue


def is_gloo(group: dist.ProcessGroup) -> bool:
    """Whether a group is gloo's, whose calls raise an error when interrupted."""
    return "gloo" in str(group.name()).lower()


def fingerprint(code: bytes) -> dict[str, str]:
    """Properties that must agree on all ranks for bit-identical results: code, versions, threads.

    Args:
        code: Source of the training.
    """
    return {
        "code": hashlib.sha256(code).hexdigest()[:12],
        "python": ".".join(map(str, sys.version_info[:2])),
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


class ControlChannel:
    """Control channel of this process.

    Args:
        channel: Connection to the agent.
        code: Source of the training, for the fingerprint.
    """

    def __init__(self, channel: Connection, code: bytes) -> None:
        self._channel, self._code = channel, code
        self._sending = threading.Lock()
        self._news = threading.Condition()
        self._generation: Generation | None = None
        self._over = 0
        self._end: Command | None = None
        self._groups: list[dist.ProcessGroup] = []
        self._aborted: list[dist.ProcessGroup] = []
        self._guarded = 0
        self._asked = self._entered = False
        self._joined, self._steps, self._finishes_s, self._leaves_early = 0, 0, 0.0, False
        self.at_end: Callable[[], object] | None = None
        """Called once the script has come to its end."""
        self._trains = threading.main_thread().ident or 0
        self._messages: Callable[[], tuple[dict[str, int], dict[str, int]]] | None = None
        self._standing: tuple[int, dict[str, int], dict[str, int], dict[str, int]] = 0, {}, {}, {}
        self._changed_s = self._complained_s = time.monotonic()
        self.limit_s = 0.0
        told = _from_agent.decode(channel.recv_bytes())
        assert isinstance(told, Welcome)
        self.worker, self.address, self.port = told.worker, told.address, told.port
        self.token, self.memory = told.token, told.memory
        self.progress_timeout_s = told.progress_timeout_s
        self._thread = threading.Thread(target=self._listen, name="wirewise-control", daemon=True)
        self._thread.start()

    def notify(self, event: Event | Heartbeat) -> None:
        """Send an event to the agent."""
        try:
            with self._sending:
                self._channel.send_bytes(_to_agent.encode(event))
        except OSError:
            _leave()

    def progress(
        self, rank: int, generation: int, phase: Any, step: int, at_s: float = 0.0, **more: Any
    ) -> None:
        """Report that this rank has reached a phase of a recovery, now or at a given time."""
        self.notify(PhaseReached(self.worker, rank, generation, phase, at_s or clock_s(), step, **more))

    def over(self, generation: int) -> bool:
        """Whether a generation has ended."""
        return self._over >= generation

    def is_over_within(self, generation: int, grace_s: float) -> bool:
        """Whether a generation has ended; the notice may arrive slightly after its cause."""
        with self._news:
            return self._news.wait_for(lambda: self._over >= generation or self._end is not None, grace_s)

    def ended(self) -> bool:
        """Whether all ranks have finished training."""
        return isinstance(self._end, End)

    def next_generation(self, after: int, timeout_s: float | None) -> Generation:
        """Wait for a role in a generation later than `after`.

        Args:
            after: Number of this process's last generation; 0 for none.
            timeout_s: Seconds to wait. None to wait as long as the agent lives, as a spare does.

        Raises:
            PeerError: This process was refused, or the job has failed; the message says why.
        """
        if not self._asked:
            self._asked = True
            self.notify(WorkerReady(self.worker, fingerprint(self._code)))

        def there() -> bool:
            new = self._generation is not None and self._generation.number > max(after, self._over)
            return new or self._end is not None

        with self._news:
            if not self._news.wait_for(there, timeout_s):
                raise PeerError(
                    f"no generation followed generation {after} within {timeout_s:g} s; expected spares for the ranks "
                    "that were lost: look at the agent's log, and give more spares or time"
                )
            if isinstance(self._end, AbortJob | RefuseProcess):
                raise PeerError(self._end.reason)
            if self._end is not None:
                raise SystemExit(0)  # A spare that was never needed.
            assert self._generation is not None
            return self._generation

    def enter(self) -> None:
        """Start the training of this process.

        Raises:
            InputError: It has already started one: role, groups and end belong to a single training.
        """
        if self._entered:
            raise InputError(
                "this process has joined a protected training already; expected one call of `protect`, `join` or "
                "`train_epochs` a process: give one `protect` all models and optimizers, or start one job after "
                "the other"
            )
        self._entered = True

    def watch(self, limit_s: float) -> None:
        """Watch the progress of the calling thread, and notify the agents when it waits for longer than a limit."""
        self._trains, self.limit_s = threading.get_ident(), limit_s

    def follow(self, progress: Callable[[], tuple[dict[str, int], dict[str, int]]]) -> None:
        """Watch message counts from a function, besides calls: sent and awaited, by name."""
        self._messages = progress

    def arrive(self, step: int) -> None:
        """Record that this rank has its gradients of a step, for which all others wait."""
        self._steps = step

    def join(self, generation: int) -> None:
        """Record that this rank has left earlier generations, and waits for the others in this one."""
        self._joined, self._steps = generation, 0

    def guard(self, generation: int, groups: Iterable[dist.ProcessGroup]) -> None:
        """Interrupt further groups as soon as their generation ends."""
        groups = list(groups)
        with self._news:
            self._guarded = generation
            self._groups += groups
            over = self._over >= generation
            for group in groups if over else ():
                self._interrupt(group)

    def release(self) -> None:
        """Stop guarding the groups, which are about to be destroyed."""
        with self._news:
            self._groups, self._aborted = [], []

    def finish(self, generation: int, step: int = -1, *, early: bool = False, cause: str = "") -> bool:
        """Report that this rank has finished training, and wait for all; False if another generation follows.

        Raises:
            PeerError: The job has failed.
        """
        # At the end of the training others may still evaluate, and no call of a group waits for them.
        self._steps, self._finishes_s = _ALL_STEPS, _LEFT_S if early else self.limit_s * _PATIENCE
        self._leaves_early = early
        self.notify(TrainingFinished(self.worker, generation, step, cause))
        with self._news:
            self._news.wait_for(lambda: self._end is not None or self._over >= generation)
            self._steps, self._finishes_s, self._leaves_early = 0, 0.0, False
            if isinstance(self._end, AbortJob | RefuseProcess):
                raise PeerError(self._end.reason)
            return self._end is not None

    def _listen(self) -> None:
        while True:
            try:
                if self._channel.poll(BEAT_S):
                    self._take(_from_agent.decode(self._channel.recv_bytes()))
                self._interrupt_again()
                self.notify(Heartbeat())
                self._complain()
            except (EOFError, OSError):
                _leave()

    def _complain(self) -> None:
        """Let the agents know when this rank has waited for others for too long."""
        now = time.monotonic()
        with self._news:
            # gloo counts messages beside collectives, so its numbers tell nothing where ranks send some.
            counts = _calls_of([] if self._messages else self._groups, self._steps)
            standing = self._joined, counts, *(self._messages() if self._messages else ({}, {}))
            ended = self._end is not None
        if standing != self._standing:
            self._standing, self._changed_s = standing, now
        limit_s = self._finishes_s or self.limit_s
        if ended or not limit_s or now - max(self._changed_s, self._complained_s) < limit_s:
            return
        if locate_thread(self._trains).kind != "user":
            self._complained_s = now - limit_s + _AGAIN_S
            self.notify(RankStalled(self.worker, self._joined, limit_s, left=self._leaves_early))

    def _report(self, inquiry: int) -> None:
        joined, counts, done, awaits = self._standing
        standing = RankProgress(
            generation=joined,
            counts=counts,
            done=done,
            awaits=awaits,
            unchanged_s=time.monotonic() - self._changed_s,
            place=locate_thread(self._trains),
        )
        self.notify(ProgressReport(self.worker, inquiry, standing))

    def _interrupt_again(self) -> None:
        """Interrupt what was begun after the first time, or was missed by it; it would wait for its timeout."""
        with self._news:
            for group in self._groups if self._guarded <= self._over else ():
                self._interrupt(group)

    def _interrupt(self, group: dist.ProcessGroup) -> None:
        """Interrupt a group; one that aborts does so once."""
        if not any(group is aborted for aborted in self._aborted):
            if not is_gloo(group):
                self._aborted.append(group)
            interrupt(group)

    def _take(self, told: Command | Welcome) -> None:
        if isinstance(told, RequestProgress):
            self._report(told.number)
            return
        poisoned = False
        with self._news:
            if isinstance(told, GenerationEnded):
                self._over = max(self._over, told.number)
                poisoned = self._guarded <= told.number
            elif isinstance(told, BeginGeneration):
                self._generation = told.generation
            elif not isinstance(told, Welcome):
                self._end = told
                poisoned = isinstance(told, AbortJob)
            self._news.notify_all()
            # With the lock, so that nobody destroys a group meanwhile.
            for group in self._groups if poisoned else ():
                self._interrupt(group)


def _calls_of(groups: Iterable[Any], steps: int) -> dict[str, int]:
    """Number of collective calls that this rank has begun, by name of the group."""
    counts = {"steps": steps}
    for group in groups:
        try:
            members = ",".join(map(str, dist.get_process_group_ranks(group)))
            counts[f"{group.group_name} of {members}"] = group._get_sequence_number_for_group()
        except (RuntimeError, ValueError, KeyError):
            continue  # A backend without numbers, or a group that is not torch's own.
    return counts


def _leave() -> None:
    """End this process: without its agent it would be nobody's."""
    os._exit(_LOST_AGENT)


def check_main_program() -> None:
    """Raise in a process started by multiprocessing that imports the script only for its definitions.

    Raises:
        InputError: The script has no main guard and runs again as a whole.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(
            "a process of multiprocessing, such as a worker of a DataLoader, runs the script again and comes to "
            '`protect`; expected that part of the script behind `if __name__ == "__main__":`, or a DataLoader with '
            'multiprocessing_context="fork"'
        )


_link: ControlChannel | None = None


def current() -> ControlChannel | None:
    """Control channel of this process. None if no agent has started it."""
    return _link


def adopt_channel(channel: Connection, code: Path | Callable[..., Any]) -> ControlChannel:
    """Install the control channel of this process; the agent's first action in it."""
    global _link
    source = code if isinstance(code, Path) else Path(sys.modules[code.__module__].__file__ or "")
    _link = ControlChannel(channel, source.read_bytes() if source.is_file() else b"")
    return _link
