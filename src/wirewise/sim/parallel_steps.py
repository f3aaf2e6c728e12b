"""Training step under a parallel plan: operators of each stage in sequence, overlapped with moves.

A move starts when its tensor is ready, moves of a stage run in sequence, and an operator waits for the moves that it
depends on. Stages of a pipeline then follow a 1F1B timetable.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np

from wirewise.cost.links import Links
from wirewise.cost.stages import StageCosts
from wirewise.plans.parallel import Move, ParallelPlan, joint_step
from wirewise.plans.stages import StagePlan
from wirewise.sim.mesh_costs import MeshCosts
from wirewise.sim.pipelines import PipelineSimulation, simulate_pipeline
from wirewise.trace.operator_graph import OperatorGraph

__all__ = ["ParallelStep", "StageSpan", "StepSimulator", "in_flight_of"]


_HELD = ("parameter", "buffer", "input", "constant")
"""Nodes that exist before a pass: they move when they are taken."""


@dataclass(frozen=True)
class StageSpan:
    """Activity of a stage over a span of time."""

    stage: int
    phase: str
    label: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class ParallelStep:
    """A simulated step."""

    seconds: float
    spans: list[StageSpan]
    """Spans of a single stage; empty if there are several."""
    pipeline: PipelineSimulation | None = None


def in_flight_of(stage: int, stages: int, microbatches: int) -> int:
    """Number of microbatches whose activations a stage keeps at once."""
    return min(stages - stage, microbatches)


@dataclass
class _Clock:
    """Seconds at which a stage's operators and its network are free."""

    compute_s: float = 0.0
    network_s: float = 0.0
    spans: list[StageSpan] = field(default_factory=list)


class StepSimulator:
    """Simulator of a step under a plan.

    Args:
        plan: Stages, placements and moves.
        graph: Training step of the plan.
        links: Links between its ranks.
    """

    def __init__(self, plan: ParallelPlan, graph: OperatorGraph, links: Links) -> None:
        self.plan, self.graph, self.links = plan, graph, links
        self.costs = MeshCosts(links, plan.ranks, plan.mesh)
        self._again = frozenset(plan.recompute)

    @cached_property
    def _moves(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Moves of each producer, and moves that each node waits for."""
        starts, waits = defaultdict(list), defaultdict(list)
        for number, move in enumerate(self.plan.moves):
            starts[move.producer].append(number)
            for consumer in move.consumers:
                waits[consumer].append(number)
        return starts, waits

    @cached_property
    def seconds_of(self) -> list[float]:
        """Compute time of each node on a rank, for one microbatch, in seconds."""
        taken = {
            (move.producer, consumer): move.target for move in self.plan.moves for consumer in move.consumers
        }
        found = []
        for number, node in enumerate(self.graph.nodes):
            inputs = [taken.get((i, number), self.plan.placements[i]) for i in node.inputs]
            words = [self.plan.placements[number], *inputs]
            share = prod(
                1.0 / size if any("S" in word[axis] for word in words) else 1.0
                for axis, size in enumerate(self.plan.mesh)
            )
            found.append(node.seconds(share / self.plan.microbatches) if node.computes else 0.0)
        return found

    @cached_property
    def _move_s(self) -> list[float]:
        """Seconds of each move within the mesh of its consumers."""
        return [
            sum(self.costs.seconds(step) for step in move.steps if step.kind != "send")
            for move in self.plan.moves
        ]

    @cached_property
    def _bucket_of(self) -> dict[int, tuple[int, ...]]:
        return {number: own for own in self.plan.buckets for number in own}

    @cached_property
    def _bucket_s(self) -> dict[tuple[int, ...], float]:
        """Seconds of the one message of each bucket."""
        return {
            own: self.costs.seconds(joint_step([self.plan.moves[n].steps[0] for n in own]))
            for own in self.plan.buckets
        }

    def _pass(
        self,
        clock: _Clock,
        stage: int,
        phase: Literal["forward", "backward"],
        *,
        brought: set[int],
        last: bool,
    ) -> None:
        """Advance a stage's clock by a pass of a microbatch; `brought`: what moved once for the step already."""
        plan, nodes = self.plan, self.graph.nodes
        starts, waits = self._moves
        ready: dict[int, float] = {}
        left = {own: len(own) for own in plan.buckets}
        again_s = sum(self.seconds_of[n] for n in self._again if plan.stage_of[n] == stage)
        if phase == "backward" and again_s > 0:
            self._compute(clock, stage, "recompute", again_s)

        def start(number: int, at_s: float) -> None:
            if number in ready:
                return
            move, done, moves_s = plan.moves[number], at_s, self._move_s[number]
            own = self._bucket_of.get(number)
            if own is not None:
                left[own] -= 1
                moves_s = 0.0 if left[own] else self._bucket_s[own]
            if not move.once or (number not in brought if nodes[move.producer].op in _HELD else last):
                done = self._network(clock, stage, move, moves_s, at_s)
                brought.add(number)
            ready[number] = done

        for number, node in enumerate(nodes):
            # What ends at the output started where it was made, whatever pass the output counts to.
            if plan.stage_of[number] != stage or node.phase != phase or node.op == "output":
                continue
            for move in waits[number]:
                if move not in ready:
                    start(move, clock.compute_s)
                clock.compute_s = max(clock.compute_s, ready[move])
            inner = sum(map(self.costs.seconds, plan.inner.get(number, ())))
            if self.seconds_of[number]:
                self._compute(clock, stage, phase, self.seconds_of[number])
            if inner:
                clock.compute_s = self._network(clock, stage, None, inner, clock.compute_s)
            for move in starts[number]:
                stage_of_user = plan.stage_of[plan.moves[move].consumers[0]]
                if node.op not in _HELD and stage_of_user == stage:
                    start(move, clock.compute_s)

    def _compute(self, clock: _Clock, stage: int, phase: str, seconds: float) -> None:
        start = clock.compute_s
        clock.compute_s += seconds
        before = clock.spans[-1] if clock.spans else None
        if before is not None and before.phase == phase and before.end_s == start:
            clock.spans[-1] = StageSpan(stage, phase, before.label, before.start_s, clock.compute_s)
        else:
            clock.spans.append(StageSpan(stage, phase, "", start, clock.compute_s))

    def _network(self, clock: _Clock, stage: int, move: Move | None, seconds: float, at_s: float) -> float:
        if seconds <= 0:
            return at_s
        start = max(at_s, clock.network_s)
        clock.network_s = start + seconds
        label = "inside" if move is None else self.graph.nodes[move.producer].name
        clock.spans.append(StageSpan(stage, "communication", label, start, clock.network_s))
        return clock.network_s

    def step(self) -> ParallelStep:
        """Simulate a whole step."""
        if self.plan.stages > 1:
            run = self._pipeline()
            return ParallelStep(float(run.end_s.max(initial=0.0)), [], run)
        clock, count = _Clock(), self.plan.microbatches
        brought = set[int]()
        for microbatch in range(count):
            for phase in ("forward", "backward"):
                self._pass(clock, 0, phase, brought=brought, last=microbatch == count - 1)
        return ParallelStep(max(clock.compute_s, clock.network_s), clock.spans)

    def _pass_s(self, stage: int, phase: Literal["forward", "backward"]) -> float:
        clock = _Clock()
        self._pass(clock, stage, phase, brought=set(range(len(self.plan.moves))), last=False)
        return max(clock.compute_s, clock.network_s)

    def _pipeline(self) -> PipelineSimulation:
        """Stages under a 1F1B timetable; gradients are exchanged at the end of each stage's step."""
        plan, stages = self.plan, self.plan.stages
        once = np.zeros(stages)
        sent: dict[tuple[int, int], float] = defaultdict(float)
        size: dict[tuple[int, int], float] = defaultdict(float)
        nodes, gradients = self.graph.nodes, self.graph.gradients
        # A gradient ends at the stage of its parameter, whatever the stage of the output node.
        ends = {
            gradients[one.source]: n
            for n, one in enumerate(nodes)
            if one.op == "parameter" and one.source in gradients
        }
        for number, move in enumerate(plan.moves):
            taker = move.consumers[0]
            if taker == len(nodes) - 1:
                taker = ends.get(move.producer, move.producer)
            stage = plan.stage_of[taker]
            if move.once:
                once[plan.stage_of[move.producer]] += self._move_s[number]
            pair = (plan.stage_of[move.producer], stage)
            for step in move.steps:
                if step.kind == "send" and step.sent_bytes and pair[0] != pair[1]:
                    sent[pair] += self.costs.seconds(step)
                    size[pair] += step.sent_bytes
        edges = sorted({(min(pair), max(pair)) for pair in sent} | {(s, s + 1) for s in range(stages - 1)})
        shape = StagePlan.from_cuts(
            [f"stage {s}" for s in range(stages)],
            list(range(1, stages)),
            style="1f1b",
            microbatches=plan.microbatches,
            width=prod(plan.mesh),
            edges=edges,
        )
        forward, backward = (
            np.array([self._pass_s(s, phase) for s in range(stages)]) for phase in ("forward", "backward")
        )
        zeros = np.zeros(stages)
        costs = StageCosts(
            forward_s=forward,
            backward_s=backward,
            weight_s=zeros,
            optimizer_s=once,
            edge_bytes={edge: size.get(edge, 0.0) for edge in edges},
            input_bytes=zeros,
            saved_bytes=zeros,
            parameter_bytes=zeros,
            state_factor=0.0,
        )
        return simulate_pipeline(
            shape, costs, self.links, edge_s=lambda source, target, _: sent.get((source, target), 0.0)
        )
