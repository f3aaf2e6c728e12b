"""The agent of a host: it starts ranks and spares, sees who dies or falls silent, and has the rest interrupted.

Processes come from a forkserver that has torch loaded, so a new one is there in milliseconds; a spare runs the user's
script up to the point where a role is needed, and waits there. The kernel tells of a death by the process's file
descriptor. A process whose control channel is silent for too long is killed first and counts as dead only then, so it
cannot come back. Agents of several hosts talk through the store, which the agent of host 0 holds and whose coordinator
(`generations`) alone decides.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import runpy
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from torch._C._distributed_c10d import TCPStore

from wirewise.errors import InputError, PeerError
from wirewise.files import make_folder, write_json
from wirewise.runtime.recovery import control
from wirewise.runtime.recovery.bus import Bus
from wirewise.runtime.recovery.clock import clock_s
from wirewise.runtime.recovery.generations import (
    Begin,
    Command,
    Coordinator,
    End,
    Event,
    Generation,
    GiveUp,
    Over,
    PhaseReached,
    Raised,
    Refuse,
    Worker,
    WorkerLost,
    WorkerReady,
)

__all__ = ["PRELOAD", "Agent", "Recovered", "Recoveries", "run_script"]

PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "wirewise.runtime.recovery.session")
"""What a process needs that calls `protect`: a spare that imports it by itself is ready a second of computing later."""

RECOVERIES = "recoveries.json"
"""File in the folder of a job with every recovery so far."""

_LOOK_S = 0.05
_DECIDE_S, _HOLD_S = 0.1, 1.0
"""Seconds within which a generation follows a loss if there are spares for it, and from it to its first step."""
_WARM_S = 120.0
"""Seconds that a process has to come up to its request for a role, in which it may be silent."""
_GRACE_S = 5.0
_BUSY = 10.0
"""A process that computes may be silent so many times longer: it waits for a processor, or holds Python's lock."""
_PR_SET_PDEATHSIG = 1
_SHARED, _NAME = Path("/dev/shm"), "wirewise-recovery-"

_SERVER = multiprocessing.get_context("forkserver")

_heard = msgspec.json.Decoder(Event | control.Beat)
_said = msgspec.json.Encoder()


class Recovered(msgspec.Struct, kw_only=True):
    """One recovery; times are seconds since 1970, 0 where it did not come to that."""

    generation: int
    ranks: tuple[int, ...]
    """Ranks whose process was lost; none where ranks were added."""
    causes: tuple[str, ...]
    seen_s: float
    """When the first loss was noticed by an agent."""
    noticed_s: float = 0.0
    """When the last rank had left what it was doing; further times are those of the last rank likewise."""
    regrouped_s: float = 0.0
    decided_s: float = 0.0
    restored_s: float = 0.0
    resumed_s: float = 0.0
    committed_s: float = 0.0
    """When the first new step was committed by all."""
    step: int = -1
    """Step that training went on from."""
    strategy: str = ""
    lost_iterations: int = 0
    """Most steps of any rank that were committed and had to be computed again."""
    replayed_iterations: int = 0
    """Steps that were computed again from logs."""
    equal: bool = True
    """Whether replicas had the same digest afterwards."""


class Recoveries(msgspec.Struct, kw_only=True):
    """What a job came to."""

    world_size: int
    generations: int = 0
    step: int = -1
    """Newest step that was told to be committed."""
    recoveries: list[Recovered] = []
    refused: list[str] = []
    """Why processes were not taken in."""


class _Process:
    """A process of this host."""

    def __init__(self, worker: Worker, process: Any, channel: Connection) -> None:
        self.worker, self.process, self.channel = worker, process, channel
        self.pidfd = os.pidfd_open(process.pid)
        self.heard_s = time.monotonic()
        self.ready = self.silent = False

    def kill(self) -> None:
        """Make sure that it does nothing any more."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def is_silent(self, limit_s: float) -> bool:
        """Whether it has said nothing for too long, and not only for want of a processor."""
        quiet_s = time.monotonic() - self.heard_s
        limit_s = limit_s if self.ready else max(_WARM_S, limit_s)
        return quiet_s > limit_s and (quiet_s > _BUSY * limit_s or not _computes(self.process.pid))

    def close(self) -> None:
        self.process.join()
        self.process.close()
        self.channel.close()
        os.close(self.pidfd)


class Agent:
    """The agent of one host.

    Args:
        target: Function that each rank runs, importable from its module; `run_script` for a user's script.
        arguments: Arguments of the function.
        ranks: Number of ranks on all hosts together.
        host: Number of this host; host 0 holds the store and coordinates.
        hosts: Number of hosts, each with an equal share of the ranks.
        spares: Number of processes on this host beyond its ranks.
        address: Address of host 0.
        port: Port of the store; 0 with one host: any that is free.
        folder: Folder for logs of the ranks and for `recoveries.json`; None: ranks write to this process's output.
        elastic: Whether training goes on with fewer ranks until there are spares.
        silence_s: Seconds without a word after which a process is killed, if it does not compute.
        lease_s: Seconds without the store after which a host stops its processes.
        wait_s: Seconds that ranks wait for processes that are missing.
        environment: Further environment variables of the ranks.
        preload: Modules that the forkserver loads before the first process; the sooner a spare is ready.

    Raises:
        InputError: Numbers that do not fit each other.
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
        silence_s: float = 2.0,
        lease_s: float = 5.0,
        wait_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        if not (hosts >= 1 and 0 <= host < hosts and ranks >= hosts and ranks % hosts == 0 and spares >= 0):
            raise InputError(
                f"got {ranks} ranks on {hosts} hosts, host {host} and {spares} spares; expected an equal number of "
                "ranks on each host, at least one, and hosts counted from 0"
            )
        if not (0 < silence_s < float("inf") and 0 < lease_s < float("inf") and 0 < wait_s < float("inf")):
            raise InputError(
                f"got silence_s {silence_s}, lease_s {lease_s} and wait_s {wait_s}; expected seconds above 0"
            )
        if hosts > 1 and not port:
            raise InputError(
                f"got no port for {hosts} hosts; expected one that is free on host 0, the same for all"
            )
        self._target, self._arguments = target, tuple(arguments)
        self._own, self._spares, self._host, self._hosts = ranks // hosts, spares, host, hosts
        self._place = address, port
        self._folder = None if folder is None else make_folder(folder)
        self._silence_s, self._lease_s, self._wait_s = silence_s, lease_s, wait_s
        self._environment = dict(environment or {})
        self._coordinator = Coordinator(ranks, hosts, elastic=elastic) if host == 0 else None
        self._processes: dict[Worker, _Process] = {}
        self._started = self._starting = 0
        self._launching = threading.Lock()
        self._launched: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._wake, self._waker = os.pipe()
        self._roles: dict[Worker, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, "launched")
        self._end: Command | None = None
        self._refused = False
        self._waits_since: float | None = None
        self._held_until = 0.0
        self._late = ""
        self.outcome = Recoveries(world_size=ranks)
        _SERVER.set_forkserver_preload(list(preload))

    def run(self) -> Recoveries:
        """Train to the end.

        Returns:
            What all ranks came to; on other hosts than 0 without its recoveries.

        Raises:
            PeerError: The job has failed: a rank raised an error, too few processes are left, or this host has lost the
                store; the message says which. No process is left in any case.
        """
        address, port = self._place
        # The store is this process's, so it outlives all ranks.
        timeout = timedelta(seconds=self._wait_s)
        try:
            store = TCPStore(address, port, None, self._host == 0, timeout, wait_for_workers=False)
        except RuntimeError as error:
            raise PeerError(
                f"host {self._host} has no store at {address}:{port} within {self._wait_s:g} s; expected the agent of "
                f"host 0 there, and a free port: {str(error).splitlines()[0]}"
            ) from error
        self._place = address, store.port
        _sweep()
        self._memory = make_folder(_SHARED / f"{_NAME}{os.getpid()}-{store.port}-{self._host}")
        # Its input ends with this process, however that ends.
        self._janitor = subprocess.Popen(
            ["sh", "-c", 'read -r _; rm -rf "$1"', "sh", str(self._memory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._bus = Bus(store, self._host, self._hosts, self._lease_s) if self._hosts > 1 else None
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
            assert isinstance(self._end, GiveUp)
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
        ours, theirs = _SERVER.Pipe()
        log = None if self._folder is None else str(self._folder / f"process-{worker[0]}-{worker[1]}.log")
        process = _SERVER.Process(
            target=_enter,
            args=(theirs, self._target, self._arguments, self._environment, log),
            name=f"process-{worker[1]}",
        )
        with self._launching:
            process.start()
            theirs.close()
            ours.send_bytes(_said.encode(control.Welcome(worker, *self._place, str(self._memory))))
            self._launched.put(_Process(worker, process, ours))
            os.write(self._waker, b"x")

    def _take_in(self) -> None:
        """Look after processes that have been started."""
        os.read(self._wake, 4096)
        while not self._launched.empty():
            one = self._launched.get()
            self._starting -= 1
            self._processes[one.worker] = one
            self._selector.register(one.pidfd, selectors.EVENT_READ, one)
            self._selector.register(one.channel, selectors.EVENT_READ, one)

    def _turn(self) -> None:
        self._look()
        self._look_after_spares()

    def _look(self) -> None:
        """Take in what has come, and see who is silent."""
        for key, _ in self._selector.select(_LOOK_S):
            if key.data == "launched":
                self._take_in()
            elif key.data == "bus":
                assert self._bus is not None
                for told in self._bus.take():
                    self._told(told)
            elif key.data.worker in self._processes:
                if key.fileobj == key.data.pidfd:
                    self._bury(key.data)
                else:
                    self._listen(key.data)
        for one in list(self._processes.values()):
            if not one.silent and one.is_silent(self._silence_s):
                # Fenced before it counts as dead; the kernel then tells of its end.
                one.silent = True
                one.kill()

    def _told(self, told: Event | Command) -> None:
        if self._end is not None:
            return
        if isinstance(told, Over | Begin | Refuse | GiveUp | End):
            self._carry_out(told)
        else:
            self._report(told)

    def _listen(self, one: _Process) -> None:
        try:
            while one.channel.poll():
                event = _heard.decode(one.channel.recv_bytes())
                one.heard_s = time.monotonic()
                one.ready = one.ready or isinstance(event, WorkerReady)
                if not isinstance(event, control.Beat):
                    self._report(event)
        except (EOFError, OSError):
            # Its end follows, by the other descriptor.
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one.channel)

    def _bury(self, one: _Process) -> None:
        seen_s = clock_s()
        self._listen(one)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one.channel)
        self._selector.unregister(one.pidfd)
        del self._processes[one.worker]
        one.process.join()
        code = one.process.exitcode
        cause = f"silent for {self._silence_s:g} s" if one.silent else _cause(code)
        one.close()
        if code == 0 and self._end is None and one.worker in self._roles:
            text = "it ended before the training was over; expected the loop over all batches to its end"
            self._report(Raised(one.worker, text))
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
        if isinstance(event, Raised) and self._end is not None and event.worker in self._roles:
            self._too_late(event.worker, f"it raised an error:\n{event.text}")
        if isinstance(event, WorkerLost):
            self._held_until = time.monotonic() + _DECIDE_S
        elif isinstance(event, PhaseReached) and event.phase == "committed":
            self._held_until = 0.0
        if self._coordinator is None:
            assert self._bus is not None
            self._bus.post(event)
            return
        if isinstance(event, PhaseReached):
            self._note(event)
        for command in self._coordinator.heard(event):
            if self._bus is not None:
                self._bus.post(command)
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Refuse):
            self._refuse(command)
            return
        if isinstance(command, Begin):
            self._roles = {worker: rank for rank, worker in command.generation.workers.items()}
            self._begin(command.generation)
            self._held_until = time.monotonic() + _HOLD_S
        if isinstance(command, GiveUp | End):
            self._end = command
        for one in list(self._processes.values()):
            # Spares need not know of others' generations.
            if not isinstance(command, Over | Begin) or one.worker in self._roles:
                self._send(one, command)

    def _refuse(self, command: Refuse) -> None:
        """End a process that may not take part, and start no more like it."""
        if self._coordinator is not None:
            self.outcome.refused.append(command.reason)
        if command.worker in self._processes:
            self._processes[command.worker].kill()
            self._refused = True
            if not self._roles.keys() & self._processes.keys():
                self._end = GiveUp(command.reason)

    def _send(self, one: _Process, command: Command) -> None:
        # One that has just died is told of by the kernel.
        with contextlib.suppress(OSError):
            one.channel.send_bytes(_said.encode(command))

    def _begin(self, generation: Generation) -> None:
        if self._coordinator is None:
            return
        self.outcome.generations = generation.number
        if generation.number > 1:
            self.outcome.recoveries.append(
                Recovered(
                    generation=generation.number,
                    ranks=generation.dead,
                    causes=tuple(generation.notes.values()),
                    seen_s=generation.since_s or clock_s(),
                )
            )

    def _note(self, event: PhaseReached) -> None:
        """Write down how far a recovery is."""
        if event.phase == "committed":
            self.outcome.step = max(self.outcome.step, event.step)
        for one in self.outcome.recoveries:
            if one.generation == event.generation:
                field = f"{event.phase}_s"
                setattr(one, field, max(getattr(one, field), event.at_s))
                one.step = event.step if event.phase == "restored" else one.step
                one.strategy = event.strategy or one.strategy
                one.lost_iterations = max(one.lost_iterations, event.lost)
                one.replayed_iterations = max(one.replayed_iterations, event.computed)
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
        if not self._coordinator.waits:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = time.monotonic()
        elif time.monotonic() - self._waits_since > self._wait_s:
            self._report_give_up()

    def _report_give_up(self) -> None:
        assert self._coordinator is not None
        command = GiveUp(
            f"ranks {self._coordinator.vacant} have had no process for {self._wait_s:g} s; expected "
            f"{self._own + self._spares} on each of {self._hosts} hosts: look at their logs, and start the hosts again"
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
        for one in self._processes.values():
            one.kill()
        for one in self._processes.values():
            one.close()
        self._processes = {}
        self._selector.close()
        self._janitor.communicate()
        os.close(self._wake)
        os.close(self._waker)
        if self._folder is not None and self._coordinator is not None:
            write_json(self._folder / RECOVERIES, self.outcome)


def run_script(path: str, arguments: Sequence[str] = ()) -> None:
    """Run a script as the main program, as `python path arguments` does; target of `Agent` for a user's script."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    runpy.run_path(path, run_name="__main__")


def _enter(
    channel: Connection,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    log: str | None,
) -> None:
    """First act in a new process."""
    _leave_server()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    os.environ.update(environment)
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    code: Any = Path(arguments[0]) if target is run_script else target
    link = control.take_over(channel, code)
    try:
        target(*arguments)
    except SystemExit as end:
        if end.code not in (None, 0):
            link.say(Raised(link.worker, f"exit code {end.code}"))
            raise
    except BaseException:
        text = traceback.format_exc()
        sys.stderr.write(text)
        link.say(Raised(link.worker, text))
        time.sleep(_GRACE_S)
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of torch that still wait must not keep it.
    os._exit(0)


def _leave_server() -> None:
    """Close what keeps the forkserver alive: it ends with the agent, and this process with it, even a stopped one."""
    server = vars(forkserver._forkserver)
    if (alive := server["_forkserver_alive_fd"]) is not None:
        os.close(alive)
        server["_forkserver_alive_fd"] = None


def _sweep() -> None:
    """Remove what agents that were killed left in shared memory."""
    for folder in _SHARED.glob(f"{_NAME}*"):
        pid = folder.name.removeprefix(_NAME).split("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _computes(pid: int) -> bool:
    """Whether a thread of a process runs, or waits for a processor to run on."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if path.read_text().rsplit(")", 1)[1].split()[0] == "R":
                return True
    return False
