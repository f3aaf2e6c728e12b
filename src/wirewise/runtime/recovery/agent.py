"""Agent of a host: starts ranks and spares, detects dead or hung ranks, and has the others interrupted.

Processes are forked from a server with torch loaded, in milliseconds; a spare runs the user's script up to the point
where a role is needed, and waits there. The kernel reports a death by the process's pidfd. A process whose control
channel is silent for too long is killed first and counts as dead only then, so it cannot come back. Agents of several
hosts communicate through the store of host 0's agent, whose coordinator (`generations`) alone decides.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import secrets
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from wirewise.errors import InputError, PeerError
from wirewise.files import make_folder, write_json
from wirewise.hosts import ForkedProcess, ForkServer, OwnedFolder, ProcessTable, is_computing
from wirewise.hosts.folders import MEMORY
from wirewise.hosts.ranks import describe_exit
from wirewise.log import logger, set_position
from wirewise.runtime.recovery import control
from wirewise.runtime.recovery.bus import Bus
from wirewise.runtime.recovery.clock import clock_s
from wirewise.runtime.recovery.entry import enter, run_script
from wirewise.runtime.recovery.generations import (
    AbortJob,
    BeginGeneration,
    Command,
    Coordinator,
    End,
    ErrorRaised,
    Event,
    GenerationEnded,
    KillWorker,
    PhaseReached,
    RefuseProcess,
    RequestProgress,
    StartTimedOut,
    Worker,
    WorkerLost,
    WorkerReady,
    WorkerStarted,
)
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.outcome import Recoveries, RecoveryTimes
from wirewise.runtime.recovery.stores import open_store

__all__ = ["PRELOAD", "TOKEN", "Agent", "Recoveries", "RecoveryTimes", "run_script"]

_log = logger("recovery")
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "wirewise.runtime.recovery.protection")
"""Modules to import before `protect`, which takes a spare about a second of compute otherwise."""

RECOVERIES = "recoveries.json"
"""File in a job's folder that lists its recoveries."""

TOKEN = "WIREWISE_TOKEN"
"""Environment variable with the secret of a job on several hosts."""

_LOOK_S = 0.05
_DECIDE_S, _HOLD_S = 0.1, 1.0
"""Seconds within which a generation follows a loss if there are spares for it, and from it to its first step."""
_GRACE_S = 5.0
_PAUSE_S = 0.5
"""An agent that looks so much later than it meant to was kept from its processor, as its processes may have been."""
_BUSY = 10.0
"""A process that computes may be silent so many times longer: it waits for a processor, or holds Python's lock."""
_PREFIX = "wirewise-recovery-"
_DEFAULT = AgentLimits()

_heard = msgspec.json.Decoder(Event | control.Heartbeat)
_said = msgspec.json.Encoder()


class _Process:
    """A process of this host."""

    def __init__(self, worker: Worker, process: ForkedProcess, channel: Connection) -> None:
        self.worker, self.process, self.channel = worker, process, channel
        self.started_s = self.heard_s = time.monotonic()
        self.ready = False
        self.cause = ""
        """Why the agent has killed it; "" if it has not."""

    def kill(self, cause: str = "") -> None:
        """Make sure that it does nothing any more."""
        self.cause = self.cause or cause
        self.process.kill()

    def is_late(self, limit_s: float) -> bool:
        """Whether it should have asked for a role by now."""
        return not self.ready and time.monotonic() - self.started_s > limit_s

    def is_silent(self, limit_s: float) -> bool:
        """Whether it has said nothing for too long, and not only for want of a processor."""
        quiet_s = time.monotonic() - self.heard_s
        # Before it asks for a role nobody waits for it but for its death.
        silent = self.ready and quiet_s > limit_s
        return silent and (quiet_s > _BUSY * limit_s or not is_computing(self.process.pid))


class Agent:
    """Agent of one host.

    Args:
        target: Function that each rank runs, importable from its module; `run_script` for a user's script.
        arguments: Arguments of the function.
        ranks: Number of ranks on all hosts together.
        host: Index of this host; host 0 has the store and the coordinator.
        hosts: Number of hosts, with equally many ranks each.
        spares: Number of spare processes on this host.
        address: Address of host 0.
        port: Port of the store; 0 with one host for any free one.
        folder: Folder for logs of the ranks and for `recoveries.json`. Defaults to this process's output for logs.
        elastic: Whether training continues with fewer ranks while there are no spares.
        start_timeout_s: Seconds that a live process may take to request a role.
        progress_timeout_s: Seconds that ranks wait for one without progress, before it is killed and replaced. 0 for
            the value of `protect(ranks=Ranks(timeout_s=...))`.
        silence_s: Seconds without a heartbeat after which a process is killed, unless it uses the CPU.
        lease_s: Seconds without contact to the store after which a host stops its processes.
        wait_s: Seconds that ranks wait for hosts and processes that are missing and not starting.
        token: Secret shared by all hosts of the job alone; store entries without it are ignored. Defaults to the
            variable WIREWISE_TOKEN, or with one host to a random one.
        environment: Further environment variables of the ranks.
        preload: Modules that the fork server imports first, so that spares are ready sooner.

    Raises:
        InputError: Numbers contradict each other.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: Sequence[Any] = (),
        *,
        ranks: int,
        host: int = 0,
        hosts: int = 1,
        spares: int = 1,
        address: str = "127.0.0.1",
        port: int = 0,
        folder: Path | None = None,
        elastic: bool = False,
        start_timeout_s: float = _DEFAULT.start_timeout_s,
        progress_timeout_s: float = _DEFAULT.progress_timeout_s,
        silence_s: float = _DEFAULT.silence_s,
        lease_s: float = _DEFAULT.lease_s,
        wait_s: float = _DEFAULT.wait_s,
        token: str | None = None,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        if not (hosts >= 1 and 0 <= host < hosts and ranks >= hosts and ranks % hosts == 0 and spares >= 0):
            raise InputError(
                f"got {ranks} ranks on {hosts} hosts, host {host} and {spares} spares; expected an equal number of "
                "ranks on each host, at least one, and hosts counted from 0"
            )
        limits = {
            "start_timeout_s": start_timeout_s,
            "silence_s": silence_s,
            "lease_s": lease_s,
            "wait_s": wait_s,
        }
        if wrong := [name for name, value in limits.items() if not (0 < value and math.isfinite(value))]:
            raise InputError(f"got {wrong[0]} {limits[wrong[0]]}; expected finite seconds above 0")
        if hosts > 1 and not port:
            raise InputError(
                f"got no port for {hosts} hosts; expected one that is free on host 0, the same for all"
            )
        self._target, self._arguments = target, tuple(arguments)
        self._own, self._spares, self._host, self._hosts = ranks // hosts, spares, host, hosts
        self._place = address, port
        self._folder = None if folder is None else make_folder(folder)
        if not (progress_timeout_s >= 0 and math.isfinite(progress_timeout_s)):
            raise InputError(f"got progress_timeout_s {progress_timeout_s}; expected finite seconds, or 0")
        self._limits = AgentLimits(**limits, progress_timeout_s=progress_timeout_s)
        self._token = token if token is not None else os.environ.get(TOKEN, "")
        if hosts == 1:
            self._token = self._token or secrets.token_hex(16)
        self._environment = dict(environment or {})
        self._coordinator = Coordinator(ranks, hosts, elastic=elastic) if host == 0 else None
        self._processes = ProcessTable[Worker, _Process]()
        self._started = self._starting = 0
        self._launching = threading.Lock()
        self._launched: queue.SimpleQueue[_Process | PeerError] = queue.SimpleQueue()
        self._wake, self._waker = os.pipe()
        self._roles: dict[Worker, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, "launched")
        self._end: Command | None = None
        self._refused = False
        self._waits_since: float | None = None
        self._looked_s = time.monotonic()
        self._held_until = 0.0
        self._late = ""
        self.outcome = Recoveries(world_size=ranks)
        self._server = ForkServer.shared(preload)

    def run(self) -> Recoveries:
        """Train until the job ends.

        Returns:
            Result of the job; on hosts other than 0 without its recoveries.

        Raises:
            PeerError: The job has failed: a rank raised an error, too few processes are left, or this host has lost
                the store; the message says which. All processes are gone in any case.
        """
        address, port = self._place
        # The store is this process's, so it outlives all ranks.
        store, port = open_store(
            address, port, self._token, host=self._host, hosts=self._hosts, timeout_s=self._limits.wait_s
        )
        self._place = address, port
        self._memory = OwnedFolder(MEMORY, _PREFIX)
        self._bus = None
        if self._hosts > 1:
            self._bus = Bus(store, self._host, self._hosts, self._limits.lease_s, self._token)
        if self._bus is not None:
            self._selector.register(self._bus.wake, selectors.EVENT_READ, "bus")
        try:
            for _ in range(self._own + self._spares):
                self._start()
            while self._end is None:
                self._turn()
            self._leave()
        finally:
            self._stop()
        if not isinstance(self._end, End):
            assert isinstance(self._end, AbortJob)
            raise PeerError(self._end.reason)
        if self._late:
            raise PeerError(self._late)
        return self.outcome

    @property
    def pids(self) -> dict[int, int]:
        """Process id of each rank on this host."""
        known = {worker: one.process.pid for worker, one in list(self._processes.items())}
        return {rank: known[worker] for worker, rank in list(self._roles.items()) if worker in known}

    def _start(self) -> None:
        """Start a process, which is a spare until it has a role; a fork takes long enough to be worth a thread."""
        worker = (self._host, self._started)
        self._started += 1
        self._starting += 1
        threading.Thread(target=self._launch, args=(worker,), name="wirewise-start", daemon=True).start()

    def _launch(self, worker: Worker) -> None:
        ours, theirs = Pipe()
        with self._launching, theirs:
            process: _Process | PeerError
            try:
                process = _Process(worker, self._fork(worker, theirs), ours)
                place = control.Welcome(
                    worker, *self._place, self._token, self._limits.progress_timeout_s, str(self._memory.path)
                )
                ours.send_bytes(_said.encode(place))
            except PeerError as error:
                process = error
            except OSError:
                pass  # It has just died; the kernel tells of it.
            self._launched.put(process)
            os.write(self._waker, b"x")

    def _fork(self, worker: Worker, channel: Connection) -> ForkedProcess:
        return self._server.start(
            enter,
            [self._target, self._arguments],
            pass_fds=[channel.fileno()],
            environment=self._environment,
            log=None if self._folder is None else self._folder / f"process-{worker[0]}-{worker[1]}.log",
        )

    def _take_in(self) -> None:
        """Look after processes that have been started."""
        os.read(self._wake, 4096)
        while not self._launched.empty():
            one = self._launched.get()
            self._starting -= 1
            if isinstance(one, PeerError):
                self._end = self._end or AbortJob(str(one))
                continue
            self._processes[one.worker] = one
            self._selector.register(one.process.pidfd, selectors.EVENT_READ, one)
            self._selector.register(one.channel, selectors.EVENT_READ, one)
            if self._end is None:
                self._report(WorkerStarted(one.worker))

    def _turn(self) -> None:
        self._look()
        self._look_after_spares()

    def _look(self) -> None:
        """Take in what has come, and see who is silent."""
        ready = self._selector.select(_LOOK_S)
        self._excuse_pause()
        for key, _ in ready:
            if key.data == "launched":
                self._take_in()
            elif key.data == "bus":
                assert self._bus is not None
                for told in self._bus.take():
                    self._told(told)
            elif key.data.worker in self._processes:
                if key.fileobj == key.data.process.pidfd:
                    self._reap(key.data)
                else:
                    self._listen(key.data)
        for one in list(self._processes.values()):
            if not one.cause:
                self._check(one)

    def _excuse_pause(self) -> None:
        """Count a time in which nobody looked as nobody's silence: a machine that stood still stood still for all."""
        now = time.monotonic()
        late_s, self._looked_s = now - self._looked_s - _LOOK_S, now
        if late_s > _PAUSE_S:
            for one in self._processes.values():
                one.heard_s = min(one.heard_s + late_s, now)

    def _check(self, one: _Process) -> None:
        """Kill a process that is silent or late; it counts as dead only once the kernel reports its exit."""
        limits = self._limits
        if one.is_late(limits.start_timeout_s) and self._end is None:
            one.kill(f"has not called `protect` within {limits.start_timeout_s:g} s")
            self._report(StartTimedOut(one.worker, limits.start_timeout_s))
        elif one.is_silent(limits.silence_s):
            one.kill(f"silent for {limits.silence_s:g} s")

    def _told(self, told: Event | Command) -> None:
        if self._end is not None:
            return
        if isinstance(told, Command):
            self._carry_out(told)
        else:
            self._report(told)

    def _listen(self, one: _Process) -> None:
        try:
            while one.channel.poll():
                event = _heard.decode(one.channel.recv_bytes())
                one.heard_s = time.monotonic()
                one.ready = one.ready or isinstance(event, WorkerReady)
                if not isinstance(event, control.Heartbeat):
                    self._report(event)
        except (EOFError, OSError):
            # Its end follows, by the other descriptor.
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one.channel)

    def _reap(self, one: _Process) -> None:
        seen_s = clock_s()
        self._listen(one)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one.channel)
        self._selector.unregister(one.process.pidfd)
        code = self._processes.reap(one.worker)
        cause = one.cause or describe_exit(code)
        one.channel.close()
        if code == 0 and self._end is None and one.worker in self._roles:
            text = "it ended before the training was over; expected the loop over all batches to its end"
            self._report(ErrorRaised(one.worker, text))
        if code == 0:
            return
        if self._end is None:
            self._report(WorkerLost(one.worker, cause, seen_s))
        elif one.worker in self._roles:
            self._too_late(one.worker, cause)

    def _too_late(self, worker: Worker, text: str) -> None:
        """Note that a rank failed in what it does after the training, which all others have left."""
        if isinstance(self._end, End) and not self._late:
            self._late = f"rank {self._roles[worker]} failed after the training had come to its end: {text}"

    def _report(self, event: Event) -> None:
        """Let the coordinator know."""
        if isinstance(event, ErrorRaised) and self._end is not None and event.worker in self._roles:
            self._too_late(event.worker, f"it raised an error:\n{event.text}")
        if isinstance(event, WorkerLost):
            rank = self._roles.get(event.worker)
            who = f"process {event.worker[1]}, a spare" if rank is None else f"rank {rank}"
            _log.warning("%s on host %d is lost: %s", who, event.worker[0], event.cause)
            self._held_until = time.monotonic() + _DECIDE_S
        elif isinstance(event, PhaseReached) and event.phase == "committed":
            self._held_until = 0.0
        if self._coordinator is None:
            assert self._bus is not None
            self._bus.post(event)
            return
        if isinstance(event, PhaseReached):
            self._note(event)
        for command in self._coordinator.on_event(event):
            if self._bus is not None:
                self._bus.post(command)
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, RefuseProcess):
            self._refuse(command)
            return
        if isinstance(command, KillWorker):
            if command.worker in self._processes:
                _log.warning("rank %s is killed: %s", self._roles.get(command.worker), command.cause)
                self._processes[command.worker].kill(command.cause)
            return
        if isinstance(command, BeginGeneration):
            set_position(generation=command.generation.number)
            _log.info("a generation begins with ranks %s", sorted(command.generation.workers))
            self._roles = {worker: rank for rank, worker in command.generation.workers.items()}
            if self._coordinator is not None:
                self.outcome.begin(command.generation)
            self._held_until = time.monotonic() + _HOLD_S
        if isinstance(command, AbortJob | End):
            self._end = command
        for one in list(self._processes.values()):
            # Spares need not know of others' generations.
            if (
                not isinstance(command, GenerationEnded | BeginGeneration | RequestProgress)
                or one.worker in self._roles
            ):
                self._send(one, command)

    def _refuse(self, command: RefuseProcess) -> None:
        """End a process that may not take part, and start no more like it."""
        if self._coordinator is not None:
            self.outcome.refused.append(command.reason)
        if command.worker in self._processes:
            self._processes[command.worker].kill()
            self._refused = True
            if not self._roles.keys() & self._processes.keys():
                self._end = AbortJob(command.reason)

    def _send(self, one: _Process, command: Command) -> None:
        # One that has just died is told of by the kernel.
        with contextlib.suppress(OSError):
            one.channel.send_bytes(_said.encode(command))

    def _note(self, event: PhaseReached) -> None:
        """Write down how far a recovery is."""
        self.outcome.note(event)
        if event.phase == "committed" and self._folder is not None:
            write_json(self._folder / RECOVERIES, self.outcome)

    def _look_after_spares(self) -> None:
        """Start processes for those that were lost; a recovery that can do without them has the processors first."""
        if self._end is not None:
            return
        wanted = self._own + self._spares
        missing = len(self._processes) + self._starting < wanted
        if missing and not self._refused and time.monotonic() >= self._held_until:
            self._start()
        if self._coordinator is None:
            return
        if not self._coordinator.has_too_few_processes:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = time.monotonic()
        elif time.monotonic() - self._waits_since > self._limits.wait_s:
            self._report_give_up()

    def _report_give_up(self) -> None:
        assert self._coordinator is not None
        command = AbortJob(
            f"ranks {self._coordinator.vacant} have had no process for {self._limits.wait_s:g} s, nor one that starts; "
            f"expected {self._own + self._spares} on each of {self._hosts} hosts: look at their logs, and start the "
            "hosts again, or give them more time: --wait, wait_s of the agent"
            + "".join(f"; refused: {reason}" for reason in self.outcome.refused[-1:])
        )
        if self._bus is not None:
            self._bus.post(command)
        self._carry_out(command)

    def _leave(self) -> None:
        """Let ranks end by themselves, however long they live after a training that came to its end; others soon."""
        if self._bus is not None:
            self._bus.close()
        deadline = time.monotonic() + _GRACE_S
        while self._processes and (
            time.monotonic() < deadline
            or (isinstance(self._end, End) and self._roles.keys() & self._processes.keys())
        ):
            self._look()

    def _stop(self) -> None:
        """Leave no process behind."""
        if self._bus is not None:
            self._bus.close()
        while self._starting:
            self._take_in()
        channels = [one.channel for one in self._processes.values()]
        self._processes.close()
        for channel in channels:
            channel.close()
        self._selector.close()
        self._memory.close()
        os.close(self._wake)
        os.close(self._waker)
        if self._folder is not None and self._coordinator is not None:
            write_json(self._folder / RECOVERIES, self.outcome)
