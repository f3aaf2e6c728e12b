"""Closed-form time and memory of an update, for a partition of the model and a timetable style.

The period of a position is bounded below by its own passes, its link, the interfaces of its host, and the round trip
of a microbatch: the passes of later stages and two messages per boundary, divided by the number of microbatches in
flight. Without flushes the slowest of these determines the pace. With flushes the pipeline also fills and drains once
per update. `messages="blocking"` counts as PipeDream-2BW's closed form does: messages keep a position as busy as
passes do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from wirewise.cost.stages import StageCosts
from wirewise.planners.pipeline.problem import PipelineProblem
from wirewise.planners.pipeline.sums import Ints, Vector

__all__ = [
    "Messages",
    "PipelineCandidate",
    "PipelineShape",
    "StageSums",
    "depths_of",
    "evaluate",
    "kept_bytes",
    "stage_sums",
    "sums_of",
]

Messages = Literal["async", "blocking"]
"""Whether messages overlap with passes."""

SPLIT = ("eager-split", "zero-bubble")
"""Styles that compute weight gradients separately from input gradients."""


class PipelineShape(NamedTuple):
    """Numbers chosen by a planner: stages, replicas, microbatches."""

    positions: int
    """Number of positions in sequence (d)."""
    replicas: int
    """Data-parallel replicas of the pipeline (w)."""
    width: int
    """Ranks that share a stage's tensors."""
    microbatch_size: int
    """Samples of a microbatch (b)."""
    microbatches: int
    """Microbatches per update and replica (m)."""
    recompute: bool
    """Whether forward passes are recomputed (r)."""


class StageSums(NamedTuple):
    """Costs of the stages of a partition, on their ranks, [d] each."""

    forward_s: Vector
    backward_s: Vector
    weight_s: Vector
    optimizer_s: Vector
    input_bytes: Vector
    """Bytes of a stage's input, unsharded on each of its ranks."""
    saved_bytes: Vector
    parameter_bytes: Vector


@dataclass(frozen=True)
class PipelineCandidate:
    """Shape with a partition, and its closed-form costs."""

    shape: PipelineShape
    bounds: tuple[int, ...]
    """First module of each stage, then the total number; empty if stages are given by `members`."""
    update_s: float
    limit: str
    """Description of the bottleneck."""
    kept_bytes: tuple[float, ...]
    """Memory of a rank at each position, in bytes."""
    members: tuple[tuple[int, ...], ...] = ()
    """Modules of each stage, if stages are not ranges of the list."""

    def stages(self) -> list[list[int]]:
        """Module indices of each stage."""
        if self.members:
            return [list(one) for one in self.members]
        return [list(range(first, last)) for first, last in itertools.pairwise(self.bounds)]


def stage_sums(problem: PipelineProblem, shape: PipelineShape, bounds: Ints) -> StageSums:
    """Costs of contiguous stages."""
    sums, width = problem.sums(shape.microbatch_size), shape.width
    faster = 1.0 if width == 1 else problem.trace.width_speedup[width]

    def between(summed: Vector) -> Vector:
        return np.diff(summed[bounds])

    return StageSums(
        between(sums.forward_s) / faster,
        between(sums.backward_s) / faster,
        between(sums.weight_s) / faster,
        between(sums.optimizer_s) / width,
        sums.inputs(bounds),
        between(sums.saved_bytes) / width,
        between(sums.parameter_bytes) / width,
    )


def sums_of(problem: PipelineProblem, shape: PipelineShape, stages: Sequence[Sequence[int]]) -> StageSums:
    """Costs of stages with arbitrary modules."""
    names = [[problem.trace.modules[number].name for number in own] for own in stages]
    found = StageCosts.of(problem.trace, names, shape.microbatch_size, [shape.width] * len(names))
    return StageSums(
        found.forward_s,
        found.backward_s,
        found.weight_s,
        found.optimizer_s,
        found.input_bytes,
        found.saved_bytes,
        found.parameter_bytes,
    )


def depths_of(style: str, positions: int, microbatches: int) -> tuple[Ints, Ints]:
    """Forward passes ahead of each position's first backward pass, and delay of weight gradients, in microbatches."""
    behind = positions - np.arange(positions)
    depth = {
        "gpipe": np.full(positions, microbatches),
        "eager": 2 * behind - 1,
        "eager-split": 2 * behind - 1,
    }
    late = np.arange(positions) if style == "zero-bubble" else np.zeros(positions, np.int64)
    return np.minimum(depth.get(style, behind), microbatches), np.minimum(late, microbatches - 1)


def kept_bytes(
    problem: PipelineProblem, shape: PipelineShape, style: str, stages: StageSums, depth: Ints, late: Ints
) -> Vector:
    """Memory of a rank at each position, in bytes; equals `sim.stage_memory.peak_bytes` for the timetable.

    Args:
        problem: Model, links, samples and memory.
        shape: Numbers of replicas, and whether forward passes are recomputed.
        style: Style of the timetable.
        stages: Costs of the stages.
        depth: Forward passes ahead of the first backward pass at each position.
        late: Delay of weight gradients at each position, in microbatches.
    """
    inputs, saved = stages.input_bytes, stages.saved_bytes
    late = np.minimum(late, shape.microbatches - depth)
    if shape.recompute:
        activations = (depth - 1) * np.minimum(inputs, saved) + (late + 1) * saved
    else:
        activations = (depth + late) * saved
    two = style == "2bw"
    copies = 1 + two + problem.trace.state_factor + (two and shape.replicas > 1)
    return copies * stages.parameter_bytes + activations


def evaluate(
    problem: PipelineProblem,
    shape: PipelineShape,
    style: str,
    stages: StageSums,
    messages: Messages = "async",
) -> tuple[float, str]:
    """Time of an update in seconds, and its bottleneck in words.

    Args:
        problem: Model, links, samples and memory.
        shape: Numbers of stages, replicas and microbatches.
        style: Style of the timetable; "2bw" overlaps gradient exchange with the next update's passes.
        stages: Costs of the stages.
        messages: Whether messages overlap with passes.
    """
    d, m = shape.positions, shape.microbatches
    wires = problem.wires(d, shape.replicas, shape.width)
    again = stages.forward_s if shape.recompute else 0.0
    compute = stages.forward_s + stages.backward_s + again
    sent = stages.input_bytes[1:]
    link = _link_s(problem, wires.latency_s + wires.s_per_byte * sent, sent)
    exchange = (
        float((wires.exchange_s + wires.exchange_s_per_byte * stages.parameter_bytes).max())
        if shape.replicas > 1
        else 0.0
    )
    optimizer = float(stages.optimizer_s.max())
    if messages == "blocking":
        beside = np.concatenate([[0.0], link]) + np.concatenate([link, [0.0]])
        pace = {"the largest stage with its messages": float((compute + 2 * beside).max())}
        trip = float((compute + 2 * np.concatenate([link, [0.0]])).sum())
    else:
        late = stages.weight_s if style in SPLIT else np.zeros(d)
        back = np.cumsum((compute - late)[::-1])[::-1] + 2 * np.concatenate(
            [np.cumsum(link[::-1])[::-1], [0.0]]
        )
        depth = depths_of(style, d, m)[0]
        trips = np.where(depth < m, (back + late) / depth, 0.0)
        nics = wires.host_s_per_byte @ sent if problem.edge_s is None else np.zeros(1)
        largest = (
            stages.forward_s.max() + (compute - stages.forward_s).max() if style == "gpipe" else compute.max()
        )
        pace = {
            "the largest stage": float(largest),
            "round trips of microbatches": float(trips.max()),
            "messages between stages": float(max(link.max(initial=0.0), nics.max(initial=0.0))),
        }
        trip = float(back[0] + late[0])
    turn = max(pace.values())
    limit = max(pace, key=pace.__getitem__)
    if style == "2bw":
        update = max(m * turn, exchange)
        return update + optimizer, limit if update > exchange else "exchanges of gradients"
    rest = trip - turn
    update = m * turn + max(rest, 0.0)
    if max(rest, 0.0) + exchange > 0.5 * (update + exchange):
        limit = "exchanges of gradients" if exchange > rest else "filling and draining the pipeline"
    return update + exchange + optimizer, limit


def _link_s(problem: PipelineProblem, link: Vector, sent: Vector) -> Vector:
    if problem.edge_s is None:
        return link
    return np.array([problem.edge_s(stage, stage + 1, float(size)) for stage, size in enumerate(sent)])
