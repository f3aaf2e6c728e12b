"""The recovery of a pipeline without replicas as an explicit state machine: one rank a stage, logs at the senders.

A stage receives activations, sends its own, receives gradients, sends its own, updates and commits; its log counts up
to the step that it has committed, and outlives it. A checkpoint of step 0 is durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tests.runtime.recovery.protocol import changed
from wirewise.runtime.recovery.decision import NOTHING, RankRecord, RecoveryDecision, decide


class Stage(NamedTuple):
    """The process of one stage."""

    generation: int
    phase: str
    committed: int
    version: int
    """Step of the parameters."""
    passed: int = 0
    """0: nothing of this step; 1: forward done; 2: backward done."""


class World(NamedTuple):
    """All there is."""

    generation: int
    stages: tuple[Stage | None, ...]
    forward: tuple[int, ...]
    """Steps whose activations each stage has sent."""
    backward: tuple[int, ...]
    logged: tuple[int, ...]
    """Steps of each stage's log that count."""
    records: tuple[RankRecord | None, ...]
    logged_then: tuple[int, ...]
    """Steps of each stage's log that counted when the records were given."""
    done: tuple[bool, ...]
    published: int
    faults: int


class Job(NamedTuple):
    """What is checked; there are as many spares as faults."""

    stages: int = 3
    faults: int = 2
    steps: int = 2
    can_restore: bool = True

    def first(self) -> World:
        zeros = (0,) * self.stages
        new = (Stage(0, "run", 0, 0),) * self.stages
        return World(
            0,
            new,
            zeros,
            zeros,
            zeros,
            (None,) * self.stages,
            zeros,
            (True,) * self.stages,
            0,
            self.faults,
        )

    def over(self, world: World) -> bool:
        return all(p and p.phase == "run" and p.committed == self.steps for p in world.stages)

    def deaths(self, world: World) -> Iterator[World]:
        for number, p in enumerate(world.stages):
            if p is not None and world.faults:
                yield put(world, number, None)._replace(faults=world.faults - 1)

    def moves(self, world: World) -> Iterator[World]:
        if None in world.stages:
            yield self.regroup(world)
        for number, p in enumerate(world.stages):
            if p is None:
                continue
            if p.generation < world.generation:
                yield self.sync(world, number, p)
            if p.phase == "run":
                yield from self.train(world, number, p)
            elif p.generation == world.generation:
                yield from self.recover(world, number, p)

    def regroup(self, world: World) -> World:
        fresh = Stage(world.generation, "fault", NOTHING, NOTHING)
        return world._replace(
            generation=world.generation + 1,
            stages=tuple(fresh if p is None else p for p in world.stages),
            records=(None,) * self.stages,
            done=(False,) * self.stages,
        )

    def train(self, world: World, number: int, p: Stage) -> Iterator[World]:
        if p.committed == self.steps:
            return
        step, old = p.committed, p.generation < world.generation
        if p.version > step:
            whole = put(world, number, p._replace(committed=step + 1, passed=0))
            yield self.publish(whole._replace(logged=changed(world.logged, number, step + 1)))
        elif p.passed == 2:
            yield put(world, number, p._replace(version=step + 1))
        elif p.passed == 0 and (number == 0 or world.forward[number - 1] > step) and not old:
            sent = changed(world.forward, number, step + 1)
            yield put(world, number, p._replace(passed=1))._replace(forward=sent)
        elif p.passed == 1 and (number == self.stages - 1 or world.backward[number + 1] > step) and not old:
            sent = changed(world.backward, number, step + 1)
            yield put(world, number, p._replace(passed=2))._replace(backward=sent)

    def publish(self, world: World) -> World:
        held = [p.committed if p and p.generation == world.generation else NOTHING for p in world.stages]
        return world._replace(published=max(world.published, *(min(held),), 0))

    def sync(self, world: World, number: int, p: Stage) -> World:
        record = RankRecord(rank=number, stage=number)
        if p.committed != NOTHING:
            record = RankRecord(
                rank=number,
                stage=number,
                committed_step=p.committed,
                versions=(p.version,),
                reduced=(p.passed == 2,),
                can_restore=self.can_restore,
            )
        joined = put(world, number, p._replace(generation=world.generation, phase="sync"))
        given = changed(world.records, number, record)
        return joined._replace(records=given, logged_then=world.logged)

    def decision(self, world: World) -> RecoveryDecision:
        return plan(tuple(record for record in world.records if record is not None), world.logged_then)

    def recover(self, world: World, number: int, p: Stage) -> Iterator[World]:
        if p.phase == "done":
            if all(world.done):
                again = put(world, number, p._replace(phase="run", passed=0))
                sent = (p.committed,) * self.stages
                yield again if self.resumed(world) else again._replace(forward=sent, backward=sent)
            return
        if None in world.records:
            return
        decision = self.decision(world)
        action = decision.of(number)
        unit = next((u for u in decision.units if number in u), ())
        if p.committed == p.version == decision.step:
            arrived = put(world, number, p._replace(phase="done"))
            yield arrived._replace(done=changed(world.done, number, True))
        elif action.kind == "finish":
            late = p.version == p.committed
            whole = p._replace(version=p.version + late, committed=p.committed + (not late))
            logged = world.logged if late else changed(world.logged, number, whole.committed)
            yield put(world, number, whole)._replace(logged=logged)
        elif action.kind == "restore":
            yield put(world, number, p._replace(version=decision.step, committed=decision.step))
        elif all(
            other is not None and other.generation == world.generation
            for other in (world.stages[n] for n in unit)
        ):
            assert action.kind == "recompute", f"{action}: {world}"
            whole = put(world, number, p._replace(version=decision.step, committed=decision.step))
            yield whole._replace(
                logged=changed(world.logged, number, max(decision.step, world.logged[number]))
            )

    def resumed(self, world: World) -> bool:
        return any(p and p.generation == world.generation and p.phase == "run" for p in world.stages)

    def check(self, world: World) -> None:
        """No step that all committed is lost, and no decision needs a checkpoint of all stages."""
        if world.generation and not self.resumed(world) and None not in world.records:
            decision = self.decision(world)
            assert decision.step >= world.published, f"a committed step is lost: {world}"
            assert decision.strategy != "checkpoint", f"logs were not enough: {world}"


def put(world: World, number: int, stage: Stage | None) -> World:
    return world._replace(stages=changed(world.stages, number, stage))


@cache
def plan(records: tuple[RankRecord, ...], logged: tuple[int, ...]) -> RecoveryDecision:
    """The decision on records and on the steps that each stage has logged."""
    stages = range(len(records))
    edges = [(source, target) for source in stages for target in (source - 1, source + 1) if target in stages]
    logs = {(source, target): (0, logged[source]) for source, target in edges}
    checkpoints = dict.fromkeys(stages, (0,))
    decision = decide(records, checkpoints=checkpoints, logs=logs)
    assert decide(records[::-1], checkpoints=checkpoints, logs=logs) == decision
    return decision
