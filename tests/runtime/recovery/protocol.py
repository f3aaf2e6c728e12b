"""The recovery protocol as an explicit state machine, all of whose states can be visited.

Ranks train data-parallel: they contribute to the reduction of each bucket, receive it, update, commit. Any process may
die between any two of these, also during a recovery: RUN -> FAULT (told) -> SYNC (record given) -> ACT (keep, finish,
restore, copy) -> DONE -> RUN. What the ranks do is decided by `decide`, on records of what they hold at that moment.

A bucket's value is the history of its updates, each by the set of ranks whose gradients went into it, so that a step
that was computed twice by different ranks would show.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from wirewise.runtime.recovery.decision import NOTHING, RankRecord, RecoveryDecision, decide

History = tuple[int, ...]


class Process(NamedTuple):
    """One rank's process."""

    generation: int
    phase: str
    """"run", "sync", "act" or "done"."""
    committed: int
    values: tuple[History, ...]
    """Updates so far of each bucket."""
    reduced: tuple[int, ...]
    """Ranks in the reduced gradient of each bucket, as a bit mask; 0: not received."""
    entered: int = 0
    """Buckets of this step that it has contributed to."""


class World(NamedTuple):
    """All there is."""

    generation: int
    members: tuple[int, ...]
    """Ranks of the generation."""
    processes: tuple[Process | None, ...]
    """Process of each rank; none: it has none."""
    contributed: tuple[int, ...]
    """Buckets of each rank in all steps that it has contributed to in this generation; they travel though it dies."""
    records: tuple[RankRecord | None, ...]
    """Record that each rank gave in this generation."""
    done: tuple[bool, ...]
    """Whether each rank has arrived at the end of the recovery."""
    published: History
    """Steps that all ranks have committed."""
    spares: int
    faults: int


class Job(NamedTuple):
    """What is checked."""

    ranks: int = 3
    spares: int = 1
    faults: int = 2
    steps: int = 2
    buckets: int = 2
    in_backward: bool = False
    """Each bucket is updated as soon as it is reduced; else all are updated after the last one is reduced."""
    can_restore: bool = True
    in_place: bool = False
    """A rank that lags overwrites its state while it copies, instead of keeping it until the copy is whole."""
    digests: bool = True

    def first(self) -> World:
        """All ranks at the first step."""
        everyone = tuple(range(self.ranks))
        empty = Process(0, "run", 0, ((),) * self.buckets, (0,) * self.buckets)
        return World(
            0,
            everyone,
            (empty,) * self.ranks,
            (0,) * self.ranks,
            (None,) * self.ranks,
            (True,) * self.ranks,
            (),
            self.spares,
            self.faults,
        )

    def over(self, world: World) -> bool:
        """Whether all living ranks have trained to the end."""
        living = [p for p in world.processes if p is not None]
        return all(p.phase == "run" and p.committed == self.steps for p in living) and all(
            world.processes[rank] is not None for rank in world.members
        )

    def deaths(self, world: World) -> Iterator[World]:
        """Every process may die at any time."""
        for rank, process in enumerate(world.processes):
            if process is not None and world.faults and sum(p is not None for p in world.processes) > 1:
                yield put(world, rank, None)._replace(faults=world.faults - 1)

    def moves(self, world: World) -> Iterator[World]:
        """What may happen next without a fault."""
        if any(world.processes[rank] is None for rank in world.members):
            yield self.regroup(world)
        for rank, process in enumerate(world.processes):
            if process is None:
                continue
            if process.generation < world.generation:
                yield self.sync(world, rank, process)
            if process.phase == "run":
                yield from self.train(world, rank, process)
            elif process.generation == world.generation:
                yield from self.recover(world, rank, process)

    def regroup(self, world: World) -> World:
        """The agent sees deaths: another generation, spares in the roles of the dead."""
        dead = [rank for rank in range(self.ranks) if world.processes[rank] is None]
        taken = dead[: world.spares]
        fresh = Process(world.generation, "fault", NOTHING, ((),) * self.buckets, (0,) * self.buckets)
        processes = tuple(fresh if rank in taken else p for rank, p in enumerate(world.processes))
        return world._replace(
            generation=world.generation + 1,
            members=tuple(rank for rank, p in enumerate(processes) if p is not None),
            processes=processes,
            contributed=(0,) * self.ranks,
            records=(None,) * self.ranks,
            done=(False,) * self.ranks,
            spares=world.spares - len(taken),
        )

    def train(self, world: World, rank: int, p: Process) -> Iterator[World]:
        """One act of a step."""
        if p.committed == self.steps:
            return
        lengths = [len(value) for value in p.values]
        at = p.committed * self.buckets
        old = p.generation < world.generation
        for bucket in range(self.buckets):
            updated = lengths[bucket] > p.committed
            before = all(
                lengths[b] > p.committed if self.in_backward else p.entered > b for b in range(bucket)
            )
            if p.entered == bucket and before and not old:
                count = tuple(at + bucket + 1 if r == rank else c for r, c in enumerate(world.contributed))
                yield put(world, rank, p._replace(entered=bucket + 1))._replace(contributed=count)
            everyone = all(world.contributed[r] > at + bucket for r in world.members)
            # What all have contributed to may still arrive after one of them died.
            if p.entered > bucket and not p.reduced[bucket] and everyone and not old:
                mask = sum(1 << r for r in world.members)
                yield put(world, rank, p._replace(reduced=changed(p.reduced, bucket, mask)))
            ready = p.reduced[bucket] if self.in_backward else all(p.reduced)
            if not updated and ready and all(length > p.committed for length in lengths[:bucket]):
                yield put(world, rank, update(p, bucket))
        if min(lengths) > p.committed:
            yield publish(put(world, rank, commit(p)))

    def record(self, rank: int, p: Process) -> RankRecord:
        """What a process tells."""
        if p.committed == NOTHING:
            return RankRecord(rank=rank)
        versions = tuple(len(value) for value in p.values)
        whole = self.digests and max(versions) == p.committed
        return RankRecord(
            rank=rank,
            committed_step=p.committed,
            versions=versions,
            reduced=tuple(mask > 0 for mask in p.reduced),
            can_restore=self.can_restore,
            digest=str(p.values) if whole else "",
        )

    def sync(self, world: World, rank: int, p: Process) -> World:
        """A process that was told leaves what it was doing, joins the generation and gives its record."""
        record = self.record(rank, p)
        joined = put(world, rank, p._replace(generation=world.generation, phase="sync", entered=0))
        return joined._replace(records=changed(world.records, rank, record))

    def recover(self, world: World, rank: int, p: Process) -> Iterator[World]:
        """One act of a recovery."""
        if p.phase == "done":
            if all(world.done[r] for r in world.members):
                # What was reduced belongs to the step that was interrupted.
                yield put(world, rank, p._replace(phase="run", reduced=(0,) * self.buckets, entered=0))
            return
        if any(world.records[r] is None for r in world.members):
            return
        decision = plan(tuple(world.records[r] for r in world.members))  # type: ignore[misc]
        if p.phase == "sync":
            yield put(world, rank, p._replace(phase="act"))
            return
        action = decision.of(rank)
        if (
            p.committed == decision.step
            and len({len(v) for v in p.values}) == 1
            and len(p.values[0]) == decision.step
        ):
            arrived = put(world, rank, p._replace(phase="done"))
            yield arrived._replace(done=changed(world.done, rank, True))
        elif action.kind == "finish":
            late = [b for b, value in enumerate(p.values) if len(value) == p.committed]
            yield put(world, rank, update(p, late[0]) if late else commit(p))
        elif action.kind == "restore":
            new = [b for b, value in enumerate(p.values) if len(value) > decision.step]
            if new:
                # The committed word goes first: what is torn must not look whole.
                value = p.values[new[0]][: decision.step]
                torn = p._replace(committed=decision.step, values=changed(p.values, new[0], value))
                yield put(world, rank, torn)
        elif self.in_place and p.committed != NOTHING:
            yield put(world, rank, p._replace(committed=NOTHING, values=((),) * self.buckets))
        else:
            for source in action.sources:
                given = world.processes[source]
                if given is not None and given.generation == world.generation and given.phase == "done":
                    copied = p._replace(committed=given.committed, values=given.values)
                    yield put(world, rank, copied)

    def check(self, world: World) -> None:
        """No two ranks have committed a step differently, and no step that all committed is lost or done again."""
        for p in world.processes:
            if p is not None and p.committed != NOTHING:
                whole = {value[: p.committed] for value in p.values}
                assert len(whole) == 1, f"buckets of one rank differ: {world}"
                (history,) = whole
                shared = min(len(history), len(world.published))
                assert history[:shared] == world.published[:shared], f"divergent commit: {world}"
        resumed = any(p and p.generation == world.generation and p.phase == "run" for p in world.processes)
        if not resumed and all(world.records[r] is not None for r in world.members):
            step = plan(tuple(world.records[r] for r in world.members)).step  # type: ignore[misc]
            assert step >= len(world.published), f"a committed step is lost: {world}"


def changed(values: tuple, place: int, value: object) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


def put(world: World, rank: int, process: Process | None) -> World:
    return world._replace(processes=changed(world.processes, rank, process))


def update(p: Process, bucket: int) -> Process:
    return p._replace(values=changed(p.values, bucket, (*p.values[bucket], p.reduced[bucket])))


def commit(p: Process) -> Process:
    return p._replace(committed=p.committed + 1, reduced=(0,) * len(p.reduced), entered=0)


def publish(world: World) -> World:
    """The steps that all ranks of the generation have committed, with how they were computed."""
    held = [world.processes[rank] for rank in world.members]
    if any(p is None or p.generation != world.generation for p in held):
        return world
    least = min(held, key=lambda p: p.committed)  # type: ignore[union-attr]
    assert least is not None
    if least.committed <= len(world.published):
        return world
    return world._replace(published=least.values[0][: least.committed])


@cache
def plan(records: tuple[RankRecord, ...]) -> RecoveryDecision:
    """The decision on records, which does not depend on their order."""
    decision = decide(records)
    assert decide(reversed(records)) == decision == decide(records[1:] + records[:1])
    return decision


def explore(job: Any) -> int:
    """Visit every state that can be reached; their number.

    Raises:
        AssertionError: A state breaks a law, or nothing can happen in it and training is not over.
    """
    first = job.first()
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        job.check(world)
        moves = list(job.moves(world))
        assert moves or job.over(world), f"deadlock: {world}"
        for after in (*moves, *job.deaths(world)):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen)
