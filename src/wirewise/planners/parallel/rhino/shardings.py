"""Operator graph on a mesh as a choice problem with pairwise costs, and the resulting placements.

Each operator chooses a strategy for all dimensions of the mesh at once, each tensor with several users chooses
additional layouts to share among them, and each edge costs the conversion between two layouts. Copies of a repeated
block make the same choices.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple, Protocol

import numpy as np

from wirewise import work
from wirewise.planners.parallel.rhino.accumulation import Accumulation, accumulate, blocks_of_part
from wirewise.planners.parallel.rhino.choices import ChoiceProblem
from wirewise.planners.parallel.rhino.layouts import PARTIAL, REPLICATED, Layout, layout_steps, share_of
from wirewise.planners.parallel.rhino.loop_records import operator_name
from wirewise.planners.parallel.rhino.loops import VIEWS, loops_of
from wirewise.planners.parallel.rhino.rules import Strategy, strategies, view_cuts
from wirewise.plans.parallel import DimPlacement, Move, MoveStep
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["LEAVES", "STATE", "JointStrategy", "ShardingProblem", "ShardingSpace", "StepCosts"]

STATE = ("parameter", "buffer", "constant")
"""Tensors that exist before a step and that no batch changes."""
LEAVES = ("input", *STATE)
_FACTORS = 2
"""Numbers of blocks of strided cuts that are kept of a dimension."""
_RELAXED = 1e-7
"""Part of a step's time that each move costs besides: of plans that cost the same, that of fewer moves is taken."""
_WAY_S, _NODE_S = 2e-6, 2e-3
"""Work of a look at a pair of layouts, and of an operator's strategies: half of 10 s each of 498 000 and 2 130."""
_BESIDE = 3e-7
"""Share by which moves of gradients cost less: of plans that cost the same, nobody waits for those at the end."""


class StepCosts(Protocol):
    """Cost model of collectives."""

    def seconds(self, step: MoveStep) -> float:
        """Time of a move step, in seconds."""
        ...


class JointStrategy(NamedTuple):
    """Strategy of a node on a mesh of several dimensions."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    share: float
    """Fraction of the work that each rank does."""
    inner: tuple[MoveStep, ...] = ()


class _Version(NamedTuple):
    """Versions of a tensor with several users: the one of its producer, and those made of it for all."""

    own: Layout
    shared: Layout | None


class ShardingSpace(NamedTuple):
    """Strategies and moves of every node."""

    strategies: tuple[JointStrategy, ...]
    """Strategy of each node; for the output, the placements that it reads."""
    moves: tuple[Move, ...]


@dataclass(frozen=True, kw_only=True)
class ShardingProblem:
    """Training step on a mesh."""

    graph: OperatorGraph
    mesh: tuple[int, ...]
    costs: StepCosts
    microbatches: int = 1
    alive: float = 1.0
    """Fraction of a batch's activations that is alive at a time."""
    strided: bool = True
    states: float = 2.0
    """Number of optimizer states per parameter, each of its size."""
    recomputed: frozenset[int] = frozenset()
    """Forward nodes that are recomputed in the backward pass."""
    boundary: frozenset[int] = frozenset()
    """Nodes whose outputs are kept for recomputation, in addition to those that the backward pass reads."""
    accumulation: Accumulation | None = None
    """Method by which microbatch results are combined into those of the batch. Defaults to computing it on first
    use."""
    fixed: tuple[tuple[tuple[DimPlacement, ...], ...], ...] = ()
    """Dimensions of the mesh that are decided, for each the first output's placement and the inputs' of every node."""

    # The graph

    @cached_property
    def first(self) -> list[int]:
        """Corresponding node of the first copy of a repeated block, [nodes]."""
        found = list(range(len(self.graph.nodes)))
        for block in self.graph.repeats:
            for copy in block.nodes[1:]:
                for own, original in zip(copy, block.nodes[0], strict=True):
                    found[own] = original
        return found

    @cached_property
    def saved(self) -> set[int]:
        """Forward nodes whose outputs are kept for the backward pass."""
        nodes, users = self.graph.nodes, self.graph.users
        found: set[int] = set()
        for number, node in enumerate(nodes):
            if node.phase != "forward" or node.op in (*STATE, "output"):
                continue
            wanted = any(nodes[user].phase == "backward" for user in users[number])
            again = any(user in self.recomputed for user in users[number])
            if number in self.boundary or ((wanted or again) and number not in self.recomputed):
                found.add(self._base(number))
        return found - self.recomputed | set(self.boundary)

    def _base(self, number: int) -> int:
        """Node whose memory a view shows."""
        node = self.graph.nodes[number]
        while node.inputs and _is_view(node):
            number = node.inputs[0]
            node = self.graph.nodes[number]
        return number

    @cached_property
    def batch_dims(self) -> list[tuple[int | None, ...]]:
        """Dimension of each output that grows with the batch, [nodes, outputs]."""
        found: list[tuple[int | None, ...]] = []
        nodes = self.graph.nodes
        # Uncut, a view would not tell which of two dimensions it leaves the batch in.
        batch = gcd(*(node.shape[0] for node in nodes if node.op == "input" and node.shape))
        parts = next((n for n in range(2, batch + 1) if batch % n == 0), 1)
        for node in nodes:
            own = [found[i][0] for i in node.inputs]
            count = max(len(node.parts), 1)
            if node.op == "input":
                found.append((0 if node.shape else None,))
            elif node.op == "getitem":
                found.append((_part(found[node.inputs[0]], node),))
            elif not any(dim is not None for dim in own):
                found.append((None,) * count)
            elif operator_name(node) in VIEWS:
                cut = [DimPlacement("S", own[0])] if own[0] is not None else []
                pairs = list(view_cuts(nodes[node.inputs[0]].shape, node.shape, cut, (), parts))
                found.append((pairs[0][1].dim if pairs and pairs[0][1].factor == 1 else None,))
            else:
                loops = loops_of(node, [nodes[i].shape for i in node.inputs])
                labels = set()
                if loops is not None:
                    labels = {
                        dims[d]
                        for dims, d in zip(loops.inputs, own, strict=True)
                        if d is not None and d < len(dims)
                    } - {None}
                outputs = loops.outputs if loops is not None else [()] * count
                found.append(
                    tuple(next((d for d, one in enumerate(dims) if one in labels), None) for dims in outputs)
                )
        return found

    @cached_property
    def factors(self) -> dict[tuple[int, int, int], tuple[int, ...]]:
        """Block counts of strided shards, by node, output and dimension."""
        found: dict[tuple[int, int, int], set[int]] = {}
        if not self.strided:
            return {}
        for _ in range(8):
            before = sum(map(len, found.values()))
            for number in self._originals:
                self._spread_factors(number, found)
            for number in reversed(self._originals):
                self._spread_factors(number, found)
            if sum(map(len, found.values())) == before:
                break
        return {key: tuple(sorted(values)[:_FACTORS]) for key, values in found.items()}

    @cached_property
    def _originals(self) -> list[int]:
        return [n for n, first in enumerate(self.first) if n == first and self.graph.nodes[n].op != "output"]

    def _spread_factors(self, number: int, found: dict[tuple[int, int, int], set[int]]) -> None:
        """Carry blocks of strided cuts over one operator, both ways."""
        nodes = self.graph.nodes
        node = nodes[number]
        if not node.inputs:
            return
        sources = [self.first[i] for i in node.inputs]
        if node.op == "getitem":
            part = int(node.arguments.get("index", 0))
            for dim in range(len(node.shape)):
                both = found.get((number, 0, dim), set()) | found.get((sources[0], part, dim), set())
                if both:
                    found[number, 0, dim] = found[sources[0], part, dim] = both
            return
        shapes = [nodes[i].shape for i in node.inputs]
        if operator_name(node) in VIEWS:
            cuts = [
                [DimPlacement("S", d, f) for d in range(len(shape)) for f in {1, *found.get((at, 0, d), ())}]
                for at, shape in ((sources[0], shapes[0]), (number, node.shape))
            ]
            for before, after in view_cuts(shapes[0], node.shape, cuts[0], cuts[1], 1):
                for at, cut in ((sources[0], before), (number, after)):
                    if cut.factor > 1 and _useful(cut, nodes[at].shape):
                        found.setdefault((at, 0, cut.dim), set()).add(cut.factor)
            return
        loops = loops_of(node, shapes)
        if loops is None:
            return
        outputs = node.parts or (node.shape,)
        places: dict[int | str, list[tuple[tuple[int, int, int], int]]] = {}
        for at, part, dims, shape in [
            *(
                (source, 0, dims, shape)
                for source, dims, shape in zip(sources, loops.inputs, shapes, strict=True)
            ),
            *((number, part, dims, outputs[part]) for part, dims in enumerate(loops.outputs)),
        ]:
            for d, label in enumerate(dims):
                if label is not None:
                    places.setdefault(label, []).append(((at, part, d), shape[d]))
        for label, own in places.items():
            if label in loops.parts:
                longest = max(size for _, size in own)
                for key, size in own:
                    if size == longest:
                        found.setdefault(key, set()).add(loops.parts[label])
            elif label not in loops.closed:
                union = set().union(*(found.get(key, set()) for key, _ in own))
                for key, _ in own:
                    if union - found.get(key, set()):
                        found.setdefault(key, set()).update(union)

    # Strategies

    @cached_property
    def notes(self) -> dict[str, int]:
        """Operators without a rule, with their counts."""
        found: dict[str, int] = {}
        for number, node in enumerate(self.graph.nodes):
            if node.computes and self._along(self.first[number], 0)[1]:
                found[node.op] = found.get(node.op, 0) + 1
        return found

    def _along(self, number: int, axis: int) -> tuple[list[Strategy], bool]:
        """Strategies along one dimension of the mesh, and whether there is no rule."""
        node, n = self.graph.nodes[number], self.mesh[axis]
        key = (number, axis)
        known: dict[tuple[int, int], tuple[list[Strategy], bool]] = self.__dict__.setdefault("_known", {})
        if key not in known:
            shapes = [self.graph.nodes[i].shape for i in node.inputs]
            whole = Strategy(
                (REPLICATED,) * len(shapes), (REPLICATED,) * max(len(node.parts), 1), share=False
            )
            found: list[Strategy] | None
            if n == 1:
                found = [whole]
            elif node.op in LEAVES:
                found = self._leaves(number, n)
            elif node.op == "getitem":
                part = int(node.arguments.get("index", 0))
                cuts = dict.fromkeys(
                    one.outputs[part] for one in self._along(self.first[node.inputs[0]], axis)[0]
                )
                found = [Strategy((cut,), (cut,), share=False) for cut in cuts]
            else:
                found = strategies(
                    node,
                    shapes,
                    n,
                    factors=lambda output, i, d: self.factors.get(
                        (number, i, d) if output else (self.first[node.inputs[i]], 0, d), ()
                    ),
                    strided=self.strided,
                )
                if found is not None and "float" not in node.dtype:
                    found = [one for one in found if PARTIAL not in one.outputs]
            if self.fixed and axis < len(self.fixed) and self.fixed[axis] and found is not None:
                found = [
                    one for one in found if (*one.outputs, *one.inputs) == self.fixed[axis][number]
                ] or found
            known[key] = ([whole], True) if found is None else (found, False)
        return known[key]

    def _leaves(self, number: int, n: int) -> list[Strategy]:
        node = self.graph.nodes[number]
        found = [Strategy((), (REPLICATED,), share=False)]
        for dim, size in enumerate(node.shape):
            for factor in (1, *self.factors.get((number, 0, dim), ())):
                if size and size % (factor * n) == 0:
                    found.append(Strategy((), (DimPlacement("S", dim, factor),), share=False))
        return found

    def joint(self, number: int) -> list[JointStrategy]:
        """Strategies of a node for all dimensions of the mesh together."""
        node = self.graph.nodes[number]
        along = [self._along(number, axis)[0] for axis in range(len(self.mesh))]
        if len(self.mesh) > 1 and node.flops > 0:
            # What computes much is dealt out along every dimension if it can be. What only takes sums, as the gradient
            # of a loss times a number, has to be computed whole where it is given whole.
            dealt = [
                [one for one in each if one.share or PARTIAL in one.outputs]
                if any(one.share for one in each)
                else each
                for each in along
            ]
            return self._joined(number, dealt) or self._joined(number, along)
        return self._joined(number, along)

    def _joined(self, number: int, along: Sequence[Sequence[Strategy]]) -> list[JointStrategy]:
        """Strategies along each dimension of the mesh that go together."""
        node = self.graph.nodes[number]
        shapes = [self.graph.nodes[i].shape for i in node.inputs]
        if node.op == "getitem":
            # Its input is one of several outputs, of which a node's shape is that of the first.
            shapes = [node.shape]
        outputs = node.parts or (node.shape,)
        rows = [REPLICATED] * (len(shapes) + len(outputs))
        if self.microbatches > 1:
            taken = self.rows[number] if node.op == "getitem" else [self.rows[i][0] for i in node.inputs]
            rows = [*taken, *self.rows[number]]
        found = []
        for ones in itertools.product(*along):
            inputs = tuple(zip(*(one.inputs for one in ones), strict=True))
            made = tuple(zip(*(one.outputs for one in ones), strict=True))
            if node.op in STATE and not all(map(_is_dtensors, made)):
                continue
            if all(
                _fits(layout, shape, self.mesh) and self._even(layout, shape, own)
                for layout, shape, own in zip((*inputs, *made), (*shapes, *outputs), rows, strict=True)
            ):
                share = prod(1.0 / n if one.share else 1.0 for one, n in zip(ones, self.mesh, strict=True))
                found.append(JointStrategy(inputs, made, share, self._inner(ones)))
        return found

    @cached_property
    def rows(self) -> list[tuple[DimPlacement, ...]]:
        """Sharding of each output over the microbatches, [nodes, outputs]."""
        found = self.accumulation or accumulate(self.graph, self.microbatches)
        return found.placements

    def _even(self, layout: Layout, shape: Sequence[int], rows: DimPlacement) -> bool:
        """Whether a cut is even of each microbatch, in whole blocks of it."""
        count = self.microbatches
        if count == 1 or rows.kind != "S":
            return True
        blocks = [blocks_of_part(one, rows, count) for one in layout]
        if None in blocks:
            return False
        part = tuple(one._replace(factor=f or 1) for one, f in zip(layout, blocks, strict=True))
        smaller = [size // count if d == rows.dim else size for d, size in enumerate(shape)]
        return _fits(part, smaller, self.mesh)

    def _inner(self, ones: Sequence[Strategy]) -> tuple[MoveStep, ...]:
        found = []
        for axis, one in enumerate(ones):
            n = self.mesh[axis]
            others = prod(
                size
                for k, (other, size) in enumerate(zip(ones, self.mesh, strict=True))
                if k != axis and other.share
            )
            for _, size in one.inner:
                local = max(round(size / others / self.microbatches), 1)
                sent = round(2 * local * (n - 1) / n)
                found.append(MoveStep(kind="all_reduce", mesh_dim=axis, size_bytes=local, sent_bytes=sent))
        return tuple(found)

    # Costs

    def _ways(
        self, size: float, once: bool, sources: Collection[Layout], targets: Collection[Layout]
    ) -> list[list[float]]:
        """Seconds of a step for moving a tensor of n bytes to other layouts, [sources, targets]."""
        known: dict[tuple[Layout, Layout], float] = self.__dict__.setdefault("_moves", {}).setdefault(
            (size, once), {}
        )
        rows = []
        work.charge(_WAY_S * len(sources) * len(targets))
        for source in sources:
            row = []
            for target in targets:
                seconds = known.get((source, target))
                if seconds is None:
                    seconds = known[source, target] = self._way_s(source, target, size, once=once)
                row.append(seconds)
            rows.append(row)
        return rows

    def _way_s(self, source: Layout, target: Layout, size: float, *, once: bool) -> float:
        if source == target:
            return 0.0
        steps = layout_steps(source, target, size, self.mesh)
        if steps is None:
            return float("inf")
        tiny = sum(s.sent_bytes > 0 for s in steps) * self._tiny
        return (1 if once else self.microbatches) * (sum(map(self.costs.seconds, steps)) + tiny)

    @cached_property
    def _tiny(self) -> float:
        return _RELAXED * self.graph.time_s / max(prod(self.mesh), 1)

    def _bytes(self, number: int, part: int = 0, *, once: bool) -> float:
        node = self.graph.nodes[number]
        shape = node.parts[part] if node.parts else node.shape
        grows = self.batch_dims[number][part] is not None and not once
        return prod(shape) * node.item_bytes / (self.microbatches if grows else 1)

    def _once(self, producer: int, *, gradient: bool) -> bool:
        return gradient or self.graph.nodes[producer].op in STATE

    # The problem

    @cached_property
    def variables(self) -> dict[int, int]:
        """Index of the variable of each first copy."""
        return {node: variable for variable, node in enumerate(self._originals)}

    @cached_property
    def options(self) -> list[list[JointStrategy]]:
        """Strategies of each variable."""
        return [self.joint(node) for node in self._originals]

    @cached_property
    def versions(self) -> dict[int, tuple[int, list[_Version]]]:
        """Variable and values of a tensor's shared layouts, by node; filled by `problem`."""
        _ = self.problem
        return self.__dict__["_versions"]  # type: ignore[no-any-return]

    @cached_property
    def problem(self) -> ChoiceProblem:
        """Choice problem, with costs in seconds per step and memory in bytes."""
        found, graph = ChoiceProblem(), self.graph
        work.charge(_NODE_S * len(self._originals))
        count = np.bincount(self.first, minlength=len(graph.nodes))
        for node, options in zip(self._originals, self.options, strict=True):
            cost = np.array([self._own_s(node, one) for one in options]) * count[node]
            memory = np.array([self.own_bytes(node, one) for one in options]) * count[node]
            found.add(cost, memory)
        edges = self._edges()
        versions: dict[int, tuple[int, list[_Version]]] = {}
        self.__dict__["_versions"] = versions
        for producer, users in edges.items():
            if graph.nodes[producer].parts:
                for user, _, often in users:
                    if user >= 0:
                        self._join_part(found, producer, user, often)
                continue
            needs = self._needs(producer, users)
            if len({(user, places) for user, places, _ in users}) > 1 and any(
                len(need) > 1 for need in needs
            ):
                versions[producer] = self._share(found, producer, needs, int(count[producer]))
            for (user, places, often), need in zip(users, needs, strict=True):
                self._join(found, producer, user, places, often, need, versions.get(producer))
        return found

    def _own_s(self, number: int, one: JointStrategy) -> float:
        again = 2.0 if number in self.recomputed else 1.0
        own = self.graph.nodes[number].seconds(one.share / self.microbatches)
        return self.microbatches * (own + sum(map(self.costs.seconds, one.inner))) * again

    def output_bytes(self, number: int, strategy: JointStrategy) -> float:
        """Bytes of a rank's shard of a node's outputs, for the whole batch."""
        node = self.graph.nodes[number]
        return sum(
            prod(shape) * node.item_bytes * share_of(layout, self.mesh)
            for shape, layout in zip(node.parts or (node.shape,), strategy.outputs, strict=True)
        )

    def own_bytes(self, number: int, strategy: JointStrategy) -> float:
        """Bytes that a rank keeps for a node: parameters, buffers, and inputs of the backward pass."""
        node, size = self.graph.nodes[number], self.output_bytes(number, strategy)
        if node.op == "parameter":
            return size * (2.0 + self.states if node.source in self.graph.gradients else 1.0)
        if node.op in STATE:
            return size
        if number in self.saved or node.op == "input":
            return size * (self.alive if any(d is not None for d in self.batch_dims[number]) else 1.0)
        return 0.0

    def _edges(self) -> dict[int, list[tuple[int, tuple[int, ...], int]]]:
        """Users of each first copy as first copies, the places among their inputs, and how often.

        The user -2 - p is the gradient's or new value's end at parameter or buffer p; -1: the output wants it whole.
        """
        found: dict[int, dict[tuple[int, tuple[int, ...]], int]] = {}
        first, nodes = self.first, self.graph.nodes
        for number, node in enumerate(nodes):
            if node.op == "output":
                continue
            places: dict[int, list[int]] = {}
            for place, source in enumerate(node.inputs):
                places.setdefault(source, []).append(place)
            for source, own in places.items():
                key = (first[number], tuple(own))
                edges = found.setdefault(first[source], {})
                edges[key] = edges.get(key, 0) + 1
        for number, parameter in self._ends():
            edges = found.setdefault(first[number], {})
            key = (-2 - first[parameter] if parameter >= 0 else -1, ())
            edges[key] = edges.get(key, 0) + 1
        return {source: [(*key, often) for key, often in edges.items()] for source, edges in found.items()}

    def _ends(self) -> list[tuple[int, int]]:
        """Nodes that the step gives back, and the parameter or buffer whose layout they take; -1: whole."""
        sources = {n.source: i for i, n in enumerate(self.graph.nodes) if n.op in STATE}
        found = {number: sources[name] for name, number in self.graph.buffers.items() if name in sources}
        found |= {number: sources[name] for name, number in self.graph.gradients.items()}
        found.setdefault(self.graph.loss, -1)
        return list(found.items())

    def _needs(self, producer: int, users: Iterable[tuple[int, tuple[int, ...], int]]) -> list[list[Layout]]:
        """Layout that each value of each user takes; of an end, those of the parameter."""
        found = []
        for user, places, _ in users:
            if user == -1:
                found.append([(REPLICATED,) * len(self.mesh)])
            elif user < -1:
                found.append([one.outputs[0] for one in self.options[self.variables[-2 - user]]])
            else:
                found.append([one.inputs[places[0]] for one in self.options[self.variables[user]]])
        return found

    def _share(
        self, found: ChoiceProblem, producer: int, needs: list[list[Layout]], count: int
    ) -> tuple[int, list[_Version]]:
        """A variable for what of a tensor is shared by its users."""
        own = self.variables[producer]
        layouts = list(dict.fromkeys(one.outputs[0] for one in self.options[own]))
        wanted: dict[Layout, int] = {}
        for need in needs:
            for layout in dict.fromkeys(need):
                wanted[layout] = wanted.get(layout, 0) + 1
        once = self._once(producer, gradient=False)
        values, cost = list[_Version](), list[float]()
        ways = self._ways(self._bytes(producer, once=once), once, layouts, wanted)
        for layout, row in zip(layouts, ways, strict=True):
            values.append(_Version(layout, None))
            cost.append(0.0)
            for (target, times), seconds in zip(wanted.items(), row, strict=True):
                # What one user wants, and what takes no message, need not be shared.
                if times > 1 and seconds > 0 and np.isfinite(seconds) and _worth(layout, target):
                    values.append(_Version(layout, target))
                    cost.append(seconds * count)
        variable = found.add(np.array(cost))
        first = [one.outputs[0] for one in self.options[own]]
        same = np.array([[0.0 if a == value.own else np.inf for value in values] for a in first])
        found.join(own, variable, same)
        return variable, values

    def _join(
        self,
        found: ChoiceProblem,
        producer: int,
        user: int,
        places: tuple[int, ...],
        often: int,
        need: list[Layout],
        version: tuple[int, list[_Version]] | None,
    ) -> None:
        """Costs of an edge, between the producer or what is shared of its tensor and the user."""
        gradient = user < -1
        once = self._once(producer, gradient=gradient)
        again = 2 if user >= 0 and user in self.recomputed else 1
        if version is None:
            variable = self.variables[producer]
            values = [_Version(one.outputs[0], None) for one in self.options[variable]]
        else:
            variable, values = version
        distinct = {layout: i for i, layout in enumerate(dict.fromkeys(need))}
        rows = {value: i for i, value in enumerate(dict.fromkeys(values))}
        # Versions of a tensor are many more than its own layouts, and a way is searched for each pair of layouts.
        own = {layout: i for i, layout in enumerate(dict.fromkeys(value.own for value in rows))}
        ways = np.array(self._ways(self._bytes(producer, once=once), once, own, distinct))
        small = ways[[own[value.own] for value in rows]]
        for value, row in rows.items():
            if value.shared in distinct:
                small[row, distinct[value.shared]] = 0.0
        cost = small[np.ix_([rows[v] for v in values], [distinct[one] for one in need])] * (often * again)
        cost *= 1.0 - _BESIDE * gradient
        if len(places) > 1:
            # An operator that reads a tensor twice takes it once.
            options = self.options[self.variables[user]]
            odd = [len({one.inputs[place] for place in places}) > 1 for one in options]
            cost[:, odd] = np.inf
        if user == -1:
            found.cost[variable] = found.cost[variable] + cost[:, 0]
        else:
            found.join(variable, self.variables[-2 - user if gradient else user], cost)

    def _join_part(self, found: ChoiceProblem, producer: int, user: int, often: int) -> None:
        """A part of an operator's outputs lies as the operator leaves it."""
        part = int(self.graph.nodes[user].arguments.get("index", 0))
        first, second = self.variables[producer], self.variables[user]
        cost = np.array(
            [
                [0.0 if a.outputs[part] == b.inputs[0] else np.inf for b in self.options[second]]
                for a in self.options[first]
            ]
        )
        found.join(first, second, cost)

    # The solution

    def sharded(self, values: Sequence[int], stage_of: Sequence[int] | None = None) -> ShardingSpace:
        """Convert values of the variables to strategies and moves of all nodes.

        Args:
            values: Values of the variables of `problem`.
            stage_of: Stage of each node. Defaults to one stage for all.
        """
        nodes, first = self.graph.nodes, self.first
        stage = [0] * len(nodes) if stage_of is None else stage_of
        chosen = [
            self.options[self.variables[first[n]]][values[self.variables[first[n]]]]
            if nodes[n].op != "output"
            else JointStrategy((), ((REPLICATED,) * len(self.mesh),), 1.0)
            for n in range(len(nodes))
        ]
        wanted: dict[tuple[int, int, Layout, bool], set[int]] = {}
        last = len(nodes) - 1
        ends = dict(self._ends())
        for number, node in enumerate(nodes):
            if node.op in ("output", "getitem"):
                continue
            for place, source in enumerate(node.inputs):
                need = chosen[number].inputs[place]
                wanted.setdefault((source, stage[number], need, False), set()).add(number)
        for number, parameter in ends.items():
            need = chosen[parameter].outputs[0] if parameter >= 0 else (REPLICATED,) * len(self.mesh)
            home = stage[parameter] if parameter >= 0 else stage[number]
            gradient = parameter >= 0
            wanted.setdefault((number, home, need, gradient), set()).add(last)
        moves, brought = [], set[tuple[int, int]]()
        for (source, home, need, gradient), users in wanted.items():
            before = chosen[source].outputs[0]
            sends = home != stage[source] and nodes[source].op not in LEAVES
            if before == need and not sends:
                continue
            once = self._once(source, gradient=gradient)
            size = self._bytes(source, once=once)
            steps = layout_steps(before, need, size, self.mesh) or ()
            if sends:
                local = round(size * share_of(before, self.mesh))
                again = (source, home) in brought
                brought.add((source, home))
                steps = (MoveStep(kind="send", size_bytes=local, sent_bytes=0 if again else local), *steps)
            moves.append(
                Move(
                    producer=source,
                    consumers=tuple(sorted(users)),
                    source=tuple(map(str, before)),
                    target=tuple(map(str, need)),
                    steps=steps,
                    once=once,
                )
            )
        return ShardingSpace(
            tuple(chosen), tuple(sorted(moves, key=lambda one: (one.producer, one.consumers)))
        )

    def values_of(self, other: ShardingProblem, values: Sequence[int]) -> list[int]:
        """Translate the values of another problem with fewer strategies to this one."""
        _ = self.versions
        found = [0] * len(self.problem.cost)
        for variable in self.variables.values():
            found[variable] = self.options[variable].index(other.options[variable][values[variable]])
        for node, (variable, versions) in self.versions.items():
            own = self.options[self.variables[node]][found[self.variables[node]]].outputs[0]
            wanted = None
            if node in other.versions:
                at, theirs = other.versions[node]
                wanted = theirs[values[at]].shared
            version = _Version(own, wanted)
            found[variable] = versions.index(version if version in versions else _Version(own, None))
        return found


def _worth(source: Layout, target: Layout) -> bool:
    """Whether each dimension of the mesh keeps, gathers or sums; what moves from cut to cut is rarely shared."""
    many = len(source) > 1
    return not many or all(
        a == b or b.kind == "R" or a.kind == "P" for a, b in zip(source, target, strict=True)
    )


def _is_dtensors(layout: Layout) -> bool:
    """Whether torch's DTensor has the layout: a dimension that is cut again is cut without strides at first."""
    cuts = [one for one in layout if one.kind == "S"]
    return all(
        one.factor == 1 for i, one in enumerate(cuts) if any(one.dim == later.dim for later in cuts[i + 1 :])
    )


def _fits(layout: Layout, shape: Sequence[int], mesh: Sequence[int]) -> bool:
    """Whether dimensions of the mesh that cut one of the tensor do so evenly and alike."""
    cut: dict[int, tuple[int, int]] = {}
    for one, n in zip(layout, mesh, strict=True):
        if one.kind == "S":
            factor, ranks = cut.get(one.dim, (one.factor, 1))
            if factor != one.factor:
                return False
            cut[one.dim] = (factor, ranks * n)
    return all(shape[dim] % (factor * ranks) == 0 for dim, (factor, ranks) in cut.items())


def _useful(cut: DimPlacement, shape: Sequence[int]) -> bool:
    return cut.factor < shape[cut.dim]


def _part(dims: Sequence[int | None], node: OperatorNode) -> int | None:
    part = int(node.arguments.get("index", 0))
    return dims[part] if part < len(dims) else None


_ALIASES = VIEWS | frozenset(
    {"permute", "transpose", "t", "expand", "slice", "select", "split", "detach", "alias"}
)


def _is_view(node: OperatorNode) -> bool:
    return node.op == "getitem" or operator_name(node) in _ALIASES
