"""Combination of microbatch results to those of the batch, treated as a mesh whose ranks run in sequence.

Along this dimension a tensor is split (rows of its microbatch), a partial sum (microbatches add up to the batch) or
whole (equal in all microbatches), by the rules that shard operators over ranks. As ranks that run in sequence cannot
communicate, three corrections are made instead. Values that depend on the batch and on no parameter, such as the
number of counted targets, are computed from the whole batch. Whole values added to partial sums, such as a weight
penalty, are scaled by 1/m. A mean over rows contributes its fraction of the whole mean. If that is not enough, as when
rows of different microbatches are compared or normalised with each other, microbatches would train another model, and
are refused. Rows that are sorted by expert and restored are supported (`dispatch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wirewise.errors import PlanError
from wirewise.planners.parallel.rhino.dispatch import Dispatch
from wirewise.planners.parallel.rhino.layouts import PARTIAL, REPLICATED
from wirewise.planners.parallel.rhino.loop_records import operator_name
from wirewise.planners.parallel.rhino.loops import FACTORIES, LOSSES
from wirewise.planners.parallel.rhino.rules import Strategy, strategies
from wirewise.plans.parallel import DimPlacement
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["Accumulation", "accumulate", "blocks_of_part", "random_operator"]

_RANDOM = frozenset(
    """bernoulli dropout native_dropout rand rand_like randn randn_like randint randint_like randperm normal
    multinomial poisson exponential geometric rrelu_with_noise _fused_dropout""".split()
)
_HELD = ("parameter", "buffer", "constant")
_ADDING = ("index_add", "index_put", "_unsafe_index_put", "scatter_add")
_TARGETS = ("nll_loss_forward", "nll_loss2d_forward")
_MEAN = 1
_MOST_PASSES = 60


@dataclass
class Accumulation:
    """Role of each node of a step in a microbatch, and corrections that make microbatches equal the batch."""

    count: int
    """Number of microbatches."""
    placements: list[tuple[DimPlacement, ...]]
    """Placement of each node's outputs along the microbatches: split, partial sum or whole."""
    scaled: set[tuple[int, int]] = field(default_factory=set)
    """Whole tensors scaled by 1/m where a node adds them to partial sums: producer and consumer."""
    shares: set[int] = field(default_factory=set)
    """Nodes whose mean over the rows of a microbatch is weighted by 1/m."""
    totals: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Losses of targets that are divided by the sum of their weights in the whole batch: nodes, with those of the
    targets and of the weights of classes."""
    of_batch: set[int] = field(default_factory=set)
    """Nodes computed once from the whole batch, and read whole or, if split, row by row."""

    def factor(self, number: int) -> float:
        """Weight of a microbatch's result in the sum over microbatches."""
        return 1.0 if self.placements[number][0].kind == "P" else 1.0 / self.count


def blocks_of_part(cut: DimPlacement, rows: DimPlacement, count: int) -> int | None:
    """Blocks of a strided cut within a microbatch. None if they are not whole blocks.

    The number of blocks within single rows shrinks with the rows; that of blocks with rows of all microbatches is
    unchanged.

    Args:
        cut: Cut over the ranks of a mesh.
        rows: Cut of the same tensor over the microbatches.
        count: Number of microbatches.
    """
    if cut.kind != "S" or rows.kind != "S" or cut.dim != rows.dim or rows.factor % cut.factor == 0:
        return cut.factor
    return cut.factor // count if cut.factor % (rows.factor * count) == 0 else None


def random_operator(graph: OperatorGraph) -> str:
    """Name of a node that draws random numbers; empty if there is none."""
    for node in graph.nodes:
        drawn = bool(node.arguments.get("random")) and node.op.startswith("module.")
        if drawn or operator_name(node) in _RANDOM or _attends_with_dropout(node):
            return node.name
    return ""


def _attends_with_dropout(node: OperatorNode) -> bool:
    return node.computes and bool(node.arguments.get("dropout_p"))


def accumulate(graph: OperatorGraph, count: int) -> Accumulation:
    """Derive the batch's step from the steps of its microbatches.

    Args:
        graph: Step of the whole batch.
        count: Number of microbatches.

    Raises:
        PlanError: Microbatches would give other gradients; the message names the module and the operator.
    """
    search = _Search(graph, count)
    for _ in range(_MOST_PASSES):
        found = search.passed()
        if not search.grew:
            search.check_ends(found)
            return found
    raise PlanError(
        f"it was not found in {_MOST_PASSES} passes how the graph comes of microbatches; expected one microbatch"
    )


class _Choice(NamedTuple):
    """A strategy that an operator can run by, and what it costs: conversions of inputs."""

    strategy: Strategy
    missed: bool
    cuts: int
    scaled: int


class _Search:
    """Passes over a graph; each knows from the one before which whole tensors are wanted in parts.

    Args:
        graph: Step of the whole batch.
        count: Number of microbatches.
    """

    def __init__(self, graph: OperatorGraph, count: int) -> None:
        self.graph, self.count = graph, count
        self.wanted: dict[int, DimPlacement] = {}
        """Cuts of whole tensors that their users want, by node."""
        self.grew = False
        self._known: dict[tuple[int, tuple[DimPlacement, ...]], list[Strategy]] = {}
        self.grounded = self._grounded()
        self.dispatch = Dispatch(graph, count)

    def _grounded(self) -> list[bool]:
        """Whether each node depends on the batch and the model's code alone, not on parameters."""
        found: list[bool] = []
        for node in self.graph.nodes:
            runs = node.op != "parameter" and not node.op.startswith("module.") and not _draws(node)
            found.append(runs and all(found[i] for i in node.inputs))
        return found

    def passed(self) -> Accumulation:
        """One pass."""
        self.grew = False
        self.dispatch = Dispatch(self.graph, self.count)
        found = Accumulation(self.count, [])
        for number, node in enumerate(self.graph.nodes):
            found.placements.append(self._placed(number, node, found))
        return found

    def check_ends(self, found: Accumulation) -> None:
        """Raise unless the loss and all gradients add up and buffers are the same after each microbatch."""
        for name, number in self.graph.buffers.items():
            if found.placements[number][0].kind != "R":
                raise self._refusal(number, f"changes the buffer {name!r} by the rows of the batch")
        for number in (self.graph.loss, *self.graph.gradients.values()):
            if found.placements[number][0].kind == "S":
                raise self._refusal(number, "is a gradient or a loss of each row")

    # One node

    def _placed(self, number: int, node: OperatorNode, found: Accumulation) -> tuple[DimPlacement, ...]:
        if node.op == "input":
            return (self._rows(number, node),)
        if node.op in (*_HELD, "output"):
            return (REPLICATED,)
        given = [found.placements[i][0] for i in node.inputs]
        if node.op == "getitem":
            return self._part(number, node, found)
        dispatched = self.dispatch.placed(number, node, given, self.grounded[number])
        if dispatched is not None:
            self._want_rows(node, given, dispatched)
            return dispatched
        choice = self._chosen(number, node, given)
        made = choice.strategy.outputs if choice is not None else ()
        if choice is None or (self.grounded[number] and PARTIAL in made):
            return self._of_batch(number, node, found)
        if self.dispatch.touches(node):
            self.dispatch.follow(number, node, choice.strategy.inputs, made, given)
        if operator_name(node) in FACTORIES:
            return made
        for source, own, need in zip(node.inputs, given, choice.strategy.inputs, strict=True):
            if own.kind == "R" and need.kind == "S":
                self._want(source, need)
            elif own.kind == "R" and need.kind == "P":
                found.scaled.add((source, number))
        to = node.inputs[node.roles.index("self")] if operator_name(node) in _ADDING else number
        if made[0].kind == "P" and to != number and found.placements[to][0].kind == "R":
            # All microbatches add their rows to the same tensor.
            found.scaled.add((to, number))
        self._note_means(number, node, choice.strategy, found)
        return made

    def _rows(self, number: int, node: OperatorNode) -> DimPlacement:
        if not node.shape or node.shape[0] % self.count:
            raise PlanError(
                f"input {node.source} has the shape {list(node.shape)}, of which {self.count} microbatches have no "
                "equal parts; expected a batch in the first dimension of every input, or one microbatch"
            )
        return DimPlacement("S", 0)

    def _part(self, number: int, node: OperatorNode, found: Accumulation) -> tuple[DimPlacement, ...]:
        source = node.inputs[0]
        outputs = found.placements[source]
        index = int(node.arguments.get("index", 0))
        own = outputs[index] if index < len(outputs) else REPLICATED
        self.dispatch.part(number, source, index)
        if source in found.of_batch:
            found.of_batch.add(number)
            return self._of_batch(number, node, found)
        if own.kind == "R" and number in self.wanted:
            self._want(source, self.wanted[number])
        return (own,)

    def _want_rows(
        self, node: OperatorNode, given: Sequence[DimPlacement], made: Sequence[DimPlacement]
    ) -> None:
        """Want the equal elements in rows that rows of an order are put into."""
        for source, own in zip(node.inputs, given, strict=True):
            equal = operator_name(self.graph.nodes[source]) in FACTORIES
            if equal and own.kind == "R" and made[0].kind == "S":
                self._want(source, made[0])

    def _of_batch(self, number: int, node: OperatorNode, found: Accumulation) -> tuple[DimPlacement, ...]:
        """The node's value of the whole batch, whole or the rows that users want."""
        if not self.grounded[number]:
            raise self._refusal(number, "needs more than the rows of one microbatch")
        found.of_batch.add(number)
        return (self.wanted.get(number, REPLICATED),) * max(len(node.parts), 1)

    def _want(self, source: int, cut: DimPlacement) -> None:
        """Note that a whole tensor is wanted in parts, and what it is made of with it."""
        node = self.graph.nodes[source]
        before = self.wanted.get(source)
        if before == cut:
            return
        if before is not None or node.op in (*_HELD, "input"):
            raise self._refusal(source, "is whole, and taken in parts of a batch")
        self.wanted[source] = cut
        self.grew = True

    def _note_means(self, number: int, node: OperatorNode, chosen: Strategy, found: Accumulation) -> None:
        name = operator_name(node)
        is_mean = node.arguments.get("reduction", _MEAN) == _MEAN
        if not any(one.kind == "S" for one in chosen.inputs):
            return
        if name in _TARGETS and is_mean:
            others = node.inputs[1:]
            if not all(self.grounded[i] for i in others):
                raise self._refusal(number, "is a mean over targets that parameters make")
            found.totals[number] = others
        elif name == "mean" and chosen.outputs[0].kind == "P":
            found.shares.add(number)
        elif name.removesuffix("_backward") in LOSSES and is_mean:
            found.shares.add(number)

    # Strategies

    def _chosen(self, number: int, node: OperatorNode, given: Sequence[DimPlacement]) -> _Choice | None:
        """The strategy that takes the inputs as they are, or nearly so; None if none does."""
        wanted = self.wanted.get(number)
        # Rows that the code numbers, as arange does, differ between microbatches.
        if not node.inputs and operator_name(node) not in FACTORIES:
            return None if wanted is not None else _Choice(_whole(node), False, 0, 0)
        if operator_name(node) in FACTORIES:
            return self._made(node, given, wanted)
        if wanted is not None and operator_name(node) == "repeat" and _copies(node, wanted.dim, self.count):
            return _Choice(_whole(node)._replace(outputs=(wanted,)), False, 0, 0)
        choices = list(self._choices(number, node, given, wanted))
        if not choices:
            return None
        best = min(choices, key=lambda one: (one.missed, one.cuts, one.scaled))
        return None if best.missed else best

    def _made(
        self, node: OperatorNode, given: Sequence[DimPlacement], wanted: DimPlacement | None
    ) -> _Choice:
        """A tensor of equal elements takes sizes and types of its input, never values."""
        own = wanted
        if own is None and operator_name(node).endswith("_like") and given and given[0].kind == "S":
            own = given[0]
        return _Choice(_whole(node)._replace(outputs=(own or REPLICATED,)), False, 0, 0)

    def _choices(
        self, number: int, node: OperatorNode, given: Sequence[DimPlacement], wanted: DimPlacement | None
    ) -> Iterator[_Choice]:
        for one in self._strategies(number, node, given, wanted):
            pairs = list(zip(given, one.inputs, strict=True))
            if any(own != need and own.kind != "R" for own, need in pairs):
                continue
            is_sum = any(own.kind == "P" for own in given)
            if PARTIAL in one.inputs and not is_sum:
                continue
            if PARTIAL in one.outputs and "float" not in node.dtype and not self.grounded[number]:
                continue
            cuts = sum(own.kind == "R" and need.kind == "S" for own, need in pairs)
            scaled = sum(own.kind == "R" and need.kind == "P" for own, need in pairs)
            missed = wanted is not None and wanted not in one.outputs
            if cuts and wanted is None and all(own.kind == "R" for own in given):
                continue
            yield _Choice(one, missed, cuts, scaled)

    def _strategies(
        self, number: int, node: OperatorNode, given: Sequence[DimPlacement], wanted: DimPlacement | None
    ) -> list[Strategy]:
        cuts = tuple(one for one in (*given, *((wanted,) if wanted else ())) if one.kind == "S")
        key = (number, cuts)
        if key not in self._known:
            factors = {one.factor for one in cuts}
            shapes = [self.graph.nodes[i].shape for i in node.inputs]
            found = strategies(node, shapes, self.count, factors=lambda output, i, dim: factors, sums=True)
            self._known[key] = [_whole(node)] if found is None else found
        return self._known[key]

    def _refusal(self, number: int, why: str) -> PlanError:
        node = self.graph.nodes[number]
        where = f"module {node.module!r}" if node.module else "the loss or the model itself"
        return PlanError(
            f"{node.name} ({node.op}) of {where} {why}: {self.count} microbatches would train another model than the "
            "batch; expected one microbatch, or rows that are computed each for itself"
        )


def _whole(node: OperatorNode) -> Strategy:
    return Strategy((REPLICATED,) * len(node.inputs), (REPLICATED,) * max(len(node.parts), 1), share=False)


def _copies(node: OperatorNode, dim: int, count: int) -> bool:
    """Whether a dimension is one tensor again and again, as often for each microbatch."""
    repeats = node.arguments.get("repeats") or [1]
    return int(repeats[dim]) % count == 0


def _draws(node: OperatorNode) -> bool:
    return operator_name(node) in _RANDOM
