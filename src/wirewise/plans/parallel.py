"""Placement of the operators of a training step and shardings of their tensors: automatic parallel plans.

A plan is for the graph of a whole step (`trace.operator_graph`), forward and backward, and assigns to every node, by
index, the stage that runs it and the placement of its output on the mesh of that stage. Placements, one for each
dimension of the mesh, are `R` (every rank has the whole), `P` (ranks have partial sums), `S1` (dimension 1 is split
into equal shards) and `S1/3` (dimension 1 is split into 3 equal blocks, each of which is sharded: torch's strided
shard with split factor 3).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from math import isfinite, prod
from typing import ClassVar, Literal, NamedTuple, get_args

import msgspec

from wirewise.errors import InputError, PlanError
from wirewise.plans.base import Plan
from wirewise.units import format_size

__all__ = [
    "BlockChoice",
    "DimPlacement",
    "Move",
    "MoveKind",
    "MoveStep",
    "ParallelPlan",
    "joint_step",
    "parse_placements",
]

MoveKind = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "slice", "send"]
"""Kinds of layout changes: a collective along one mesh dimension, a slice of what a rank already holds, or a message
from each rank of a stage to its counterpart in another stage."""

_WORD = re.compile(r"R|P|S(\d+)(?:/(\d+))?")
_SHOWN = 40


class DimPlacement(NamedTuple):
    """Placement of a tensor along one mesh dimension."""

    kind: Literal["R", "P", "S"]
    """Replicated, partial sums, or sharded."""
    dim: int = -1
    """Sharded dimension of the tensor; -1 if there is none."""
    factor: int = 1
    """Number of equal blocks of that dimension, each of which is sharded on its own."""

    def __str__(self) -> str:
        """The word that `parse_placements` reads."""
        return self.kind if self.kind != "S" else f"S{self.dim}" + f"/{self.factor}" * (self.factor > 1)


def parse_placements(words: Sequence[str]) -> tuple[DimPlacement, ...]:
    """Parse placements from words, one for each mesh dimension.

    Raises:
        InputError: A word is not a placement.
    """
    found = []
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None or match[2] in ("0", "1"):
            raise InputError(f"got the placement {word!r}; expected R, P, S and a dimension, or such as S1/3")
        cut = (int(match[1]), int(match[2] or 1)) if match[1] else (-1, 1)
        found.append(DimPlacement(word[0], *cut))  # type: ignore[arg-type]
    return tuple(found)


class MoveStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Step of a move: a collective, slice or message."""

    kind: MoveKind
    mesh_dim: int = -1
    """Mesh dimension of the collective, or -1 for a message between stages."""
    size_bytes: int = 0
    """Size of the largest tensor of a rank in the step, in bytes, for one microbatch: the partial sum of an all-reduce
    or a reduce-scatter, the result of an all-gather, the input of an all-to-all, or the message of a send."""
    sent_bytes: int = 0
    """Bytes that a rank sends for one microbatch, by a ring if there is a choice."""


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New layout of a node's output, shared by some of its users.

    Users that are in no move of a producer read its output in the original layout. Steps run in order and result in
    the layout `target`. If several moves bring a tensor to one stage, each begins with the same `send`, and only the
    first of them counts its bytes.
    """

    producer: int
    """Index of the node that produces the tensor."""
    consumers: tuple[int, ...]
    """Indices of the nodes that read it in this layout, all of one stage, ascending; a node that reads it twice does so
    both times."""
    source: tuple[str, ...]
    """Placement of the producer's output, [mesh dimensions]."""
    target: tuple[str, ...]
    """Placement that the consumers read, [mesh dimensions]."""
    steps: tuple[MoveStep, ...]
    once: bool = False
    """Whether it runs once, on the sum over all microbatches, as for parameter gradients."""


def joint_step(steps: Sequence[MoveStep]) -> MoveStep:
    """Merge several steps of a kind into one collective."""
    size, sent = sum(step.size_bytes for step in steps), sum(step.sent_bytes for step in steps)
    return msgspec.structs.replace(steps[0], size_bytes=size, sent_bytes=sent)


class BlockChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sharding of a block of the model, in words."""

    block: str
    """Qualified names of the modules, such as `blocks.0-11.mlp`."""
    strategy: str
    """Strategy in words, such as "columns then rows on `model`, one all-reduce forward, one backward"."""


class ParallelPlan(Plan, frozen=True, kw_only=True, tag="parallel"):
    """Stage, placement and moves of every node of a training step.

    How it is executed: node by node in the order of the graph. A rank of the node's stage takes each input as its
    producer left it, or as the move to this node makes it, computes the operator on what it has, and has the output as
    `placements` says; sizes in the arguments of views and factories are those of its part. Some operators compute
    differently on parts, and a placement says so: `embedding` with a weight of placement S0 looks up the rows that it
    has and gives zeros for others (output P), and its backward makes the rows of S0; `nll_loss_forward` of classes in
    parts adds the targets that it has (output P), and its backward writes those that it has; `_softmax`,
    `_log_softmax` and their backward operators over a dimension that is cut exchange maximum and sum of each row
    (`inner`), as a mean of `nll_loss_forward` over cut rows exchanges the sum of weights. A `mean` over what is cut
    gives partial sums of the mean of all. `gradients` of the graph end as their parameters are placed. Where a plan has
    several microbatches, the graph is that of the whole batch: node numbers are those of a microbatch's graph too.
    """

    family: ClassVar[str] = "parallel"

    graph: str
    """Digest of the planned graph (`OperatorGraph.digest`)."""
    mesh: tuple[int, ...]
    """Ranks along each dimension of a stage's mesh."""
    mesh_names: tuple[str, ...]
    """Names of the dimensions, such as data and model, [mesh dimensions]."""
    ranks: tuple[tuple[int, ...], ...]
    """Ranks of each stage in row-major order of the mesh, [stages, product of `mesh`]."""
    microbatches: int = 1
    """Number of equal parts of the batch, processed in order with gradient accumulation."""
    stage_of: tuple[int, ...]
    """Stage of each node, [nodes]; mostly a backward node is in the stage of its forward node."""
    placements: tuple[tuple[str, ...], ...]
    """Placement of each node's output, [nodes, mesh dimensions]. Of a node with several outputs a word holds that of
    each, such as `S0,S0,R`."""
    moves: tuple[Move, ...] = ()
    """Layout changes of outputs, in the order of their producers."""
    buckets: tuple[tuple[int, ...], ...] = ()
    """Moves, by number, that are sent as one message as soon as the last of their tensors is ready: sums of
    gradients, each a single all-reduce along the same dimension of the mesh. Plans of one stage and one microbatch
    may have them."""
    inner: dict[int, tuple[MoveStep, ...]] = msgspec.field(default_factory=dict)
    """Collectives inside nodes that compute over a sharded dimension, by node index."""
    recompute: tuple[int, ...] = ()
    """Forward nodes whose outputs are recomputed in the backward pass instead of kept."""
    level: Literal["O2", "O3", "by hand"] = "by hand"
    """Search level: segment by segment (O2), or the whole graph at once (O3)."""
    predicted_step_s: float = 0.0
    """Simulated seconds of a step."""
    bound_s: float = 0.0
    """Lower bound for these ranks, in seconds, if all compute all the time; 0 if unknown."""
    gap: float = 0.0
    """Bound on how much more the shardings cost than the best ones for the same stages, mesh and microbatches, as a
    fraction; costs are all operators and moves of a rank in sequence."""
    memory_bytes: tuple[int, ...] = ()
    """Peak memory of each rank: parameters, gradients, optimizer state and activations, in bytes, [world size]."""
    choices: tuple[BlockChoice, ...] = ()
    why: tuple[str, ...] = ()
    """Sentences that explain the plan."""
    notes: tuple[str, ...] = ()
    """Notes for the user, such as operators without a rule, which are not split."""

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.ranks)

    @property
    def collectives(self) -> list[tuple[int, MoveStep, int]]:
        """Node, step and number of executions per training step, for everything that sends bytes."""
        often = self.microbatches
        found = [
            (move.producer, step, 1 if move.once else often) for move in self.moves for step in move.steps
        ]
        found += [(node, step, often) for node, steps in self.inner.items() for step in steps]
        return sorted((one for one in found if one[1].sent_bytes), key=lambda one: one[0])

    @property
    def collective_bytes(self) -> int:
        """Bytes that all ranks send per training step."""
        width = prod(self.mesh)
        return sum(step.sent_bytes * often * width for _, step, often in self.collectives)

    def placement_of(self, node: int, part: int = 0) -> tuple[DimPlacement, ...]:
        """Placement of an output of a node.

        Args:
            node: Index of the node.
            part: Index of the output, if there are several.
        """
        words = (word.split(",") for word in self.placements[node])
        return parse_placements([word[part] if len(word) > 1 else word[0] for word in words])

    def place_of(self, rank: int) -> tuple[int, tuple[int, ...]]:
        """Stage of a rank, and its coordinate along each mesh dimension.

        Raises:
            PlanError: The rank belongs to no stage.
        """
        for stage, own in enumerate(self.ranks):
            if rank in own:
                number, place = own.index(rank), list[int]()
                for size in reversed(self.mesh):
                    number, last = divmod(number, size)
                    place.append(last)
                return stage, tuple(reversed(place))
        raise PlanError(f"rank {rank} has no stage; expected one of 0 to {self.world_size - 1}")

    def check_graph(self, digest: str, nodes: int) -> None:
        """Raise if the plan was made for another graph, or lacks some of its nodes.

        Args:
            digest: Digest of the graph.
            nodes: Number of its nodes.

        Raises:
            PlanError: The digest or the number of nodes differs; the message names both.
        """
        if digest != self.graph:
            raise PlanError(
                f"plan {self.planner!r} was made for the graph {self.graph!r} - at `$.graph`; this one is {digest!r}: "
                "the model, its batch or the version of torch differs, make the plan again"
            )
        if len(self.placements) != nodes:
            raise PlanError(
                f"plan {self.planner!r} has {len(self.placements)} entries - at `$.placements` and `$.stage_of`; "
                f"expected one for each of the {nodes} nodes of the graph, make the plan again"
            )

    @property
    def headline(self) -> str:
        """Stages, mesh and microbatches, and the simulated step time in seconds."""
        mesh = " x ".join(f"{size} {name}" for size, name in zip(self.mesh, self.mesh_names, strict=True))
        said = (
            f"parallel plan by {self.planner!r} for {self.world_size} ranks: {self.stages} "
            f"stage{'s' * (self.stages > 1)} of {mesh}, {self.microbatches} microbatch{'es' * (self.microbatches > 1)}"
        )
        return said + (
            f", a step takes {self.predicted_step_s:.4g} s simulated" if self.predicted_step_s > 0 else ""
        )

    def check_itself(self) -> None:
        """Raise if stages, placements or moves are inconsistent; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in itertools.chain(
            self._rank_faults(),
            self._value_faults(),
            self._node_faults(),
            self._move_faults(),
            self._bucket_faults(),
        ):
            raise PlanError(fault)

    def _rank_faults(self) -> Iterator[str]:
        if not self.mesh or min(self.mesh) < 1 or len(self.mesh_names) != len(self.mesh):
            yield (
                f"the mesh is {list(self.mesh)}, its names {list(self.mesh_names)} - at `$.mesh`; expected a name for "
                "each dimension of at least one rank"
            )
        for stage, own in enumerate(self.ranks):
            if len(own) != prod(self.mesh):
                yield f"stage {stage} has {len(own)} ranks - at `$.ranks[{stage}]`; expected {prod(self.mesh)}"
        used = sorted(itertools.chain.from_iterable(self.ranks))
        if len(used) != self.world_size or used != list(range(self.world_size)):
            yield (
                f"stages have the ranks {used[:16]} - at `$.ranks`; expected each of 0 to {self.world_size - 1} once"
            )

    def _value_faults(self) -> Iterator[str]:
        if self.microbatches < 1:
            yield f"microbatches is {self.microbatches} - at `$.microbatches`; expected at least 1"
        for name in ("predicted_step_s", "bound_s", "gap"):
            if not isfinite(value := getattr(self, name)) or value < 0:
                yield f"{name} is {value} - at `$.{name}`; expected a finite figure of at least 0"
        if self.memory_bytes and (len(self.memory_bytes) != self.world_size or min(self.memory_bytes) < 0):
            yield (
                f"memory_bytes has {len(self.memory_bytes)} entries - at `$.memory_bytes`; expected {self.world_size} "
                "of at least 0, one for each rank"
            )

    def _node_faults(self) -> Iterator[str]:
        nodes = len(self.placements)
        if len(self.stage_of) != nodes or not nodes:
            yield (
                f"there are {len(self.stage_of)} stages for {nodes} placements - at `$.stage_of` and `$.placements`; "
                "expected one of each for every node"
            )
        for number, stage in enumerate(self.stage_of):
            if not 0 <= stage < self.stages:
                yield f"node {number} is at stage {stage} - at `$.stage_of[{number}]`; expected 0 to {self.stages - 1}"
        for number, words in enumerate(self.placements):
            where = f"`$.placements[{number}]`"
            yield from self._word_faults([part for word in words for part in word.split(",")], where)
            if len(words) != len(self.mesh):
                yield f"node {number} has {len(words)} words - at {where}; expected {len(self.mesh)}"
        for number in self.recompute:
            if not 0 <= number < nodes:
                yield f"there is no node {number} - at `$.recompute`; expected numbers from 0 to {nodes - 1}"

    def _word_faults(self, words: Sequence[str], where: str) -> Iterator[str]:
        try:
            parse_placements(words)
        except InputError as cause:
            yield f"{cause} - at {where}"

    def _move_faults(self) -> Iterator[str]:
        nodes, seen = len(self.placements), set[tuple[int, int]]()
        for number, move in enumerate(self.moves):
            where = f"`$.moves[{number}]`"
            ends = (move.producer, *move.consumers)
            if not move.consumers or any(not 0 <= node < nodes for node in ends):
                yield f"it goes from node {move.producer} to {list(move.consumers)} - at {where}; expected known nodes"
                return
            if len({self.stage_of[node] for node in move.consumers}) > 1:
                yield f"its consumers are of several stages - at {where}; expected one stage, or a move for each"
            if move.source != self.placements[move.producer]:
                yield (
                    f"it takes {list(move.source)} - at {where}; node {move.producer} leaves "
                    f"{list(self.placements[move.producer])}"
                )
            if len(move.target) != len(self.mesh):
                yield f"its target has {len(move.target)} words - at {where}; expected {len(self.mesh)}"
            yield from self._word_faults(move.target, where)
            for consumer in move.consumers:
                if (move.producer, consumer) in seen:
                    yield f"node {consumer} takes node {move.producer} in two ways - at {where}; expected one move"
                seen.add((move.producer, consumer))
            for step in move.steps:
                yield from self._step_faults(step, where)
        for node, steps in self.inner.items():
            if not 0 <= node < nodes:
                yield f"there is no node {node} - at `$.inner`; expected numbers from 0 to {nodes - 1}"
            for step in steps:
                yield from self._step_faults(step, f"`$.inner[{node}]`")

    def _bucket_faults(self) -> Iterator[str]:
        if self.buckets and (self.stages > 1 or self.microbatches > 1):
            yield (
                f"there are buckets, {self.stages} stages and {self.microbatches} microbatches - at `$.buckets`; "
                "expected buckets with one of each alone"
            )
        seen, end = set[int](), (len(self.placements) - 1,)
        for place, bucket in enumerate(self.buckets):
            where = f"`$.buckets[{place}]`"
            for number in bucket:
                if not 0 <= number < len(self.moves) or number in seen:
                    yield f"it has move {number} - at {where}; expected numbers of moves, each once"
                    return
                seen.add(number)
                move = self.moves[number]
                if move.consumers != end or [step.kind for step in move.steps] != ["all_reduce"]:
                    yield f"move {number} sums no gradient - at {where}; expected one all-reduce to the output"
                    return
            if len({self.moves[number].steps[0].mesh_dim for number in bucket}) != 1:
                yield f"its moves go along several dimensions of the mesh, or there are none - at {where}; expected one"

    def _step_faults(self, step: MoveStep, where: str) -> Iterator[str]:
        least = -1 if step.kind == "send" else 0
        if not least <= step.mesh_dim < len(self.mesh) or step.size_bytes < 0 or step.sent_bytes < 0:
            yield (
                f"a step {step.kind} along {step.mesh_dim} of {step.size_bytes} bytes, {step.sent_bytes} sent - at "
                f"{where}; expected a dimension of the mesh and bytes of at least 0"
            )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per sharded block; without blocks, one per kind of move."""
        if self.choices:
            shown = [[one.block, one.strategy] for one in self.choices[:_SHOWN]]
            more = len(self.choices) - len(shown)
            return ["block", "strategy"], shown + ([["...", f"{more} more"]] if more > 0 else [])
        rows = []
        for kind in get_args(MoveKind):
            own = [(step, often) for _, step, often in self.collectives if step.kind == kind]
            if own:
                sent = sum(step.sent_bytes * often for step, often in own)
                rows.append([kind, str(sum(often for _, often in own)), format_size(sent)])
        return ["move", "times a step", "bytes a rank sends"], rows or [["none", "0", "0 B"]]
