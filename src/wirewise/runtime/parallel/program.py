"""Execution of one rank's part of a parallel plan: its stage's operators on its shards, and the plan's moves.

A pass is the forward or the backward part of one microbatch. Moves start as soon as their tensor is ready and are
waited for where it is used, so gradient communication overlaps with the rest of the backward pass; moves of
parameters and inputs are prefetched one ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, fx

from wirewise.errors import PlanError
from wirewise.plans.parallel import DimPlacement, Move, ParallelPlan, parse_placements
from wirewise.runtime.parallel.groups import InFlightTensor, MeshGroups, start_move
from wirewise.runtime.parallel.local import LocalOperator, draws_random_numbers, local_operator
from wirewise.runtime.parallel.parts import Placements, local_shape, part_of_mesh
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["CapturedStep", "Messages", "MicrobatchMath", "Phase", "RankExecutor", "Values"]

Phase = Literal["forward", "backward"]

_HELD = ("input", "parameter", "buffer", "constant")


class CapturedStep(Protocol):
    """Training step as an operator graph, and as an executable module."""

    @property
    def module(self) -> fx.GraphModule:
        """Module whose nodes have the names of the graph's."""
        ...

    @property
    def graph(self) -> OperatorGraph:
        """Graph for planners."""
        ...


class MicrobatchMath(Protocol):
    """Computation of a microbatch's part of the batch's results."""

    def run(
        self,
        number: int,
        function: Callable[..., Any],
        inputs: Mapping[fx.Node, Any],
        values: Mapping[int, Any],
    ) -> Any:
        """Compute a node, by index, from its inputs and from values of the batch."""
        ...


class Messages(Protocol):
    """Messages between the ranks at the same mesh coordinates of two stages."""

    def send(self, move: int, microbatch: int, target: int, tensor: Tensor) -> None:
        """Start sending the tensor of a move to another stage."""
        ...

    def receive(
        self, move: int, microbatch: int, source: int, shape: tuple[int, ...], dtype: str
    ) -> InFlightTensor:
        """Start receiving the tensor of a move."""
        ...


class Values:
    """Values of one microbatch that a rank holds between its passes.

    Args:
        microbatch: Index of the microbatch.
        left: Number of remaining uses of each output, by node index.
        moves_left: Number of remaining uses of each move's result.
    """

    def __init__(self, microbatch: int, left: Mapping[int, int], moves_left: Mapping[int, int]) -> None:
        self.microbatch = microbatch
        self.found: dict[int, Any] = {}
        self.moves: dict[int, InFlightTensor] = {}
        self.gathered: dict[int, Tensor] = {}
        """Tensors of moves whose buckets are not full, by number of the move."""
        self.of_batch: Mapping[int, Any] = {}
        """This rank's parts of what was computed of the whole batch, by number of the node."""
        self._left, self._moves_left = dict(left), dict(moves_left)

    def keep(self, number: int, value: Any, times: int | None = None) -> None:
        """Hold an output until all of its uses."""
        if times is not None:
            self._left[number] = times
        if self._left.get(number, 0):
            self.found[number] = value

    def done(self, number: int) -> None:
        """Count a use of an output."""
        self._left[number] -= 1
        if self._left[number] <= 0:
            self.found.pop(number, None)

    def needs_move(self, number: int) -> bool:
        """Whether a move's result is still needed, and the move has not been started."""
        return self._moves_left.get(number, 0) > 0 and number not in self.moves

    def use_move(self, number: int) -> None:
        """Count a use of a move's result."""
        self._moves_left[number] -= 1
        if self._moves_left[number] <= 0:
            self.moves.pop(number, None)


class RankExecutor:
    """Executor of one rank's part of a step.

    Args:
        step: Captured step of a microbatch.
        plan: Plan of the step.
        groups: This rank's mesh.
        stage: This rank's stage.
        messages: Messages between stages, if the plan has several.
        math: Computation of batch results from microbatches. None if the microbatch is the batch.

    Raises:
        PlanError: The plan is for another graph, or cannot be executed; the message names the node.
    """

    def __init__(
        self,
        step: CapturedStep,
        plan: ParallelPlan,
        groups: MeshGroups,
        stage: int = 0,
        messages: Messages | None = None,
        math: MicrobatchMath | None = None,
    ) -> None:
        self._math = math
        self.graph, self.plan, self.groups, self.stage = step.graph, plan, groups, stage
        self._messages, self._module = messages, step.module
        if len(plan.placements) != len(step.graph.nodes):
            raise PlanError(
                f"the plan has {len(plan.placements)} nodes, the graph {len(step.graph.nodes)}; expected a plan of "
                "this graph: the model, its batch or the version of torch differs, make the plan again"
            )
        named = {node.name: node for node in step.module.graph.nodes}
        self.nodes: list[fx.Node] = [named[node.name] for node in step.graph.nodes]
        self._of = {node: number for number, node in enumerate(self.nodes)}
        self.takes = {
            (move.producer, consumer): number
            for number, move in enumerate(plan.moves)
            for consumer in move.consumers
        }
        """Index of the move that brings an output to a node, by both nodes."""
        self.recompute = frozenset(plan.recompute)
        self._check()
        own = [number for number, stage_of in enumerate(plan.stage_of) if stage_of == stage]
        used = {source for number in own for source in self._node(number).inputs}
        self.held = [
            number
            for number, node in enumerate(step.graph.nodes)
            if node.op in _HELD
            and (plan.stage_of[number] == stage or (node.op != "parameter" and number in used))
        ]
        """Tensors of the batch, parameters, buffers and constants that this stage takes."""
        computing = [number for number in own if self.nodes[number].op == "call_function"]
        self._functions = {number: self._function(number) for number in computing}
        self._passes: dict[Phase, list[int]] = {
            "forward": [n for n in computing if self._node(n).phase == "forward"],
            "backward": [n for n in computing if self._node(n).phase == "backward"],
        }
        self._ends = {*step.graph.gradients.values(), *step.graph.buffers.values(), step.graph.loss}
        self._end = len(self.nodes) - 1
        ends = {"parameter": step.graph.gradients, "buffer": step.graph.buffers}
        self._owner = {
            ends[node.op][node.source]: number
            for number, node in enumerate(step.graph.nodes)
            if node.op in ends and node.source in ends[node.op]
        }
        self._starts: dict[int, list[int]] = {}
        for number, move in enumerate(plan.moves):
            here = plan.stage_of[move.producer] == stage
            if here and (self._goes_to(move) == stage or _sends(move)):
                self._starts.setdefault(move.producer, []).append(number)
        self._bucket_of = {number: own for own in plan.buckets for number in own}
        self._brought: dict[int, InFlightTensor] = {}
        self._count_uses(computing)

    def _node(self, number: int) -> OperatorNode:
        return self.graph.nodes[number]

    def placements(self, number: int, part: int = 0) -> Placements:
        """Placements of a node's output."""
        return self.plan.placement_of(number, part)

    def taken(self, producer: int, consumer: int) -> Placements:
        """Placements in which a node reads another's output."""
        move = self.takes.get((producer, consumer))
        return self.placements(producer) if move is None else parse_placements(self.plan.moves[move].target)

    def end_placements(self, number: int) -> Placements:
        """Final placements of an output of the step."""
        return self.taken(number, self._end)

    def values(self, microbatch: int, shards: Mapping[int, Tensor]) -> Values:
        """Initial values of a microbatch.

        Args:
            microbatch: Index of the microbatch.
            shards: This rank's shards of the tensors named by `shards`, by node index.
        """
        found = Values(microbatch, self._left, self._moves_left)
        for number, tensor in shards.items():
            found.keep(number, tensor)
        return found

    def begin(self) -> None:
        """Start a step, dropping the last step's shared moves."""
        self._brought.clear()

    def run(self, phase: Phase, values: Values, until: int | None = None) -> None:
        """Execute a pass of a microbatch.

        Args:
            phase: Forward or backward.
            values: Values of the microbatch so far.
            until: Last node to compute. Defaults to all.

        Raises:
            PeerError: A peer is gone.
        """
        self._receive(phase, values)
        if phase == "forward":
            for number in self.held:
                self._start_away(number, values)
        for number in self._passes[phase]:
            self._compute(number, values)
            if number == until:
                return

    def constants(self) -> dict[int, Tensor]:
        """This rank's shards of constants in the model's code, by node index."""
        return {
            number: part_of_mesh(
                getattr(self._module, str(self.nodes[number].target)),
                self.placements(number),
                self.groups.mesh,
                self.groups.place,
            )
            for number in self.held
            if self.nodes[number].op == "get_attr"
        }

    def end(self, number: int, values: Values) -> Tensor:
        """Wait for an output of the step in its final layout."""
        found: Tensor = self._input(number, self._end, values)
        return found

    def start_final_move(self, number: int, tensor: Tensor) -> InFlightTensor:
        """Start moving an output of the step to its final layout, once for all microbatches."""
        move = self.takes.get((number, self._end))
        return (
            InFlightTensor(lambda: tensor)
            if move is None
            else self._moving(self.plan.moves[move], tensor, -1, move)
        )

    def once(self, number: int) -> bool:
        """Whether an output of the step is moved once for all microbatches."""
        move = self.takes.get((number, self._end))
        return move is not None and self._waits(self.plan.moves[move])

    def end_stage(self, number: int) -> int:
        """Final stage of an output of the step: that of its parameter or buffer."""
        return self.plan.stage_of[self._owner.get(number, number)]

    def _waits(self, move: Move) -> bool:
        """Whether a move is left until all microbatches are there; what goes to another stage goes at once."""
        return move.once and self.plan.microbatches > 1 and not _sends(move)

    # Computing.

    def _compute(self, number: int, values: Values, *, again: bool = False) -> Any:
        node = self.nodes[number]
        got: dict[fx.Node, Any] = {
            source: self._input(self._of[source], number, values) for source in node.all_input_nodes
        }
        function = self._functions[number]
        if self._math is not None:
            found = self._math.run(number, function, got, values.of_batch)
        else:
            found = function(
                *fx.map_arg(node.args, got.__getitem__), **fx.map_arg(node.kwargs, got.__getitem__)
            )
        for source in node.all_input_nodes:
            self._took(self._of[source], number, values)
        if again:
            values.keep(number, found, self._again[number])
            return found
        values.keep(number, found)
        for move in self._starts.get(number, ()):
            if not self._waits(self.plan.moves[move]):
                self._start(move, found, values)
        return found

    def _value(self, number: int, values: Values) -> Any:
        if number not in values.found and number in self.recompute:
            return self._compute(number, values, again=True)
        return values.found[number]

    def _input(self, producer: int, consumer: int, values: Values) -> Any:
        move = self.takes.get((producer, consumer))
        if move is None:
            return self._value(producer, values)
        if move not in values.moves:
            self._start(move, self._value(producer, values), values)
        found = values.moves[move].wait()
        self._start_next(move, values)
        return found

    def _took(self, producer: int, consumer: int, values: Values) -> None:
        move = self.takes.get((producer, consumer))
        if move is None:
            values.done(producer)
        else:
            values.use_move(move)

    # Moving.

    def _start(self, move: int, tensor: Tensor, values: Values) -> None:
        one = self.plan.moves[move]
        if one.once and self._node(one.producer).op in _HELD:
            # A parameter is the same for all microbatches.
            if move not in self._brought:
                self._brought[move] = self._moving(one, tensor, values.microbatch, move)
            values.moves[move] = self._brought[move]
        elif move in self._bucket_of:
            self._gather(move, tensor, values)
        else:
            values.moves[move] = self._moving(one, tensor, values.microbatch, move)
        if self._goes_to(one) != self.stage:
            # All was sent; nothing here takes it.
            values.moves.pop(move)
        values.done(one.producer)

    def _gather(self, move: int, tensor: Tensor, values: Values) -> None:
        """Add a gradient to its bucket, which travels when it is full."""
        own, got = self._bucket_of[move], values.gathered
        got[move] = tensor
        if not all(number in got for number in own):
            return
        parts = [got.pop(number) for number in own]
        if len({part.dtype for part in parts}) > 1:
            raise PlanError(
                f"moves {', '.join(map(str, own))} carry tensors of several types - at `$.buckets`; expected one"
            )
        flat = torch.cat([part.reshape(-1) for part in parts])
        summed = self.groups.all_reduce(self.plan.moves[move].steps[0].mesh_dim, flat)
        at = 0
        for number, part in zip(own, parts, strict=True):
            values.moves[number] = InFlightTensor(partial(_cut_out, summed, at, part.shape))
            at += part.numel()

    def _start_next(self, move: int, values: Values) -> None:
        """Start the move of a parameter or an input that will be in use after this one."""
        following = self._following.get(move)
        # One whose users are all done may be the next by its first use: it must not travel again.
        if following is not None and values.needs_move(following):
            producer = self.plan.moves[following].producer
            if producer in values.found:
                self._start(following, values.found[producer], values)

    def _start_away(self, number: int, values: Values) -> None:
        """Start the moves of a parameter or an input to other stages."""
        for move in self._starts.get(number, ()):
            if self._goes_to(self.plan.moves[move]) != self.stage and number in values.found:
                self._start(move, values.found[number], values)

    def _goes_to(self, move: Move) -> int:
        """Stage that takes what a move brings."""
        taker = move.consumers[0]
        return self.end_stage(move.producer) if taker == self._end else self.plan.stage_of[taker]

    def _moving(self, move: Move, tensor: Tensor, microbatch: int, number: int) -> InFlightTensor:
        now, target = list(parse_placements(move.source)), parse_placements(move.target)
        found = InFlightTensor(lambda: tensor)
        kinds = [step.kind for step in move.steps]
        for place, step in enumerate(move.steps):
            if step.kind == "send":
                assert self._messages is not None
                to = self._goes_to(move)
                self._messages.send(number, microbatch, to, found.wait())
                return found
            after = _after(step.kind, target[step.mesh_dim])
            before, now[step.mesh_dim] = now[step.mesh_dim], after
            found = self._chained(found, step.mesh_dim, before, after, first=place == 0)
        if "send" not in kinds and tuple(now) != target:
            raise PlanError(
                f"a move of node {move.producer} ends as {' '.join(map(str, now))} - at `$.moves[{number}]`; expected "
                f"{' '.join(move.target)}"
            )
        return found

    def _chained(
        self, found: InFlightTensor, axis: int, before: DimPlacement, after: DimPlacement, *, first: bool
    ) -> InFlightTensor:
        if first:
            return start_move(self.groups, axis, found.wait(), before, after)
        return InFlightTensor(lambda: start_move(self.groups, axis, found.wait(), before, after).wait())

    def _receive(self, phase: Phase, values: Values) -> None:
        """Post what comes from other stages for this pass."""
        for number in self._receives[phase]:
            move = self.plan.moves[number]
            assert self._messages is not None
            now, target = list(parse_placements(move.source)), parse_placements(move.target)
            kinds = [step.kind for step in move.steps]
            if "send" not in kinds:
                raise PlanError(
                    f"no message brings node {move.producer} to another stage - at `$.moves[{number}]`; expected a send"
                )
            at = kinds.index("send")
            for step in move.steps[:at]:
                now[step.mesh_dim] = _after(step.kind, target[step.mesh_dim])
            node = self._node(move.producer)
            shape = local_shape(node.shape, tuple(now), self.plan.mesh)
            source = self.plan.stage_of[move.producer]
            found = self._messages.receive(number, values.microbatch, source, shape, node.dtype)
            for step in move.steps[at + 1 :]:
                after = _after(step.kind, target[step.mesh_dim])
                before, now[step.mesh_dim] = now[step.mesh_dim], after
                found = self._chained(found, step.mesh_dim, before, after, first=False)
            values.moves[number] = found

    # What is known before the first step.

    def _check(self) -> None:
        nodes, stages = self.graph.nodes, self.plan.stage_of
        for number, node in enumerate(nodes[:-1]):
            for source in node.inputs:
                # Batch, buffers and constants are on all ranks.
                known = nodes[source].op in _HELD and nodes[source].op != "parameter"
                move = self.takes.get((source, number))
                sent = move is not None and _sends(self.plan.moves[move])
                if stages[source] != stages[number] and not known and not sent:
                    raise PlanError(
                        f"no move brings {nodes[source].name!r} of stage {stages[source]} to {node.name!r} of stage "
                        f"{stages[number]} - at `$.moves`; expected one with a message"
                    )
                if nodes[source].phase != node.phase or not nodes[source].computes:
                    continue
                if (
                    (stages[source] > stages[number])
                    if node.phase == "forward"
                    else (stages[source] < stages[number])
                ):
                    raise PlanError(
                        f"the {node.phase} node {node.name!r} of stage {stages[number]} takes {nodes[source].name!r} "
                        f"of stage {stages[source]} - at `$.stage_of`; expected stages in the order of the pass"
                    )
        for number in self.recompute:
            if draws_random_numbers(self.nodes[number]):
                raise PlanError(
                    f"{nodes[number].name!r} draws random numbers and is computed again - at `$.recompute`; expected "
                    "it to be kept"
                )

    def _function(self, number: int) -> Callable[..., Any]:
        node = self.nodes[number]
        inputs = {source: self.taken(self._of[source], number) for source in node.all_input_nodes}
        parts = range(max(len(self._node(number).parts), 1))
        outputs = tuple(self.placements(number, part) for part in parts)
        return local_operator(LocalOperator(node, inputs, outputs, self.groups))

    def _count_uses(self, computing: Iterable[int]) -> None:
        """How often outputs and moves are taken, of each microbatch; what is computed again begins anew."""
        uses: Counter[int] = Counter()
        again: Counter[int] = Counter()
        moves: Counter[int] = Counter()
        first_use: dict[int, int] = {}

        def take(producer: int, consumer: int) -> None:
            move = self.takes.get((producer, consumer))
            if move is not None:
                moves[move] += 1
                first_use.setdefault(move, consumer)
            elif producer in self.recompute and self._node(consumer).phase == "backward":
                again[producer] += 1
            else:
                uses[producer] += 1

        for number in computing:
            for source in self.nodes[number].all_input_nodes:
                take(self._of[source], number)
        for number in self._ends:
            if self.end_stage(number) == self.stage:
                take(number, self._end)
        # The last first: what takes an output again has been counted when it is asked how often it will be.
        for number in sorted(self.recompute, reverse=True):
            if again[number]:
                for source in self.nodes[number].all_input_nodes:
                    producer = self._of[source]
                    move = self.takes.get((producer, number))
                    if move is not None:
                        moves[move] += 1
                    else:
                        (again if producer in self.recompute else uses)[producer] += 1
        for number, one in enumerate(self.plan.moves):
            here = self.plan.stage_of[one.producer] == self.stage
            away = here and self._goes_to(one) != self.stage and _sends(one)
            if away or (moves[number] and (here or not _sends(one))):
                uses[one.producer] += 1
        self._left, self._moves_left, self._again = uses, moves, again
        of_held = sorted(
            (use, number)
            for number, use in first_use.items()
            if self._node(self.plan.moves[number].producer).op in _HELD
        )
        self._following = {before: behind for (_, before), (_, behind) in pairwise(of_held)}
        phases: dict[int, Phase] = {n: phase for phase, numbers in self._passes.items() for n in numbers}
        self._receives: dict[Phase, list[int]] = {"forward": [], "backward": []}
        for number, one in enumerate(self.plan.moves):
            if (
                self.plan.stage_of[one.producer] != self.stage
                and self._goes_to(one) == self.stage
                and _sends(one)
            ):
                used = [phases[consumer] for consumer in one.consumers if consumer in phases]
                self._receives["forward" if "forward" in used else "backward"].append(number)


def _cut_out(flat: InFlightTensor, at: int, shape: Sequence[int]) -> Tensor:
    return flat.wait().narrow(0, at, prod(shape)).view(shape)


def _sends(move: Move) -> bool:
    """Whether a message of a move goes to another stage."""
    return any(step.kind == "send" for step in move.steps)


def _after(kind: str, target: DimPlacement) -> DimPlacement:
    """Placement along a dimension of the mesh behind a step."""
    return DimPlacement("R") if kind in ("all_reduce", "all_gather") else target
