"""Generations of the process group and their members: the coordinator's decisions, without processes or sockets.

A generation is one process group's life. The agent that holds the store coordinates: it alone creates generations, so
two halves of a partitioned network never both continue. The other half's agents stop their processes when they have
not reached the store for the length of their lease, and only after that the coordinator counts these processes as
dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from wirewise.runtime.recovery.progress import RankProgress, find_abandoned_ranks, find_hung_ranks

__all__ = [
    "AbortJob",
    "Command",
    "Coordinator",
    "End",
    "Event",
    "Generation",
    "GenerationEnded",
    "HostLost",
    "KillWorker",
    "ProgressReport",
    "RankStalled",
    "RefuseProcess",
    "RequestProgress",
    "StartTimedOut",
    "TrainingFinished",
    "WorkerLost",
    "WorkerReady",
    "WorkerStarted",
]

Worker = tuple[int, int]
"""Process as its host's index and its number on the host."""

_TOGETHER = (
    "expected that all ranks leave it after the same step: decide by training.position, or by a number that an "
    "all-reduce has made equal on all ranks"
)
_MOST_FRUITLESS = 10
"""Generations in a row without a new committed step, after which the training counts as hopeless."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Lifetime of one process group."""

    number: int
    """Number of the generation, counted from 1."""
    world_size: int
    """Ranks of the job, with and without a process."""
    workers: dict[int, Worker]
    """Process of each rank that has one; in the order of these ranks they are the ranks of the group."""
    fresh: tuple[int, ...]
    """Ranks whose process is new and has no state."""
    dead: tuple[int, ...] = ()
    """Ranks whose process was lost since the generation before."""
    since_s: float = 0.0
    """Time in seconds since 1970 at which the first of them was detected."""
    committed_step: int = -1
    """Newest step reported as committed by a rank; -1 for none."""
    notes: dict[int, str] = {}
    """Reasons of losses, by rank."""
    elastic: bool = False
    """Whether a later generation may have fewer processes."""
    local_ranks: dict[int, int] = {}
    """Local rank of each rank, unique on its host: the index of its device."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that have a process."""
        return tuple(sorted(self.workers))


class WorkerStarted(msgspec.Struct, frozen=True, tag=True):
    """A process has started, and has not requested a role yet."""

    worker: Worker


class StartTimedOut(msgspec.Struct, frozen=True, tag=True):
    """A process has not requested a role within its start timeout; it is killed."""

    worker: Worker
    limit_s: float


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """A process waits for a role."""

    worker: Worker
    fingerprint: dict[str, str]
    """Properties that must be the same on all ranks, by name: code, versions, number of threads."""


class WorkerLost(msgspec.Struct, frozen=True, tag=True):
    """A process is dead, as reported by the kernel."""

    worker: Worker
    cause: str
    seen_s: float


class HostLost(msgspec.Struct, frozen=True, tag=True):
    """A host's agent has not renewed its lease: its processes are dead."""

    host: int
    seen_s: float


class TrainingFinished(msgspec.Struct, frozen=True, tag=True):
    """A process has finished training in a generation, or left its loop early."""

    worker: Worker
    generation: int
    step: int = -1
    """Number of its updates; -1 if it does not count them."""
    cause: str = ""
    """Description of the error with which it left its loop."""


class PhaseReached(msgspec.Struct, frozen=True, tag=True):
    """A process has reached a phase of a recovery, or committed its first step after it."""

    worker: Worker
    rank: int
    generation: int
    phase: Literal["noticed", "regrouped", "decided", "restored", "resumed", "committed"]
    at_s: float
    step: int
    strategy: str = ""
    computed: int = 0
    """Number of steps computed from logs."""
    digest: str = ""
    lost: int = 0
    """Number of interrupted steps that are recomputed."""


class RankStalled(msgspec.Struct, frozen=True, tag=True):
    """A rank has waited for others for too long."""

    worker: Worker
    generation: int
    limit_s: float
    """Time limit that was exceeded, in seconds."""
    left: bool = False
    """Whether it has left its loop, so that others may wait for it forever."""


class ProgressReport(msgspec.Struct, frozen=True, tag=True):
    """Progress of a process, in reply to `RequestProgress`."""

    worker: Worker
    inquiry: int
    standing: RankProgress


class ErrorRaised(msgspec.Struct, frozen=True, tag=True):
    """A process ends by its own error, which would recur, so no spare replaces it."""

    worker: Worker
    text: str


Event = (
    RankStalled
    | ProgressReport
    | WorkerStarted
    | StartTimedOut
    | WorkerReady
    | WorkerLost
    | HostLost
    | TrainingFinished
    | PhaseReached
    | ErrorRaised
)


class GenerationEnded(msgspec.Struct, frozen=True, tag=True):
    """A generation has ended: ranks blocked in its group are interrupted."""

    number: int


class BeginGeneration(msgspec.Struct, frozen=True, tag=True):
    """A generation begins."""

    generation: Generation


class RefuseProcess(msgspec.Struct, frozen=True, tag=True):
    """A process is refused."""

    worker: Worker
    reason: str


class RequestProgress(msgspec.Struct, frozen=True, tag=True):
    """Request for the progress of ranks."""

    number: int


class KillWorker(msgspec.Struct, frozen=True, tag=True):
    """Order to kill a process, which counts as dead only then."""

    worker: Worker
    cause: str


class AbortJob(msgspec.Struct, frozen=True, tag=True):
    """The job has failed."""

    reason: str


class End(msgspec.Struct, frozen=True, tag=True):
    """All ranks have finished training."""


Command = RequestProgress | KillWorker | GenerationEnded | BeginGeneration | RefuseProcess | AbortJob | End


class Coordinator:
    """Coordinator of generations: a function of the events so far, whose commands all agents execute.

    Args:
        world_size: Number of ranks.
        hosts: Number of hosts, initially with equally many ranks each.
        elastic: Whether training continues with fewer ranks if there is no spare, and adds ranks when processes
            become ready.

    Attributes:
        generation: Newest generation. None before all ranks have joined.
    """

    def __init__(self, world_size: int, hosts: int = 1, *, elastic: bool = False) -> None:
        self.world_size, self.elastic = world_size, elastic
        self._per_host = world_size // hosts
        self.generation: Generation | None = None
        self._roles: dict[int, Worker] = {}
        self._local_ranks: dict[int, int] = {}
        self._spares: list[Worker] = []
        self._starting: set[Worker] = set()
        self._fingerprint: tuple[Worker, dict[str, str]] | None = None
        self._finished: dict[Worker, TrainingFinished] = {}
        self._refused: set[Worker] = set()
        self._dead: dict[int, str] = {}
        self._since_s = 0.0
        self._inquiry, self._limit_s, self._asks_leaver = 0, 0.0, False
        self._standings: dict[Worker, RankProgress] = {}
        self._over = self._ended = False
        self._step, self._fruitless = -1, 0

    @property
    def vacant(self) -> list[int]:
        """Ranks without a process."""
        return [rank for rank in range(self.world_size) if rank not in self._roles]

    @property
    def waits(self) -> bool:
        """Whether training is paused until more processes are ready."""
        return self.generation is None or (self._over and not self._ended)

    @property
    def has_too_few_processes(self) -> bool:
        """Whether training is paused, and too few processes are starting to resume it."""
        if self.generation is None:
            coming = [worker[0] for worker in (*self._starting, *self._spares)]
            return any(
                coming.count(host) < self._per_host for host in range(self.world_size // self._per_host)
            )
        return self.waits and len(self._starting) < len(self.vacant)

    @property
    def spares(self) -> int:
        """Number of processes that wait for a role."""
        return len(self._spares)

    def on_event(self, event: Event) -> list[Command]:
        """Handle an event, and return the resulting commands."""
        if self._ended:
            return []
        commands = list(self._heard(event))
        self._ended = any(isinstance(command, AbortJob | End) for command in commands)
        return commands

    def _heard(self, event: Event) -> Iterator[Command]:
        if isinstance(event, WorkerStarted):
            self._starting.add(event.worker)
        elif isinstance(event, StartTimedOut):
            yield from self._end_late_start(event)
        elif isinstance(event, RankStalled):
            yield from self._inquire(event)
        elif isinstance(event, ProgressReport):
            yield from self._compare(event)
        elif isinstance(event, WorkerReady):
            yield from self._welcome(event)
        elif isinstance(event, WorkerLost):
            yield from self._lose({event.worker: event.cause}, event.seen_s)
        elif isinstance(event, HostLost):
            known = (*self._roles.values(), *self._spares, *self._starting)
            gone = [worker for worker in known if worker[0] == event.host]
            yield from self._lose(dict.fromkeys(gone, f"host {event.host} is lost"), event.seen_s)
        elif isinstance(event, TrainingFinished):
            yield from self._finish(event)
        elif isinstance(event, PhaseReached):
            if event.step > self._step:
                self._step, self._fruitless = event.step, 0
        elif event.worker not in self._refused:
            yield AbortJob(f"{self._name(event.worker)} raised an error:\n{event.text}")

    def _name(self, worker: Worker) -> str:
        rank = next((rank for rank, one in self._roles.items() if one == worker), None)
        return f"process {worker[1]} of host {worker[0]}" if rank is None else f"rank {rank}"

    def _end_late_start(self, event: StartTimedOut) -> Iterator[Command]:
        self._starting.discard(event.worker)
        if self.waits:
            yield AbortJob(
                f"{self._name(event.worker)} has not called `protect` within {event.limit_s:g} s, though it lives; "
                "look at its log, or give it more time: --start-timeout, start_timeout_s of the agent"
            )

    def _inquire(self, event: RankStalled) -> Iterator[Command]:
        """Ask all ranks how far they have come."""
        if self._over or self.generation is None or event.generation != self.generation.number:
            return
        self._inquiry, self._limit_s, self._standings = self._inquiry + 1, event.limit_s, {}
        self._asks_leaver = event.left
        yield RequestProgress(self._inquiry)

    def _compare(self, event: ProgressReport) -> Iterator[Command]:
        """Once all have answered, have those killed for whom others wait, and who wait for nobody."""
        if event.inquiry != self._inquiry:
            return
        self._standings[event.worker] = event.standing
        if self._over or not self._standings.keys() >= set(self._roles.values()):
            return
        self._inquiry += 1
        standings = {rank: self._standings[worker] for rank, worker in self._roles.items()}
        if self._asks_leaver:
            left = {rank: self._finished[w] for rank, w in self._roles.items() if w in self._finished}
            if waiting := find_abandoned_ranks(standings, left, self._limit_s):
                yield AbortJob(f"{_describe_steps(left)}, and {waiting} went on; {_TOGETHER}")
            return
        for rank, cause in find_hung_ranks(standings, self._limit_s).items():
            yield KillWorker(self._roles[rank], cause)

    def _welcome(self, event: WorkerReady) -> Iterator[Command]:
        self._starting.discard(event.worker)
        if self._fingerprint is None:
            self._fingerprint = event.worker, event.fingerprint
        first, expected = self._fingerprint
        if told := _differences(event.fingerprint, expected):
            self._refused.add(event.worker)
            yield RefuseProcess(
                event.worker,
                f"host {event.worker[0]} has {told} on host {first[0]}, with which training began; results would "
                "differ: start it with the same code, versions and number of threads",
            )
            return
        self._spares.append(event.worker)
        yield from self._fill()

    def _lose(self, workers: Mapping[Worker, str], seen_s: float) -> Iterator[Command]:
        self._spares = [spare for spare in self._spares if spare not in workers]
        self._starting -= workers.keys()
        gone = {rank: worker for rank, worker in self._roles.items() if worker in workers}
        if not gone:
            return
        for rank, worker in gone.items():
            del self._roles[rank]
            self._dead[rank] = workers[worker]
        self._since_s = self._since_s or seen_s
        if not self._over:
            self._over = True
            assert self.generation is not None
            yield GenerationEnded(self.generation.number)
        yield from self._fill()

    def _fill(self) -> Iterator[Command]:
        """Give roles to spares, and begin a generation where that is possible and useful."""
        if self.generation is None:
            yield from self._begin_first()
            return
        before = len(self._roles)
        for rank in self.vacant:
            home = rank // self._per_host
            near = sorted(self._spares, key=lambda spare: (spare[0] != home, spare))
            if near and (self._over or self.elastic):
                self._roles[rank] = near[0]
                self._spares.remove(near[0])
        grown = len(self._roles) > before
        if self._over and (not self.vacant or (self.elastic and self._roles)):
            yield from self._begin()
        elif grown and not self._over:
            yield GenerationEnded(self.generation.number)
            yield from self._begin()

    def _begin_first(self) -> Iterator[Command]:
        waiting = sorted(self._spares)
        for host in range(self.world_size // self._per_host):
            own = [spare for spare in waiting if spare[0] == host][: self._per_host]
            if len(own) < self._per_host:
                self._roles = {}
                return
            self._roles |= {host * self._per_host + place: worker for place, worker in enumerate(own)}
        self._spares = [spare for spare in waiting if spare not in self._roles.values()]
        yield from self._begin()

    def _begin(self) -> Iterator[Command]:
        before = self.generation
        self._fruitless += 1
        if self._fruitless > _MOST_FRUITLESS:
            yield AbortJob(
                f"{_MOST_FRUITLESS} generations in a row committed no step after {max(self._step, 0)}; ranks "
                f"{sorted(self._dead)} were lost last: look at their logs"
            )
            return
        old = {} if before is None else before.workers
        self.generation = Generation(
            number=1 if before is None else before.number + 1,
            world_size=self.world_size,
            workers=dict(sorted(self._roles.items())),
            fresh=tuple(rank for rank, worker in sorted(self._roles.items()) if old.get(rank) != worker),
            dead=tuple(sorted(self._dead)),
            since_s=self._since_s,
            committed_step=self._step,
            notes=dict(sorted(self._dead.items())),
            elastic=self.elastic,
            local_ranks=self._number_locally(old),
        )
        self._over, self._dead, self._since_s = False, {}, 0.0
        self._finished = {}
        yield BeginGeneration(self.generation)

    def _number_locally(self, old: Mapping[int, Worker]) -> dict[int, int]:
        """Number ranks on their hosts: who keeps its process keeps its number, others take the lowest free one."""
        kept = {
            rank: self._local_ranks[rank] for rank, worker in self._roles.items() if old.get(rank) == worker
        }
        for rank, (host, _) in sorted(self._roles.items()):
            if rank not in kept:
                taken = {number for other, number in kept.items() if self._roles[other][0] == host}
                kept[rank] = next(number for number in range(len(taken) + 1) if number not in taken)
        self._local_ranks = kept
        return dict(sorted(kept.items()))

    def _finish(self, event: TrainingFinished) -> Iterator[Command]:
        if self._over or self.generation is None or event.generation != self.generation.number:
            return
        self._finished[event.worker] = event
        if not self._finished.keys() >= set(self._roles.values()):
            return
        ends = {rank: self._finished[worker] for rank, worker in self._roles.items()}
        apart = len({end.step for end in ends.values()}) > 1
        yield AbortJob(f"{_describe_steps(ends)}; {_TOGETHER}") if apart else End()


def _describe_steps(left: Mapping[int, TrainingFinished]) -> str:
    """Ranks that have left their loops, after how many steps and for which error, in words."""
    return ", ".join(
        f"rank {rank} left its loop after step {end.step}{f' for an error, {end.cause}' if end.cause else ''}"
        for rank, end in sorted(left.items())
    )


def _differences(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Differences, for a message; "" if there are none."""
    return ", ".join(
        f"{name} {found.get(name)!r} instead of {expected.get(name)!r}"
        for name in {**expected, **found}
        if found.get(name) != expected.get(name)
    )
