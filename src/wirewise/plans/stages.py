"""Pipeline stages of a model, their ranks, and the timetable of microbatches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import ClassVar, Literal, Self

import msgspec

from wirewise.errors import PlanError
from wirewise.plans.base import Plan
from wirewise.plans.sharding import Sharding
from wirewise.plans.timetables import (
    STYLES,
    StageAction,
    StagePass,
    Timetable,
    in_flight,
    order_passes,
    timetable,
    unroll,
)

__all__ = ["ExchangePlace", "Stage", "StagePlan", "ValueSplit"]

ExchangePlace = Literal["end", "hidden"]
"""Time at which replicas exchange gradients: at the end of an update, before anything else; or concurrently with the
next update's passes."""

_SHOWN = 12
"""Actions of a position that a table shows."""
_UPDATES = 3
"""Updates in a row that are checked where they follow each other without a flush."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Modules that one position computes in sequence."""

    modules: tuple[str, ...]
    """Names of the modules, in the order in which they are computed."""
    position: int
    """Position in the pipeline whose ranks compute the stage."""
    recompute: bool = False
    """Whether only inputs are kept and the forward pass is recomputed before the backward pass."""


class ValueSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Value between stages that is sharded or partial over the ranks of a stage."""

    module: str
    """Module that computes the value."""
    stage: int
    """Stage that produces or reads it sharded."""
    dim: int | None = None
    """Dimension that the stage's ranks split as `torch.chunk` does. None if ranks of the producing stage hold
    partial sums."""


class StagePlan(Plan, frozen=True, kw_only=True, tag="stages"):
    """Stages of a model, their ranks, and the timetable of an update."""

    family: ClassVar[str] = "stages"

    style: str
    """Name of the timetable's style in `STYLES`, or "custom"."""
    stages: tuple[Stage, ...]
    """Stages in the order of the forward pass."""
    ranks: tuple[tuple[tuple[int, ...], ...], ...]
    """Ranks of each position, [positions, replicas, width]; width ranks share a stage's tensors, and positions may
    differ in it."""
    microbatches: int
    """Number of microbatches m per replica and weight update."""
    microbatch_size: int = 1
    """Samples of a microbatch."""
    timetable: Timetable
    """Actions of each position in their order, [positions]; microbatch m + j is microbatch j of the next update."""
    splits: tuple[ValueSplit, ...] = ()
    """Values that are sharded over the ranks of a stage; all others are replicated."""
    edges: tuple[tuple[int, int], ...] = ()
    """Pairs of stages between which activations are sent, and gradients back; empty if each stage feeds the next
    alone."""
    weight_versions: Literal[1, 2] = 1
    """Number of weight versions kept; with 2, microbatches use the second newest and the pipeline never flushes."""
    exchange: ExchangePlace = "end"
    """Time at which replicas exchange gradients; "hidden" needs two versions of the weights."""
    depths: tuple[int, ...]
    """Maximum number of activations, each of one stage and microbatch, that each position keeps, [positions]."""
    predicted_s: float = 0.0
    """Simulated seconds of an update, in steady state without flushes; 0 if not simulated."""
    predicted_bytes: tuple[int, ...] = ()
    """Peak memory of a rank at each position, in bytes, [positions]; empty if unknown."""
    pass_s: tuple[tuple[float, float, float], ...] = ()
    """Seconds of a forward pass, of a whole backward pass, and of its part for weight gradients, as assumed by the
    planner, [stages]; empty if unknown."""
    message_s: tuple[float, ...] = ()
    """Seconds of a message over each of `all_edges` without contention; empty if unknown."""
    notes: tuple[str, ...] = ()
    """Notes of the planner, such as the reason against more stages."""

    @classmethod
    def from_cuts(
        cls,
        modules: Sequence[str],
        cuts: Sequence[int],
        *,
        style: str = "1f1b",
        microbatches: int,
        microbatch_size: int = 1,
        replicas: int = 1,
        width: int | Sequence[int] = 1,
        splits: Sequence[ValueSplit] = (),
        chunks: int | None = None,
        depths: Sequence[int] | None = None,
        edges: Sequence[tuple[int, int]] = (),
        recompute: bool = False,
        exchange: ExchangePlace = "end",
    ) -> Self:
        """Plan for a chain of modules split at given points.

        Ranks are numbered by position, then replica, then within the stage's width.

        Args:
            modules: Names of all modules in the order of the forward pass.
            cuts: Index of the first module of each stage but the first.
            style: Style of the timetable (`STYLES`); "2bw" keeps two versions of the weights.
            microbatches: Number of microbatches per update.
            microbatch_size: Number of samples per microbatch.
            replicas: Number of data-parallel pipelines.
            width: Tensor-parallel ranks per stage, one number for all positions or one for each.
            splits: Values that are sharded over the ranks of a stage.
            chunks: Stages per position of an interleaved timetable. Defaults to 2.
            depths: Microbatches in flight at each position. Defaults to the style's own.
            edges: Pairs of stages between which activations are sent. Defaults to a chain.
            recompute: Whether all stages keep only their inputs and recompute the rest.
            exchange: When replicas exchange gradients.

        Raises:
            PlanError: A stage has no modules, positions cannot share the stages evenly, or raised by `check_itself`
                and the style.
        """
        bounds = [0, *cuts, len(modules)]
        if any(later <= earlier for earlier, later in itertools.pairwise(bounds)):
            raise PlanError(
                f"cuts are {list(cuts)} for {len(modules)} modules; expected rising numbers from 1 to "
                f"{len(modules) - 1}"
            )
        each = (2 if chunks is None else chunks) if style == "interleaved" else 1
        count = len(bounds) - 1
        if each < 1 or count % each:
            raise PlanError(f"got {count} stages, {each} a position; expected a multiple of {each} stages")
        positions = count // each
        widths = [width] * positions if isinstance(width, int) else list(width)
        if len(widths) != positions or min(widths) < 1:
            raise PlanError(
                f"width is {width}; expected a number of ranks, or one for each of {positions} positions"
            )
        first = [replicas * sum(widths[:p]) for p in range(positions + 1)]
        found = timetable(style, positions, microbatches, depths=depths, chunks=chunks)
        plan = cls(
            world_size=first[-1],
            planner="by hand",
            style=style,
            stages=tuple(
                Stage(
                    modules=tuple(modules[bounds[s] : bounds[s + 1]]),
                    position=s % positions,
                    recompute=recompute,
                )
                for s in range(count)
            ),
            ranks=tuple(
                tuple(
                    tuple(range(first[p] + replica * own, first[p] + (replica + 1) * own))
                    for replica in range(replicas)
                )
                for p, own in enumerate(widths)
            ),
            microbatches=microbatches,
            microbatch_size=microbatch_size,
            timetable=found,
            splits=tuple(splits),
            edges=tuple(edges),
            weight_versions=2 if style == "2bw" else 1,
            exchange=exchange,
            depths=tuple(in_flight(row, microbatches) for row in found),
        )
        plan.check_itself()
        return plan

    @property
    def positions(self) -> int:
        """Number of positions."""
        return len(self.ranks)

    @property
    def replicas(self) -> int:
        """Number of data-parallel pipelines."""
        return len(self.ranks[0])

    @property
    def all_edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of stages between which activations are sent, including those of a plain chain."""
        return self.edges or tuple((s, s + 1) for s in range(len(self.stages) - 1))

    def width_of(self, stage: int) -> int:
        """Number of ranks that share a stage."""
        return len(self.ranks[self.stages[stage].position][0])

    def layout_of(self, module: str, stage: int, replica: int, dims: int) -> Sharding:
        """Layout of a value on the ranks of a stage that computes or reads it.

        Args:
            module: Module that computes the value.
            stage: Stage whose ranks hold it.
            replica: Index of the pipeline.
            dims: Number of dimensions of the value.

        Raises:
            PlanError: The value lacks a dimension that is split.
        """
        ranks = self.ranks[self.stages[stage].position][replica]
        split = next((one for one in self.splits if (one.module, one.stage) == (module, stage)), None)
        if split is not None and split.dim is not None and split.dim >= dims:
            raise PlanError(
                f"stage {stage} splits dimension {split.dim} of the output of module {module!r}, which has {dims} - at "
                f"`$.splits[{self.splits.index(split)}]`; expected one of its dimensions"
            )
        return Sharding(
            mesh=(len(ranks),),
            ranks=ranks,
            dims=tuple((0,) if split is not None and split.dim == dim else () for dim in range(dims)),
            partial=(0,) if split is not None and split.dim is None else (),
        )

    def place_of(self, rank: int) -> tuple[int, int, int]:
        """Position, replica and index within the width of a rank.

        Raises:
            PlanError: The rank belongs to no stage.
        """
        for position, replicas in enumerate(self.ranks):
            for replica, own in enumerate(replicas):
                if rank in own:
                    return position, replica, own.index(rank)
        raise PlanError(f"rank {rank} has no stage; expected one of 0 to {self.world_size - 1}")

    def steps(self, position: int, updates: int = 1) -> list[StagePass]:
        """Passes of a position in several updates; the first fills the pipeline and the last drains it."""
        return list(unroll(self.timetable[position], self.microbatches, updates))

    @property
    def headline(self) -> str:
        """Stages, ranks and timetable, and the simulated time of an update in seconds."""
        said = (
            f"stages plan by {self.planner!r} for {self.world_size} ranks: {_many(len(self.stages), 'stage')} at "
            f"{_many(self.positions, 'position')}, {_many(self.replicas, 'replica')}, "
            f"{_many(self.microbatches, 'microbatch', 'es')} of {_many(self.microbatch_size, 'sample')}, timetable "
            f"{self.style}"
        )
        return said + (
            f", an update takes {self.predicted_s:.4g} s simulated" if self.predicted_s > 0 else ""
        )

    def check_itself(self) -> None:
        """Raise if stages, ranks or the timetable are inconsistent; see `Plan.check_itself`.

        Every stage runs each microbatch forward once and then backward once, no position keeps more activations than
        `depths` allows, and there are no deadlocks.
        """
        Plan.check_itself(self)
        for faults in (
            self._value_faults,
            self._rank_faults,
            self._stage_faults,
            self._split_faults,
            self._timetable_faults,
        ):
            for fault in faults():
                raise PlanError(fault)
        updates = _UPDATES if self.weight_versions > 1 else 1
        order_passes([self.steps(position, updates) for position in range(self.positions)], self.all_edges)

    def _value_faults(self) -> Iterator[str]:
        if self.style not in STYLES and self.style != "custom":
            yield f"style is {self.style!r} - at `$.style`; expected custom or one of: {', '.join(STYLES)}"
        for name in ("microbatches", "microbatch_size"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)} - at `$.{name}`; expected at least 1"
        if self.exchange == "hidden" and self.weight_versions == 1:
            yield (
                "exchange is 'hidden' with one version of the weights - at `$.exchange`; the next update needs its "
                "result at once, expected 'end' or two versions"
            )
        if not isfinite(self.predicted_s) or self.predicted_s < 0:
            yield f"predicted_s is {self.predicted_s} - at `$.predicted_s`; expected finite seconds of at least 0"
        lengths = {
            "predicted_bytes": self.positions,
            "pass_s": len(self.stages),
            "message_s": len(self.all_edges),
        }
        for name, length in lengths.items():
            found = getattr(self, name)
            figures = list(itertools.chain(*found) if name == "pass_s" else found)
            if found and (len(found) != length or not all(isfinite(one) and one >= 0 for one in figures)):
                yield f"{name} is {list(found)} - at `$.{name}`; expected {length} entries, finite and at least 0"

    def _rank_faults(self) -> Iterator[str]:
        shapes = [[len(own) for own in replicas] for replicas in self.ranks]
        for position, shape in enumerate(shapes):
            if not shape or len(shape) != len(shapes[0]) or min(shape) < 1 or len(set(shape)) != 1:
                yield (
                    f"position {position} has replicas of {shape} ranks - at `$.ranks[{position}]`; expected "
                    f"{max(len(shapes[0]), 1)} replicas of as many ranks each"
                )
        used = sorted(rank for replicas in self.ranks for own in replicas for rank in own)
        if len(used) != self.world_size or used != list(range(self.world_size)):
            yield (
                f"positions have the ranks {used[:16]} - at `$.ranks`; expected each of 0 to {self.world_size - 1} once"
            )

    def _stage_faults(self) -> Iterator[str]:
        seen: dict[str, int] = {}
        for number, stage in enumerate(self.stages):
            where = f"stage {number} - at `$.stages[{number}]`"
            if not stage.modules:
                yield f"{where}: has no modules; expected at least one"
            for name in stage.modules:
                if name in seen:
                    yield f"{where}: module {name!r} is also in stage {seen[name]}; expected each module once"
                seen[name] = number
            if not 0 <= stage.position < self.positions:
                yield f"{where}: position is {stage.position}; expected 0 to {self.positions - 1}"
        idle = set(range(self.positions)) - {stage.position for stage in self.stages}
        if idle:
            yield f"position {min(idle)} has no stage - at `$.stages`; expected at least one for each position"
        for number, (source, target) in enumerate(self.edges):
            if not 0 <= source < target < len(self.stages):
                yield (
                    f"edge {source} -> {target} - at `$.edges[{number}]`; expected two stages of 0 to "
                    f"{len(self.stages) - 1} in the order of the forward pass"
                )
        if len(set(self.edges)) != len(self.edges):
            yield "an edge stands twice - at `$.edges`; expected each pair of stages once"

    def _split_faults(self) -> Iterator[str]:
        makers = {module: number for number, stage in enumerate(self.stages) for module in stage.modules}
        dims: dict[tuple[str, int], int | None] = {}
        for number, one in enumerate(self.splits):
            where = f"split of {one.module!r} at stage {one.stage} - at `$.splits[{number}]`"
            maker = makers.get(one.module)
            if maker is None:
                yield f"{where}: no stage has this module; expected one of the plan's"
            elif one.stage != maker and (maker, one.stage) not in self.all_edges:
                yield f"{where}: no activations travel there from stage {maker}; expected one that makes or takes it"
            elif self.width_of(one.stage) == 1:
                yield f"{where}: one rank has the stage; expected several, or no split"
            elif one.dim is not None and one.dim < 0:
                yield f"{where}: dim is {one.dim}; expected at least 0"
            elif one.dim is None and one.stage != maker:
                yield f"{where}: a stage cannot take partial sums; expected a dim"
            elif (one.module, one.stage) in dims:
                yield f"{where}: stands there twice; expected one split of a value at a stage"
            dims[one.module, one.stage] = -1 if one.dim is None else one.dim
        for (module, stage), dim in dims.items():
            maker = makers[module]
            for source, target in self.all_edges:
                if source != maker or self.stages[source].position != self.stages[target].position:
                    continue
                if stage in (source, target) and dims.get((module, source)) != dims.get((module, target)):
                    yield (
                        f"stages {source} and {target} of one position have {module!r} in parts that differ, dimension "
                        f"{dim} at stage {stage} - at `$.splits`; expected the same at both, without partial sums"
                    )

    def _timetable_faults(self) -> Iterator[str]:
        if len(self.timetable) != self.positions or len(self.depths) != self.positions:
            yield (
                f"there are {len(self.timetable)} rows of actions and {len(self.depths)} depths - at `$.timetable` and "
                f"`$.depths`; expected {self.positions} of each, one for each position"
            )
            return
        for position, row in enumerate(self.timetable):
            where = f"position {position} - at `$.timetable[{position}]`"
            own = [number for number, stage in enumerate(self.stages) if stage.position == position]
            if fault := next(self._row_faults(row, own), ""):
                yield f"{where}: {fault}"
                return
            if (most := in_flight(row, self.microbatches)) > self.depths[position]:
                yield (
                    f"{where}: keeps {most} activations at once; expected at most {self.depths[position]}, as "
                    f"`$.depths[{position}]` says"
                )

    def _row_faults(self, row: Sequence[StageAction], stages: list[int]) -> Iterator[str]:
        limit = self.microbatches * self.weight_versions
        passes: dict[tuple[str, int, int], int] = {}
        for place, action in enumerate(row):
            if action.stage not in stages:
                yield f"action {place} is {action}, which another position has; its stages are {stages}"
            if not 0 <= action.microbatch < limit:
                yield f"action {place} is {action}; expected microbatches 0 to {limit - 1}"
            key = (action.kind, action.stage, action.microbatch % self.microbatches)
            if key in passes:
                yield f"action {place} is {action} once more; expected it once in an update"
            passes[key] = place
        if sum(action.kind == "F" for action in row) < self.microbatches * len(stages):
            yield f"a forward pass is missing; expected {self.microbatches} microbatches in each of stages {stages}"
        for kind, stage, microbatch in passes:
            if kind == "F" and ("B", stage, microbatch) not in passes:
                if {("I", stage, microbatch), ("W", stage, microbatch)} - passes.keys():
                    yield f"stage {stage} has no backward pass over microbatch {microbatch}; expected B, or I and W"
            elif kind == "B" and {("I", stage, microbatch), ("W", stage, microbatch)} & passes.keys():
                yield f"stage {stage} passes microbatch {microbatch} backward twice; expected B, or I and W"
        done: set[StagePass] = set()
        for step in unroll(row, self.microbatches, self.weight_versions):
            first = {"B": "F", "I": "F", "W": "I"}.get(step.kind)
            if first and step._replace(kind=first) not in done:  # type: ignore[arg-type]
                yield f"{step} comes before its {first}; expected it behind"
            done.add(step)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per position: ranks, stages, activations, the first actions."""
        rows = []
        for position, row in enumerate(self.timetable):
            own = [(n, stage) for n, stage in enumerate(self.stages) if stage.position == position]
            said = " ".join(f"{a.kind}{a.microbatch}" for a in row[:_SHOWN])
            rows.append(
                [
                    str(position),
                    " ".join(",".join(map(str, ranks)) for ranks in self.ranks[position]),
                    " ".join(str(number) for number, _ in own),
                    str(sum(len(stage.modules) for _, stage in own)),
                    str(self.depths[position]),
                    " ".join("yes" if stage.recompute else "no" for _, stage in own),
                    said + (" ..." if len(row) > _SHOWN else ""),
                ]
            )
        return ["position", "ranks", "stages", "modules", "activations", "recompute", "timetable"], rows


def _many(count: int, noun: str, ending: str = "s") -> str:
    return f"{count} {noun}{ending * (count != 1)}"
