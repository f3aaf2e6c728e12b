"""Search for stages, mesh and microbatches: the best shardings of each are simulated, the fastest that fits wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, prod
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace as replaced

from wirewise import work
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.parallel.rhino.accumulation import Accumulation, accumulate, random_operator
from wirewise.planners.parallel.rhino.buckets import bucket_variants
from wirewise.planners.parallel.rhino.choices import Assignment
from wirewise.planners.parallel.rhino.known import data_parallel, paired_cuts, tensor_parallel
from wirewise.planners.parallel.rhino.layouts import REPLICATED
from wirewise.planners.parallel.rhino.recompute import RECOMPUTE, Recompute, recomputed_nodes
from wirewise.planners.parallel.rhino.segments import solve_by_segments
from wirewise.planners.parallel.rhino.shardings import ShardingProblem, ShardingSpace
from wirewise.planners.parallel.rhino.stages import cut_stages, stage_graph, stages_of_nodes
from wirewise.planners.parallel.rhino.words import choices_of, reasons
from wirewise.plans.parallel import DimPlacement, ParallelPlan
from wirewise.sim.mesh_costs import MeshCosts
from wirewise.sim.parallel_steps import StepSimulator, in_flight_of
from wirewise.trace.operator_graph import OperatorGraph
from wirewise.units import format_size

__all__ = ["Level", "ParallelProblem", "Shape", "plan", "plan_of", "sequential", "solve_shardings"]

Level = Literal["O2", "O3"]

_MESH_NAMES = {1: ("model",), 2: ("data", "model")}
_TIMED_OUT = "its time was up before any sharding was found; give the search more time"
_TIMELESS = "no shardings of its operators go together on this mesh; expected another mesh, or fewer stages"
_TRIES = 4
_FINALISTS = 3
_SIMULATED_S = 1e-4
"""Work of a node in the simulations of a plan's ways to exchange gradients."""


@dataclass(frozen=True, kw_only=True)
class ParallelProblem:
    """Training step, and the ranks to run it."""

    graph: OperatorGraph
    links: Links
    memory_bytes: float = inf
    """Memory of each rank, in bytes. None if unlimited."""
    states: float = 2.0
    """Number of optimizer states per parameter, each of its size."""
    cuts: Mapping[str, str] = field(default_factory=dict)
    """Hand-written sharding of parameters, as placements by name pattern, which is one of the compared plans. Defaults
    to pairs of matrices (`known.paired_cuts`)."""

    def __post_init__(self) -> None:
        if self.graph.time_s <= 0:
            raise InputError("the operators of the graph have no times; fill in their costs first")
        if not self.memory_bytes > 0:
            raise InputError(f"got {self.memory_bytes} bytes of memory of a rank; expected more than 0")

    @cached_property
    def batch(self) -> int:
        """Common length of the inputs' first dimension; 1 if they differ, which rules out microbatches."""
        sizes = {node.shape[0] for node in self.graph.nodes if node.op == "input" and node.shape}
        return sizes.pop() if len(sizes) == 1 else 1

    def fault_of(self, stages: int, microbatches: int) -> str:
        """Reason why these stages and microbatches would change the trained model; empty if they would not."""
        known: dict[tuple[bool, int], str] = self.__dict__.setdefault("_faults", {})
        key = (stages > 1, microbatches)
        if key not in known:
            known[key] = self._fault(stages, microbatches)
        return known[key]

    def _fault(self, stages: int, microbatches: int) -> str:
        drawn = random_operator(self.graph) if stages > 1 or microbatches > 1 else ""
        if drawn:
            return (
                f"{drawn} draws random numbers, which several stages or microbatches would draw in another order than "
                "one device; expected one stage and one microbatch, or a model without dropout"
            )
        try:
            self.accumulation(microbatches)
        except PlanError as error:
            return str(error)
        return ""

    def accumulation(self, microbatches: int) -> Accumulation | None:
        """Combination of microbatch results to the batch's. None for a single microbatch.

        Raises:
            PlanError: The results cannot be combined.
        """
        known: dict[int, Accumulation] = self.__dict__.setdefault("_accumulations", {})
        if microbatches == 1:
            return None
        if microbatches not in known:
            known[microbatches] = accumulate(self.graph, microbatches)
        return known[microbatches]


class Shape(NamedTuple):
    """Stages, mesh and microbatches around the shardings."""

    stages: int
    mesh: tuple[int, ...]
    microbatches: int
    recompute: Recompute = "nothing"

    def __str__(self) -> str:
        """Words for people."""
        mesh = " x ".join(map(str, self.mesh))
        said = f"{self.stages} stage{'s' * (self.stages > 1)} of {mesh} ranks, {self.microbatches} microbatch"
        said += "es" * (self.microbatches > 1)
        return said + f", {self.recompute} computed again" * (self.recompute != "nothing")


class _Candidate(NamedTuple):
    shape: Shape
    plan: ParallelPlan
    problem: ShardingProblem
    chosen: Assignment
    memory: float
    """Most bytes of a rank."""
    known: str = ""
    """Name of the plan, if it was not searched."""


def plan(
    problem: ParallelProblem,
    *,
    level: Level = "O3",
    stages: int | None = None,
    mesh: Sequence[int] | None = None,
    microbatches: int | None = None,
    recompute: Recompute | None = None,
    strided: bool = True,
    time_limit_s: float = 120.0,
    seed: int = 0,
) -> ParallelPlan:
    """Choose stages, mesh, microbatches, recomputation, and a sharding of every operator.

    The objective is the simulated time of a step under the memory of a rank. Variables of a shape are the strategy of
    every operator on all dimensions of the mesh at once and what users of a tensor share of it; costs are seconds of
    operators and of collectives, from the links. Chains and trees of operators are solved exactly by dynamic
    programming, what is left by a linear programme and, where that is not integral, an integer one; memory has a price.
    Level O3 solves the whole graph at once, O2 segment by segment and the dimensions of a mesh one after the other.
    Repeated blocks are solved once. Stages come from an integer programme over any graph.

    Args:
        problem: Training step, links and memory.
        level: Level of the search.
        stages: Number of stages. Defaults to a choice among powers of two that divide the ranks.
        mesh: Ranks along each of one or two dimensions of a stage's mesh. Defaults to the planner's choice.
        microbatches: Number of microbatches. Defaults to the planner's choice.
        recompute: Activations to recompute in the backward pass. Defaults to none, or the best if memory is short.
        strided: Whether to allow strided shards.
        time_limit_s: Work limit of the search, in seconds of an unloaded CPU (`wirewise.work`), so that a busy
            machine finds the same plan; at the limit the best plan so far is returned, with a note.
        seed: Recorded in the plan; the search is deterministic.

    Raises:
        PlanError: No shape matches the request, or none fits the memory; the message says what is short, and where.
    """
    if level not in ("O2", "O3"):
        raise PlanError(
            f"level is {level!r}; expected O2 (segment by segment) or O3 (the whole graph at once)"
        )
    if recompute is not None and recompute not in RECOMPUTE:
        raise PlanError(f"recompute is {recompute!r}; expected one of: {', '.join(RECOMPUTE)}")
    if not time_limit_s > 0:
        raise PlanError(f"got {time_limit_s:g} seconds for the search; expected more than 0")
    ends = work.spent_s() + time_limit_s
    shapes = list(_shapes(problem, stages, mesh, microbatches))
    if not shapes:
        raise PlanError(
            f"no shape: {problem.links.world_size} ranks, {stages or 'any'} stages, mesh {list(mesh or []) or 'any'}, "
            f"{microbatches or 'any'} microbatches of {problem.batch} samples; expected stages times a mesh of one or "
            "two dimensions to be the ranks, and microbatches that divide the samples"
        )
    modes: list[Recompute] = [recompute] if recompute is not None else ["nothing"]
    found, short, unsolved = _compared(problem, shapes, modes, strided=strided, ends=ends)
    if recompute is None and np.isfinite(problem.memory_bytes) and (not found or short):
        more, least, others = _compared(
            problem, shapes, [m for m in RECOMPUTE if m != "nothing"], strided=strided, ends=ends
        )
        unsolved |= others
        found, short = found + more, min(filter(None, (short, least)), default=None)
    if not found:
        raise _no_plan(problem, short, unsolved)
    found.sort(key=lambda one: one.plan.predicted_step_s)
    better = [
        _solved(problem, one.shape, level=level, strided=strided, ends=ends, stage_of=one.plan.stage_of)
        for one in found[:_FINALISTS]
        if work.spent_s() < ends and (level == "O2" or len(one.shape.mesh) > 1)
    ]
    fit = [one for one in better if isinstance(one, _Candidate) and one.memory <= problem.memory_bytes]
    pool = fit if level == "O2" and fit else [*found, *fit]
    best = min(pool, key=lambda one: one.plan.predicted_step_s)
    finalists = (
        min(len(found), _FINALISTS)
        if level == "O2"
        else sum(len(one.shape.mesh) > 1 for one in found[:_FINALISTS])
    )
    late = [shape for shape, why in unsolved.items() if why == _TIMED_OUT]
    cut = _cut_short(time_limit_s, late, finalists - len(better))
    return _told(problem, best, found, level=level, seed=seed, cut_short=cut)


def _cut_short(time_limit_s: float, late: Sequence[str], finalists: int) -> tuple[str, ...]:
    """Notes on what the work limit cut short; empty if nothing was."""
    if not late and not finalists:
        return ()
    left = [f"{len(late)} shapes, such as {late[0]}"] if late else []
    left += [f"the closer look at {finalists} of the best shapes"] if finalists else []
    return (f"the search ended at its limit of {time_limit_s:g} s of work, without {' and '.join(left)}",)


def plan_of(
    problem: ParallelProblem, choose: Callable[[ShardingProblem], Assignment | None], name: str
) -> ParallelPlan | None:
    """Plan with one stage on a one-dimensional mesh, sharded by `choose`. None if `choose` finds no shardings.

    Args:
        problem: Training step and links; the memory limit is ignored.
        choose: Function that chooses the shardings, such as one of `known`.
        name: Planner name recorded in the plan.
    """
    shape = Shape(1, (problem.links.world_size,), 1)
    ranks = [tuple(range(problem.links.world_size))]
    sharding = ShardingProblem(
        graph=problem.graph,
        mesh=shape.mesh,
        costs=MeshCosts(problem.links, ranks, shape.mesh),
        states=problem.states,
    )
    chosen = choose(sharding)
    if chosen is None:
        return None
    stage_of = [0] * len(problem.graph.nodes)
    sharded = sharding.sharded(chosen.values, stage_of)
    memory = _memory(problem, shape, sharding, sharded, stage_of)
    return replaced(_plan(problem, shape, sharded, stage_of, ranks, memory, frozenset()), planner=name)


def _shapes(
    problem: ParallelProblem, stages: int | None, mesh: Sequence[int] | None, microbatches: int | None
) -> Iterator[Shape]:
    ranks, batch = problem.links.world_size, problem.batch
    for count in [stages] if stages is not None else [1 << i for i in range(ranks.bit_length())]:
        if count < 1 or ranks % count:
            continue
        n = ranks // count
        meshes = [(n,), *((a, n // a) for a in range(2, n) if n % a == 0)] if mesh is None else [tuple(mesh)]
        for one in meshes:
            if prod(one) != n or len(one) not in _MESH_NAMES:
                continue
            wanted = [microbatches] if microbatches is not None else _microbatches(problem, count)
            for m in wanted:
                if m < 1 or batch % m:
                    continue
                fault = problem.fault_of(count, m)
                if fault and (stages == count or microbatches == m):
                    raise PlanError(fault)
                if not fault:
                    yield Shape(count, one, m)


def _microbatches(problem: ParallelProblem, stages: int) -> list[int]:
    """Numbers of microbatches that fill the stages and train what the batch would; one where there are none."""
    if stages == 1:
        return [1]
    known = [m for m in (stages, 2 * stages, 4 * stages) if m <= problem.batch and problem.batch % m == 0]
    return [m for m in known if not problem.fault_of(stages, m)] or [1]


class _Short(NamedTuple):
    """The plan that comes closest to having room."""

    needed: float
    shape: Shape
    rank: int


def _compared(
    problem: ParallelProblem,
    shapes: Sequence[Shape],
    modes: Sequence[Recompute],
    *,
    strided: bool,
    ends: float,
) -> tuple[list[_Candidate], _Short | None, dict[str, str]]:
    """The best shardings of every shape with room, what is closest of those without, and why others are none."""
    found, short, unsolved = list[_Candidate](), list[_Short](), dict[str, str]()
    for mode in modes:
        for shape in shapes:
            if found and work.spent_s() > ends:
                unsolved[str(shape._replace(recompute=mode))] = _TIMED_OUT
                continue
            one = _solved(problem, shape._replace(recompute=mode), level="O2" if len(shape.mesh) > 1 else "O3",
                          strided=strided, ends=ends)  # fmt: skip
            if isinstance(one, str):
                unsolved[str(shape._replace(recompute=mode))] = one
            elif one.memory <= problem.memory_bytes:
                found.append(one)
            else:
                rank = int(np.argmax(one.plan.memory_bytes))
                short.append(_Short(one.memory, one.shape, rank))
    return found, min(short, default=None), unsolved


def _no_plan(problem: ParallelProblem, short: _Short | None, unsolved: dict[str, str]) -> PlanError:
    if short is None:
        reasons = "; ".join(f"{shape}: {why}" for shape, why in list(unsolved.items())[:4])
        return PlanError(f"no plan was found: {reasons}")
    less = short.needed - problem.memory_bytes
    return PlanError(
        f"no plan has room: rank {short.rank} needs {format_size(round(short.needed))} at least with {short.shape}, "
        f"and has {format_size(round(problem.memory_bytes))}, {format_size(round(less))} too little; use more ranks, "
        "a smaller batch or an optimizer with less state"
    )


def solve_shardings(
    sharding: ShardingProblem, *, level: Level, memory: float = inf, time_limit_s: float = 60.0
) -> Assignment | None:
    """Choose the shardings on a mesh.

    Args:
        sharding: Training step on a mesh.
        level: Whole graph, or segment by segment and one mesh dimension after another.
        memory: Total bytes of all ranks in a column of stages.
        time_limit_s: Work limit of the search, in seconds of an unloaded CPU.
    """
    if level == "O3":
        return sharding.problem.solve(memory=memory, time_limit_s=time_limit_s)
    if len(sharding.mesh) > 1:
        orders = [sequential(sharding, axis, memory=memory, time_limit_s=time_limit_s) for axis in (0, 1)]
        found = [one for one in orders if one is not None]
        return min(found, key=lambda one: (one.memory > memory, one.cost), default=None)
    free = solve_by_segments(sharding, time_limit_s=time_limit_s)
    if free is None or free.memory <= memory:
        return free
    return sharding.problem.solve(memory=memory, time_limit_s=time_limit_s)


def sequential(
    sharding: ShardingProblem, first: int, *, memory: float = inf, time_limit_s: float = 60.0
) -> Assignment | None:
    """Choose shardings on a two-dimensional mesh, one dimension after another; values are those of `sharding`.

    Args:
        sharding: Training step on a mesh of two dimensions.
        first: Dimension to decide first, as if the other had one rank.
        memory: Total bytes of all ranks in a column of stages.
        time_limit_s: Work limit for each dimension, in seconds of an unloaded CPU.
    """
    mesh = tuple(n if axis == first else 1 for axis, n in enumerate(sharding.mesh))
    # The other dimension will take its part of what does not fit yet.
    alone = replace(sharding, mesh=mesh)
    chosen = alone.problem.solve(memory=memory * prod(sharding.mesh) / prod(mesh), time_limit_s=time_limit_s)
    if chosen is None:
        return None
    strategies = alone.sharded(chosen.values).strategies
    taken: tuple[tuple[DimPlacement, ...], ...] = tuple(
        tuple(layout[first] for layout in (*one.outputs, *one.inputs)) for one in strategies
    )
    both = replace(sharding, fixed=tuple(taken if axis == first else () for axis in range(2)))
    found = both.problem.solve(memory=memory, time_limit_s=time_limit_s)
    if found is None:
        return None
    return found._replace(values=sharding.values_of(both, found.values), bound=-inf)


def _solved(
    problem: ParallelProblem,
    shape: Shape,
    *,
    level: Level,
    strided: bool,
    ends: float,
    stage_of: Sequence[int] | None = None,
) -> _Candidate | str:
    """The best shardings of a shape and their plan, which may have too little room; or why there is none."""
    graph, n = problem.graph, prod(shape.mesh)
    ranks = [tuple(range(s * n, (s + 1) * n)) for s in range(shape.stages)]
    costs = MeshCosts(problem.links, ranks, shape.mesh)
    if stage_of is None:
        try:
            stage_of = _stages(problem, shape, costs)
        except PlanError as error:
            return str(error)
    again, boundary = recomputed_nodes(graph, shape.recompute)
    sharding = ShardingProblem(
        graph=graph,
        mesh=shape.mesh,
        costs=costs,
        microbatches=shape.microbatches,
        alive=_alive(shape),
        strided=strided,
        states=problem.states,
        recomputed=again,
        boundary=boundary,
        accumulation=problem.accumulation(shape.microbatches),
    )

    def made(chosen: Assignment, *, known: str = "") -> _Candidate:
        sharded = sharding.sharded(chosen.values, stage_of)
        memory = _memory(problem, shape, sharding, sharded, stage_of)
        plan = _plan(problem, shape, sharded, stage_of, ranks, memory, again)
        return _Candidate(shape, plan, sharding, chosen, max(memory), known)

    limit, best, began = problem.memory_bytes * shape.stages, None, work.spent_s()
    for _ in range(_TRIES):
        chosen = solve_shardings(
            sharding, level=level, memory=limit, time_limit_s=max(ends - work.spent_s(), 2.0)
        )
        if chosen is None:
            lightest = sharding.problem.solve_lightest()
            if best is not None or lightest is None:
                break
            chosen = lightest
        best = made(chosen)
        if best.memory <= problem.memory_bytes or limit <= 0:
            break
        limit = min(limit, chosen.memory) * 0.98 * problem.memory_bytes / best.memory
    searched_s = work.spent_s() - began
    if best is None:
        return _TIMELESS if work.spent_s() < ends else _TIMED_OUT
    # A sum of costs does not see what gradients hide behind; two dimensions of a mesh are no other data parallelism.
    ways = [best]
    for name, way in _users_ways(problem).items() if len(shape.mesh) == 1 else ():
        # Each takes about as long as the search did.
        usual = way(sharding) if len(ways) == 1 or work.spent_s() + 4 * searched_s < ends else None
        if usual is not None:
            ways.append(made(usual._replace(bound=best.chosen.bound), known=name))
    return min(ways, key=lambda one: (max(one.memory, problem.memory_bytes), one.plan.predicted_step_s))


def _users_ways(problem: ParallelProblem) -> dict[str, Callable[[ShardingProblem], Assignment | None]]:
    """Shardings that users write themselves, by what a plan of them says; no plan is simulated slower than these."""
    cuts = problem.cuts or paired_cuts(problem.graph)
    return {
        "It is data parallelism: exchanges of gradients are hidden behind the rest of the backward pass.": (
            data_parallel
        ),
        "It is tensor parallelism, as it is written by hand: simulated, it is quicker than what costs least.": partial(
            tensor_parallel, cuts=cuts
        ),
        "It is data parallelism with parameters in parts: they are gathered beside what computes.": partial(
            data_parallel, cut=True
        ),
    }


def _alive(shape: Shape) -> float:
    """Part of a batch's activations that the mean stage keeps at once."""
    kept = [in_flight_of(stage, shape.stages, shape.microbatches) for stage in range(shape.stages)]
    return sum(kept) / len(kept) / shape.microbatches


def _stages(problem: ParallelProblem, shape: Shape, costs: MeshCosts) -> list[int]:
    if shape.stages == 1:
        return [0] * len(problem.graph.nodes)
    ops, op_of = stage_graph(problem.graph, costs, share=1.0 / prod(shape.mesh))
    cut = cut_stages(ops, shape.stages)
    return stages_of_nodes(problem.graph, op_of, cut.stage_of)


def _memory(
    problem: ParallelProblem,
    shape: Shape,
    sharding: ShardingProblem,
    sharded: ShardingSpace,
    stage_of: Sequence[int],
) -> list[float]:
    """Most bytes of each rank."""
    found = np.zeros(shape.stages)
    factor = [
        in_flight_of(s, shape.stages, shape.microbatches) / shape.microbatches / sharding.alive
        for s in range(shape.stages)
    ]
    block, open_block = np.zeros(shape.stages), np.zeros(shape.stages)
    for number, (node, one) in enumerate(zip(problem.graph.nodes, sharded.strategies, strict=True)):
        if node.op == "output":
            continue
        stage, size = stage_of[number], sharding.own_bytes(number, one)
        grows = any(d is not None for d in sharding.batch_dims[number])
        found[stage] += size * (factor[stage] if grows and node.op not in ("parameter", "buffer") else 1.0)
        # Of blocks that are computed again, one is there at a time.
        if number in sharding.boundary:
            block[stage], open_block[stage] = max(block[stage], open_block[stage]), 0.0
        elif number in sharding.recomputed and node.computes:
            open_block[stage] += sharding.output_bytes(number, one) / shape.microbatches
    found += np.maximum(block, open_block) if sharding.boundary else 0.0
    return np.repeat(found, prod(shape.mesh)).tolist()


def _plan(
    problem: ParallelProblem,
    shape: Shape,
    sharded: ShardingSpace,
    stage_of: Sequence[int],
    ranks: Sequence[tuple[int, ...]],
    memory: Sequence[float],
    again: frozenset[int],
) -> ParallelPlan:
    placements = tuple(
        tuple(
            ",".join(str(layout[axis]) for layout in one.outputs) or str(REPLICATED)
            for axis in range(len(shape.mesh))
        )
        for one in sharded.strategies
    )
    made = ParallelPlan(
        world_size=problem.links.world_size,
        planner="rhino",
        graph=problem.graph.digest,
        mesh=shape.mesh,
        mesh_names=_MESH_NAMES[len(shape.mesh)],
        ranks=tuple(ranks),
        microbatches=shape.microbatches,
        stage_of=tuple(stage_of),
        placements=placements,
        moves=sharded.moves,
        inner={n: one.inner for n, one in enumerate(sharded.strategies) if one.inner},
        recompute=tuple(sorted(again)),
        memory_bytes=tuple(map(round, memory)),
    )
    work.charge(_SIMULATED_S * len(problem.graph.nodes))
    return min(
        (
            replaced(one, predicted_step_s=StepSimulator(one, problem.graph, problem.links).step().seconds)
            for one in bucket_variants(made, problem.graph)
        ),
        key=lambda one: one.predicted_step_s,
    )


def _told(
    problem: ParallelProblem,
    best: _Candidate,
    found: Sequence[_Candidate],
    *,
    level: Level,
    seed: int,
    cut_short: tuple[str, ...],
) -> ParallelPlan:
    """The plan with its bound, its gap, and words."""
    bound, cost = best.chosen.bound, best.chosen.cost
    if not np.isfinite(bound):
        # A dimension after the other bounds nothing; no plan computes less than the whole step on all ranks.
        bound = problem.graph.time_s / prod(best.shape.mesh)
    compute = problem.graph.time_s / problem.links.world_size
    others = [(str(one.shape), one.plan.predicted_step_s) for one in found if one.shape != best.shape]
    known = (best.known,) if best.known else ()
    return replaced(
        best.plan,
        level=level,
        seed=seed,
        bound_s=compute,
        gap=max(cost - bound, 0.0) / max(bound, 1e-30),
        choices=choices_of(problem.graph, best.plan),
        why=known + tuple(reasons(problem.graph, best.plan, others)),
        notes=tuple(
            f"no rule for {op}, which every rank runs whole ({count} times)"
            for op, count in best.problem.notes.items()
        )
        + problem.graph.notes
        + cut_short,
    )
