"""Stages, replicas and timetable of a pipeline: closed forms preselect shapes, simulation chooses among the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from wirewise.cost.links import Links
from wirewise.cost.stages import StageCosts
from wirewise.errors import PlanError
from wirewise.planners.pipeline.cuts import balanced_cut
from wirewise.planners.pipeline.depths import choose_depths
from wirewise.planners.pipeline.formula import (
    Messages,
    PipelineCandidate,
    PipelineShape,
    StageSums,
    kept_bytes,
    sums_of,
)
from wirewise.planners.pipeline.problem import PipelineProblem
from wirewise.planners.pipeline.two_bw import FixedChoices, ShapeSearch, cut_stages, has_exact_cut, search
from wirewise.plans.stages import Stage, StagePlan
from wirewise.plans.timetables import in_flight, timetable
from wirewise.sim.pipelines import EdgeSeconds, message_seconds, simulate_pipeline, steady_update
from wirewise.sim.stage_memory import peak_bytes
from wirewise.units import format_size

__all__ = ["METHODS", "plan"]

METHODS: dict[str, tuple[str, ...]] = {
    "two-bw": ("2bw",),
    "one-version": ("eager", "eager-split", "zero-bubble", "interleaved"),
    "eager": ("eager",),
    "eager-split": ("eager-split",),
    "zero-bubble": ("zero-bubble",),
    "interleaved": ("interleaved",),
    "1f1b": ("1f1b",),
    "gpipe": ("gpipe",),
}
"""Timetable styles of each planner, by its name; of several, the fastest is taken."""

_CLOSED_FORM = {"one-version": ("eager", "1f1b"), "interleaved": ("eager", "1f1b")}
"""Styles whose closed forms compare shapes, where it is not the planner's own: the first with which any has room."""
_CHUNKS = (1, 2, 3, 4)
"""Stages a position of interleaved timetables that are tried."""

_DEEPER = ("eager", "eager-split", "2bw")
"""Styles whose depths are chosen."""
_MOST_TRIED, _MOST_PASSES = 400, 4_000
"""Forward passes of an update that are simulated at most, for each choice of depths and for a plan."""


def plan(
    problem: PipelineProblem,
    *,
    method: str = "two-bw",
    stages: int | None = None,
    replicas: int | None = None,
    width: int | None = None,
    microbatch_size: int | None = None,
    recompute: bool | None = None,
    messages: Messages = "async",
    candidates: int = 3,
    seed: int = 0,
) -> StagePlan:
    """Choose stages (d), replicas (w), microbatch size (b), recomputation (r), partition and timetable.

    The objective is the time of an update of a fixed number of samples, under the memory of a rank; all ranks work. All
    shapes are compared in closed form: O(divisors of the ranks times divisors of the samples). The best of them are
    cut by dynamic programming, get as many microbatches in flight as make them faster and memory allows, and are
    simulated.

    Args:
        problem: Model, links, samples and memory.
        method: One of `METHODS`, which defines the timetable styles.
        stages: Number of stages. Defaults to the planner's choice.
        replicas: Number of data-parallel pipelines. Defaults to the planner's choice.
        width: Tensor-parallel ranks per stage. Defaults to a choice among measured widths.
        microbatch_size: Samples per microbatch. Defaults to the planner's choice.
        recompute: Whether stages recompute their forward pass. Defaults to the planner's choice.
        messages: Treatment of messages in the closed form: overlapped with passes or, as in the paper, blocking.
        candidates: Number of shapes to simulate.
        seed: Recorded in the plan; the search is deterministic.

    Raises:
        PlanError: The method is unknown, or no shape fits the memory; the message says what is short.
    """
    if method not in METHODS:
        raise PlanError(f"unknown planner of pipelines {method!r}; expected one of: {', '.join(METHODS)}")
    if candidates < 1:
        raise PlanError(f"candidates is {candidates}; expected at least 1")
    styles = METHODS[method]
    fixed = FixedChoices(stages, replicas, width, microbatch_size, recompute)
    compared = _compared(problem, _CLOSED_FORM.get(method, styles), fixed, messages)
    tried = [
        one
        for candidate in compared.found[:candidates]
        for style in styles
        for one in _plans(problem, candidate, _Making(style, method, seed))
    ]
    room = [one for one in tried if max(one.predicted_bytes) <= problem.memory_bytes]
    if not room:
        least = min(max(one.predicted_bytes) for one in tried)
        raise PlanError(
            f"no {styles[0]} timetable of {len(problem.trace.modules)} modules has room: a rank has "
            f"{format_size(problem.memory_bytes)}, the least that was found needs {format_size(least)}"
        )
    # What is too large to be simulated is last, and there the closed form decides.
    best = min(room, key=lambda one: one.predicted_s or np.inf)
    notes = [*_timetable_notes(problem, tried, best), *_notes(problem, compared, best)]
    return replace(best, notes=tuple(notes))


def _compared(
    problem: PipelineProblem, styles: Sequence[str], fixed: FixedChoices, messages: Messages
) -> ShapeSearch:
    *others, last = styles
    for style in others:
        with suppress(PlanError):
            return search(problem, style, fixed_choices=fixed, messages=messages)
    return search(problem, last, fixed_choices=fixed, messages=messages)


class _Making(NamedTuple):
    """Parts that all plans of a call share."""

    style: str
    method: str
    seed: int
    chunks: int = 1
    """Stages of a position."""


def _plans(problem: PipelineProblem, candidate: PipelineCandidate, making: _Making) -> Iterator[StagePlan]:
    """Plans of a shape: cut in balance, and cut by what messages take too; several stages a position if interleaved."""
    shape = candidate.shape
    if making.style == "interleaved":
        for chunks in _CHUNKS:
            # With one stage a position it is the eager timetable.
            alone = chunks == 1 and making.method == "interleaved"
            if alone or (chunks > 1 and 1 < shape.positions <= len(problem.trace.modules) // chunks):
                seconds = problem.sums(shape.microbatch_size).compute_s()
                bounds = balanced_cut(seconds, shape.positions * chunks).tolist()
                own = [list(range(*both)) for both in pairwise(bounds)]
                yield _with_depths(problem, shape, own, making._replace(chunks=chunks))
        return
    cuts = [candidate.stages()]
    if has_exact_cut(problem, shape):
        cut = cut_stages(problem, shape, making.style)
        cuts += [cut] if cut is not None and cut not in cuts else []
    for cut in cuts:
        yield _with_depths(problem, shape, cut, making)


def _with_depths(
    problem: PipelineProblem, shape: PipelineShape, cut: list[list[int]], making: _Making
) -> StagePlan:
    names = [[problem.trace.modules[number].name for number in own] for own in cut]
    costs = StageCosts.of(problem.trace, names, shape.microbatch_size, [shape.width] * len(names))

    def made(depths: Sequence[int] | None) -> StagePlan:
        return _plan(problem, shape, names, costs, making, depths)

    def simulate(found: StagePlan) -> float:
        return _update_s(found, costs, problem.links, problem.edge_s)

    def alone(depths: Sequence[int]) -> float:
        found = _plan(problem, small, names, costs, making, depths)
        links = Links.uniform(found.world_size, np.inf)
        run = simulate_pipeline(found, costs, links, updates=3, edge_s=_alike(problem, shape))
        return float(run.done_s[1] - run.done_s[0])

    whole, depths = _passes(shape) * making.chunks, None
    # One replica and fewer microbatches tell which depths are enough, where all of them would take long.
    small = shape._replace(replicas=1, microbatches=min(shape.microbatches, 2 * shape.positions + 8))
    if making.style in _DEEPER and shape.positions > 1 and _passes(small) <= _MOST_PASSES:
        most = _most_depths(problem, shape, making.style, sums_of(problem, shape, cut))
        if whole <= _MOST_TRIED:
            depths = choose_depths(lambda one: simulate(made(one)), most)
        else:
            depths = choose_depths(alone, np.minimum(most, small.microbatches).tolist())
    found = made(depths)
    return replace(found, predicted_s=simulate(found)) if whole <= _MOST_PASSES else found


def _passes(shape: PipelineShape) -> int:
    return shape.positions * shape.replicas * shape.microbatches


def _update_s(found: StagePlan, costs: StageCosts, links: Links, edge_s: EdgeSeconds | None) -> float:
    _, begin_s, end_s = steady_update(found, costs, links, edge_s=edge_s)
    return end_s - begin_s


def _alike(problem: PipelineProblem, shape: PipelineShape) -> EdgeSeconds:
    """Seconds of a message while all replicas send theirs."""
    wires = problem.wires(shape.positions, shape.replicas, shape.width)

    def edge_s(source: int, target: int, size_bytes: float) -> float:
        if problem.edge_s is not None:
            return problem.edge_s(source, target, size_bytes)
        boundary = min(source, target)
        return float(wires.latency_s[boundary] + wires.s_per_byte[boundary] * size_bytes)

    return edge_s


def _most_depths(problem: PipelineProblem, shape: PipelineShape, style: str, sums: StageSums) -> list[int]:
    """Most microbatches in flight that each position has room for."""
    late = np.zeros(shape.positions, np.int64)
    kept = np.array(
        [
            kept_bytes(problem, shape, style, sums, np.full(shape.positions, depth), late)
            for depth in range(1, shape.microbatches + 1)
        ]
    )
    return np.maximum((kept <= problem.memory_bytes).sum(axis=0), 1).tolist()


def _plan(
    problem: PipelineProblem,
    shape: PipelineShape,
    names: list[list[str]],
    costs: StageCosts,
    making: _Making,
    depths: Sequence[int] | None,
) -> StagePlan:
    d, w, t = shape.positions, shape.replicas, shape.width
    rows = timetable(making.style, d, shape.microbatches, depths=depths, chunks=making.chunks)
    edges = tuple(costs.edge_bytes)
    two = making.style == "2bw"
    found = StagePlan(
        world_size=d * w * t,
        planner=making.method,
        seed=making.seed,
        style=making.style,
        stages=tuple(
            Stage(modules=tuple(own), position=number % d, recompute=shape.recompute)
            for number, own in enumerate(names)
        ),
        ranks=tuple(
            tuple(tuple(range((p * w + r) * t, (p * w + r + 1) * t)) for r in range(w)) for p in range(d)
        ),
        microbatches=shape.microbatches,
        microbatch_size=shape.microbatch_size,
        timetable=rows,
        edges=() if edges == tuple((s, s + 1) for s in range(len(names) - 1)) else edges,
        weight_versions=2 if two else 1,
        exchange="hidden" if two else "end",
        depths=tuple(in_flight(row, shape.microbatches) for row in rows),
        pass_s=tuple(
            zip(*(one.tolist() for one in (costs.forward_s, costs.backward_s, costs.weight_s)), strict=True)
        ),
    )
    return replace(
        found,
        predicted_bytes=peak_bytes(found, costs),
        message_s=message_seconds(found, costs, problem.links, problem.edge_s),
    )


def _timetable_notes(problem: PipelineProblem, tried: Sequence[StagePlan], best: StagePlan) -> Iterator[str]:
    """How other timetables of the same shape compare, where there was a choice."""

    def kind(one: StagePlan) -> tuple[str, int]:
        return one.style, len(one.stages) // one.positions

    def shape(one: StagePlan) -> tuple[int, ...]:
        return one.positions, one.replicas, one.microbatches, len(one.ranks[0][0])

    alike = [one for one in tried if shape(one) == shape(best) and one.predicted_s > 0]
    fastest: dict[tuple[str, int], StagePlan] = {}
    for one in sorted(alike, key=lambda one: one.predicted_s):
        fastest.setdefault(kind(one), one)
    if len(fastest) < 2 or best.predicted_s == 0:
        return
    for (style, chunks), one in fastest.items():
        if kind(one) != kind(best):
            more = f" with {chunks} stages a position" if chunks > 1 else ""
            need = f"{one.predicted_s / best.predicted_s:.3g} times as long"
            if max(one.predicted_bytes) > problem.memory_bytes:
                short = format_size(max(one.predicted_bytes))
                need = f"a rank needs {short}, and has {format_size(problem.memory_bytes)}"
            yield f"timetable {style}{more}: {need}"
    if best.style == "interleaved":
        each = len(best.stages) // best.positions
        yield (
            f"{each} stages a position fill and drain the pipeline in about 1/{each} of the time, with {each} times as "
            "many messages"
        )


def _notes(problem: PipelineProblem, compared: ShapeSearch, best: StagePlan) -> Iterator[str]:
    """Why other numbers of stages are not better."""
    fastest: dict[int, PipelineCandidate] = {}
    for one in compared.found:
        fastest.setdefault(one.shape.positions, one)
    own = fastest[best.positions]
    for d, one in sorted(fastest.items()):
        if d != best.positions:
            times = one.update_s / own.update_s
            yield (
                f"{_many(d, 'stage')}, {_many(one.shape.replicas, 'replica')}: {times:.3g} times as long by the closed "
                f"form, paced by {one.limit}"
            )
    for d, short in sorted(compared.short.items()):
        if d not in fastest:
            yield f"{_many(d, 'stage')}: a rank needs {format_size(short)}, and has {format_size(problem.memory_bytes)}"
    if best.predicted_s == 0:
        yield f"too many passes to simulate; by the closed form an update takes {own.update_s:.4g} s"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
