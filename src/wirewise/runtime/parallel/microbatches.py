"""Microbatches of a step: the captured step of one, the batch's plan adapted to it, and the sum of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, fx

from wirewise.errors import InputError, PlanError
from wirewise.planners.parallel.rhino.accumulation import Accumulation, accumulate, blocks_of_part
from wirewise.plans.parallel import DimPlacement, ParallelPlan, parse_placements
from wirewise.runtime.parallel.local import SUM, argument_of
from wirewise.runtime.parallel.parts import local_shape, slice_shard
from wirewise.runtime.parallel.program import CapturedStep
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["MicrobatchStep", "of_microbatch"]

_VALUES = frozenset("other value fill_value alpha exponent min max self s scale beta delta lambd".split())
"""Arguments that are numbers to compute with; those of the whole batch count, as where a sum is divided by its rows."""


@dataclass(frozen=True)
class MicrobatchStep:
    """Captured step of a microbatch that, run for each, gives loss and gradients of the batch."""

    graph: OperatorGraph
    module: fx.GraphModule
    whole: CapturedStep
    """Step of the whole batch."""
    accumulation: Accumulation

    @cached_property
    def nodes(self) -> tuple[list[fx.Node], list[fx.Node]]:
        """FX nodes of the whole batch's step and of this one, in graph order."""
        found = []
        for step in (self.whole, self):
            named = {node.name: node for node in step.module.graph.nodes}
            found.append([named[node.name] for node in step.graph.nodes])
        return found[0], found[1]

    def _arguments(self, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a node, with the numbers that the whole batch's step computes with."""
        whole, own = (nodes[number] for nodes in self.nodes)
        args, kwargs = list(own.args), dict(own.kwargs)
        if not hasattr(own.target, "_schema"):
            return tuple(args), kwargs
        for place, one in enumerate(own.target._schema.arguments):
            if one.name in _VALUES and not isinstance(argument_of(own, one.name), fx.Node):
                told = argument_of(whole, one.name)
                if place < len(args):
                    args[place] = told
                elif one.name in kwargs:
                    kwargs[one.name] = told
        return tuple(args), kwargs

    def run(
        self,
        number: int,
        function: Callable[..., Any],
        inputs: Mapping[fx.Node, Any],
        values: Mapping[int, Any],
    ) -> Any:
        """Compute a node's part of the batch's result.

        Args:
            number: Index of the node.
            function: Function that computes the node on this rank's shards, as for a batch of the microbatch's size.
            inputs: Inputs of the node, by producing node.
            values: Values computed from the whole batch, this rank's shards of the microbatch's rows.
        """
        if number in self.given:
            return values[number]
        args, kwargs = self._calls[number]
        share, sums = 1.0 / self.accumulation.count, self._sums.get(number, set())

        def taken(source: fx.Node) -> Any:
            return inputs[source] * share if source in sums else inputs[source]

        args, kwargs = fx.map_arg(args, taken), fx.map_arg(kwargs, taken)
        if number in self.accumulation.totals:
            loss, _ = function(*args[:3], SUM, *args[4:], **kwargs)
            total, of_rank = values[number]
            return loss / total, of_rank
        found = function(*args, **kwargs)
        return found * share if number in self.accumulation.shares else found

    @cached_property
    def _calls(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [self._arguments(number) for number in range(len(self.graph.nodes))]

    @cached_property
    def _sums(self) -> dict[int, set[fx.Node]]:
        """Inputs of nodes that count with a microbatch's share, by the node's number."""
        found: dict[int, set[fx.Node]] = {}
        for producer, consumer in self.accumulation.scaled:
            found.setdefault(consumer, set()).add(self.nodes[1][producer])
        return found

    def values_of_batch(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor]) -> dict[int, Any]:
        """Values over the whole batch by node index; for a loss, the sum of target weights.

        Args:
            inputs: The whole batch.
            state: Unsharded buffers by name.
        """
        known: dict[int, Any] = {}

        def value(number: int) -> Any:
            stack = [number]
            while stack:
                one = stack[-1]
                missing = [i for i in self.whole.graph.nodes[one].inputs if i not in known]
                if one in known or not missing:
                    stack.pop()
                    if one not in known:
                        known[one] = self._run(one, known, inputs, state)
                else:
                    stack += missing
            return known[number]

        found = {number: value(number) for number in self.given}
        for number, sources in self.accumulation.totals.items():
            target, *weight = (value(i) for i in sources)
            found[number] = _weights_of(self.nodes[0][number], target, *weight)
        return found

    @cached_property
    def given(self) -> frozenset[int]:
        """Nodes whose value over the whole batch replaces that of a microbatch."""
        nodes = self.graph.nodes
        return frozenset(
            n for n in self.accumulation.of_batch if not nodes[n].parts or nodes[n].op == "getitem"
        )

    @cached_property
    def buffers_of_batch(self) -> frozenset[str]:
        """Buffers read by computations over the whole batch."""
        nodes, wanted = self.whole.graph.nodes, set[int]()
        stack = [*self.given, *(i for one in self.accumulation.totals.values() for i in one)]
        while stack:
            if (one := stack.pop()) not in wanted:
                wanted.add(one)
                stack += nodes[one].inputs
        return frozenset(nodes[n].source for n in wanted if nodes[n].op == "buffer")

    def _run(
        self, number: int, known: Mapping[int, Any], inputs: Sequence[Tensor], state: Mapping[str, Tensor]
    ) -> Any:
        record, node = self.whole.graph.nodes[number], self.nodes[0][number]
        if record.op == "input":
            return inputs[int(record.source)]
        if record.op == "buffer":
            return state[record.source]
        if record.op == "constant":
            return getattr(self.whole.module, str(node.target))
        places = {source: known[self._numbers[source]] for source in node.all_input_nodes}
        target: Any = node.target
        return target(
            *fx.map_arg(node.args, places.__getitem__), **fx.map_arg(node.kwargs, places.__getitem__)
        )

    @cached_property
    def _numbers(self) -> dict[fx.Node, int]:
        return {node: number for number, node in enumerate(self.nodes[0])}

    def of_rows(self, number: int, value: Tensor, microbatch: int) -> Tensor:
        """A microbatch's rows of a value of the batch, or all of it."""
        return slice_shard(
            value, self.accumulation.placements[number][0], self.accumulation.count, microbatch
        )


def _weights_of(node: fx.Node, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum of the weights of targets that count, as a mean of their losses is divided by."""
    counts = target != argument_of(node, "ignore_index")
    dtype = node.meta["val"][1].dtype
    if weight is None:
        return counts.sum().to(dtype)
    return (weight[torch.where(counts, target, 0)] * counts).sum().to(dtype)


def of_microbatch(
    plan: ParallelPlan, step: CapturedStep, microbatch: CapturedStep | None
) -> tuple[CapturedStep, ParallelPlan]:
    """Adapt step and plan to a microbatch.

    A block that is sharded by itself has the same length in a microbatch as in the batch. So a dimension that grows
    with the batch has fewer blocks.

    Args:
        plan: Plan of the whole batch.
        step: Captured step of the whole batch.
        microbatch: Captured step of a microbatch; may be None if the plan has only one.

    Raises:
        InputError: The steps do not match.
        PlanError: A sharding is impossible within each microbatch, or the step's gradients are no sum over
            microbatches.
    """
    if plan.microbatches == 1:
        return step, plan
    if microbatch is None:
        raise InputError(
            f"the plan has {plan.microbatches} microbatches; expected `microbatch`, the step captured with a batch of "
            f"1/{plan.microbatches} of the size"
        )
    ops = [[(node.op, node.source, node.phase) for node in one.graph.nodes] for one in (step, microbatch)]
    if ops[0] != ops[1]:
        raise InputError(
            f"the step of a microbatch has {len(ops[1])} operators, that of the batch {len(ops[0])}, or others; "
            "expected the same operators on smaller tensors"
        )
    accumulation = accumulate(step.graph, plan.microbatches)
    _align(accumulation, step.graph, microbatch.graph)
    own = MicrobatchStep(microbatch.graph, microbatch.module, step, accumulation)
    return own, _plan_of(plan, accumulation.placements)


def _plan_of(plan: ParallelPlan, rows: Sequence[Sequence[DimPlacement]]) -> ParallelPlan:
    """The plan with blocks of microbatches; `rows` are the cuts of outputs over the microbatches."""

    def words(number: int, given: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            ",".join(
                _word(number, one, own, plan.microbatches)
                for one, own in zip(word.split(","), rows[number], strict=False)
            )
            for word in given
        )

    moves = tuple(
        replace(move, source=words(move.producer, move.source), target=words(move.producer, move.target))
        for move in plan.moves
    )
    placements = tuple(words(number, given) for number, given in enumerate(plan.placements))
    return replace(plan, placements=placements, moves=moves)


def _align(found: Accumulation, whole: OperatorGraph, part: OperatorGraph) -> None:
    """Compare what both steps compute with how they are said to go together; what differs is taken of the batch."""
    odd: set[int] = set()
    for number, (one, other) in enumerate(zip(whole.nodes, part.nodes, strict=True)):
        if one.op == "output":
            continue
        _check_arguments(one, other, found.count)
        if any(i in odd for i in one.inputs):
            # A tensor of ones for each row, say, and its sum: the batch's, if no parameter has to do with it.
            if one.op != "getitem" and not _of_batch_alone(whole, number):
                raise _unlike(one, other, found.count)
            found.of_batch.add(number)
        if not _fits(found.placements[number], one, other, found.count):
            if not _of_batch_alone(whole, number):
                raise _unlike(one, other, found.count)
            odd.add(number)


def _of_batch_alone(graph: OperatorGraph, number: int) -> bool:
    stack, seen = [number], set[int]()
    while stack:
        one = stack.pop()
        if one in seen:
            continue
        seen.add(one)
        if graph.nodes[one].op == "parameter" or graph.nodes[one].op.startswith("module."):
            return False
        stack += graph.nodes[one].inputs
    return True


def _fits(placements: Sequence[DimPlacement], whole: OperatorNode, part: OperatorNode, count: int) -> bool:
    return all(
        local_shape(one, (placed,), (count,)) == tuple(other)
        for placed, one, other in zip(
            placements, whole.parts or (whole.shape,), part.parts or (part.shape,), strict=True
        )
    )


def _check_arguments(whole: OperatorNode, part: OperatorNode, count: int) -> None:
    for name, value in whole.arguments.items():
        other = part.arguments.get(name)
        numbers = isinstance(value, float) or isinstance(other, float)
        if value != other and numbers and name not in _VALUES:
            raise InputError(
                f"{whole.name} ({whole.op}) of module {whole.module!r} has {name}={value} in the step of the batch and "
                f"{other} in that of one of {count} microbatches; expected the same: do not let the model's code "
                "compute it from the batch's size"
            )


def _unlike(whole: OperatorNode, part: OperatorNode, count: int) -> PlanError:
    return PlanError(
        f"{whole.name} ({whole.op}) of module {whole.module!r} makes {list(whole.shape)} of the batch and "
        f"{list(part.shape)} of one of {count} microbatches, of which it is not known how they make up the batch's; "
        "expected one microbatch, or rows that are computed each for itself"
    )


def _word(number: int, word: str, rows: DimPlacement, count: int) -> str:
    (one,) = parse_placements([word])
    if one.kind != "S":
        return word
    blocks = blocks_of_part(one, rows, count)
    if blocks is None:
        raise PlanError(
            f"node {number} is placed {word}, in {one.factor} blocks of which {count} microbatches have no whole ones "
            f"- at `$.placements[{number}]`; expected a multiple of {count * rows.factor}: plan again"
        )
    return str(one._replace(factor=blocks))
