"""Planner of PipeDream-2BW: number of stages, replicas and samples per microbatch, and recomputation.

D. Narayanan, A. Phanishayee, K. Shi, X. Chen, M. Zaharia: Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021,
section 3.3 and appendix A. All factorizations of the ranks and of the samples of an update are compared in closed
form; those that do not fit into memory are left out. Unlike the released planner, this one also counts the exchange of
each update, recomputation and the sizes of microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.pipeline.cuts import balanced_cut, best_cut
from wirewise.planners.pipeline.formula import (
    Messages,
    PipelineCandidate,
    PipelineShape,
    StageSums,
    depths_of,
    evaluate,
    kept_bytes,
    stage_sums,
    sums_of,
)
from wirewise.planners.pipeline.problem import PipelineLinks, PipelineProblem
from wirewise.planners.pipeline.sums import Table
from wirewise.units import format_size

__all__ = ["FREE", "FixedChoices", "ShapeSearch", "cut_stages", "has_exact_cut", "search", "shapes"]

_SHARES = (1.0, 1.25, 1.6, 2.5)
"""Memory of cuts that are compared where a balanced one has no room, over the least that any cut needs."""
_MOST_CELLS = 2_000_000
"""Cells of the tables of an exact cut, stages times sets of modules squared, where a balanced one has no room."""


class FixedChoices(NamedTuple):
    """Choices fixed by the user. None if the planner may choose."""

    stages: int | None = None
    replicas: int | None = None
    width: int | None = None
    microbatch_size: int | None = None
    recompute: bool | None = None


FREE = FixedChoices()
"""Choices without any restriction."""


class ShapeSearch(NamedTuple):
    """Result of comparing shapes."""

    found: list[PipelineCandidate]
    """Shapes that fit into memory, fastest first."""
    short: dict[int, float]
    """Least memory per rank, over all shapes, of each number of stages that does not fit."""


def shapes(
    problem: PipelineProblem, style: str, fixed_choices: FixedChoices = FREE
) -> Iterator[PipelineShape]:
    """Enumerate shapes that use every rank, and every sample of an update once."""
    n, modules = problem.ranks, len(problem.trace.modules)
    for width in sorted({1, *problem.trace.width_speedup}):
        for d in _divisors(n // width) if n % width == 0 else ():
            w = n // width // d
            if d > modules or problem.batch % w:
                continue
            for b in _divisors(problem.batch // w):
                m = problem.batch // w // b
                for recompute in (False, True):
                    shape = PipelineShape(d, w, width, b, m, recompute)
                    if (style != "2bw" or m >= d) and _allowed(shape, fixed_choices):
                        yield shape


def search(
    problem: PipelineProblem,
    style: str = "2bw",
    *,
    fixed_choices: FixedChoices = FREE,
    messages: Messages = "async",
) -> ShapeSearch:
    """Compare all shapes in closed form.

    Args:
        problem: Model, links, samples and memory.
        style: Style of the timetable.
        fixed_choices: Choices that are fixed.
        messages: Whether messages overlap with passes.

    Raises:
        PlanError: No shape matches the fixed numbers, or none fits the memory; the message says what is short.
    """
    found, short, any_shape = list[PipelineCandidate](), dict[int, float](), False
    for shape in shapes(problem, style, fixed_choices):
        any_shape = True
        candidate = _candidate(problem, shape, style, messages)
        most = max(candidate.kept_bytes)
        if most <= problem.memory_bytes:
            found.append(candidate)
        else:
            short[shape.positions] = min(short.get(shape.positions, np.inf), most)
    if not any_shape:
        raise PlanError(_no_shape(problem, style, fixed_choices))
    if not found:
        raise PlanError(
            f"a rank has {format_size(problem.memory_bytes)}, and the least that any number of stages needs is "
            f"{format_size(min(short.values()))}; give it more memory, more ranks, or modules that can be cut further"
        )
    # Where two take as long, the one with fewer stages, then with larger microbatches.
    found.sort(
        key=lambda one: (one.update_s, one.shape.positions, -one.shape.microbatch_size, one.shape.recompute)
    )
    return ShapeSearch(found, short)


def has_exact_cut(problem: PipelineProblem, shape: PipelineShape) -> bool:
    """Whether the tables of an exact partition are small enough to compute."""
    modules = len(problem.trace.modules)
    return shape.positions * (modules + 1) ** 2 <= _MOST_CELLS and (
        shape.positions * len(problem.sets) ** 2 <= _MOST_CELLS
    )


def cut_stages(problem: PipelineProblem, shape: PipelineShape, style: str) -> list[list[int]] | None:
    """Find the best partition of a shape by compute and messages within memory. None if there is none."""
    return _Cutter(problem, shape, style).within(problem.memory_bytes)


class _Cutter:
    """Exact cuts of a shape under limits of memory."""

    def __init__(self, problem: PipelineProblem, shape: PipelineShape, style: str) -> None:
        self._known = known = problem.tables(shape.microbatch_size)
        wires = problem.wires(shape.positions, shape.replicas, shape.width)
        faster = 1.0 if shape.width == 1 else problem.trace.width_speedup[shape.width]
        depth, late = depths_of(style, shape.positions, shape.microbatches)
        none = np.zeros(1)
        figures = StageSums(
            *(none,) * 4,
            known.input_bytes,
            known.saved_bytes / shape.width,
            known.parameter_bytes / shape.width,
        )
        positions = range(shape.positions)
        kept = [kept_bytes(problem, shape, style, figures, depth[i], late[i]) for i in positions]
        self._kept = [np.where(np.isfinite(table), table, np.inf) for table in kept]
        self._took = [
            _message_s(problem, wires, position, known.input_bytes)
            if position
            else np.zeros_like(known.compute_s)
            for position in positions
        ]
        self._cost = [np.maximum(known.compute_s / faster, took) for took in self._took]

    def within(self, limit_bytes: float) -> list[list[int]] | None:
        """The best cut whose stages keep no more than so much."""
        allowed = [
            np.where(kept <= limit_bytes, cost, np.inf)
            for kept, cost in zip(self._kept, self._cost, strict=True)
        ]
        return best_cut(self._known.sets, allowed, self._took)

    def some(self) -> Iterator[list[list[int]]]:
        """The cut that keeps least, and the best ones that keep some shares more."""
        least = best_cut(self._known.sets, self._kept, self._took)
        if least is None:
            return
        sets = dict[int, int](zip(self._known.sets, range(len(self._known.sets)), strict=True))
        at, most = 0, 0.0
        for stage, own in enumerate(least):
            to = at | sum(1 << number for number in own)
            most = max(most, float(self._kept[stage][sets[at], sets[to]]))
            at = to
        for share in _SHARES:
            cut = self.within(most * share)
            if cut is not None:
                yield cut


def _message_s(problem: PipelineProblem, wires: PipelineLinks, stage: int, size: Table) -> Table:
    if problem.edge_s is None:
        return wires.latency_s[stage - 1] + wires.s_per_byte[stage - 1] * size
    values, places = np.unique(size, return_inverse=True)
    seconds = np.array([problem.edge_s(stage - 1, stage, float(value)) for value in values])
    return seconds[places].reshape(size.shape)


def _candidate(
    problem: PipelineProblem, shape: PipelineShape, style: str, messages: Messages
) -> PipelineCandidate:
    """A shape with the balanced cut; where that has no room, with the best of those that need less.

    These do not count as faster than the balanced one, and do not depend on the memory that there is: more memory is
    never slower.
    """
    d = shape.positions
    depths = depths_of(style, d, shape.microbatches)
    bounds = balanced_cut(problem.sums(shape.microbatch_size).compute_s(), d)
    stages = stage_sums(problem, shape, bounds)
    kept = kept_bytes(problem, shape, style, stages, *depths)
    update_s, limit = evaluate(problem, shape, style, stages, messages)
    first = PipelineCandidate(shape, tuple(bounds.tolist()), update_s, limit, tuple(kept.tolist()))
    none = np.zeros(d)
    weights = kept_bytes(
        problem, shape, style, stages._replace(input_bytes=none, saved_bytes=none), *depths
    ).mean()
    if (
        kept.max() <= problem.memory_bytes
        or weights > problem.memory_bytes
        or not has_exact_cut(problem, shape)
    ):
        return first
    found = list[PipelineCandidate]()
    for cut in _Cutter(problem, shape, style).some():
        stages = sums_of(problem, shape, cut)
        kept = kept_bytes(problem, shape, style, stages, *depths)
        own_s, limit = evaluate(problem, shape, style, stages, messages)
        if kept.max() <= problem.memory_bytes or not found:
            found.append(
                PipelineCandidate(
                    shape, (), max(own_s, update_s), limit, tuple(kept.tolist()), tuple(map(tuple, cut))
                )
            )
    return min(found, key=lambda one: one.update_s, default=first)


def _allowed(shape: PipelineShape, fixed_choices: FixedChoices) -> bool:
    chosen = (shape.positions, shape.replicas, shape.width, shape.microbatch_size, shape.recompute)
    return all(wanted is None or wanted == own for wanted, own in zip(fixed_choices, chosen, strict=True))


def _divisors(number: int) -> list[int]:
    low = [k for k in range(1, isqrt(number) + 1) if number % k == 0]
    return sorted({*low, *(number // k for k in low)})


def _no_shape(problem: PipelineProblem, style: str, fixed_choices: FixedChoices) -> str:
    wanted = ", ".join(
        f"{name} {value}" for name, value in fixed_choices._asdict().items() if value is not None
    )
    width = " times width" if problem.trace.width_speedup else ""
    more = " and at least as many microbatches as stages" if style == "2bw" else ""
    return (
        f"no plan has {wanted or 'what is asked for'}: expected stages times replicas{width} to be {problem.ranks} "
        f"ranks, at most {len(problem.trace.modules)} stages, and replicas times microbatch_size to divide "
        f"{problem.batch} samples{more}"
    )
