"""Partition of a captured step into parts that run in sequence: regions of a plan, and operators between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tag, fx

from wirewise.errors import PlanError
from wirewise.runtime.data_parallel.capture import is_operator, parts_of_result, producer_of
from wirewise.runtime.data_parallel.matching import format_names

__all__ = ["Segment", "cut", "module_of"]

_SHOWN = 8


@dataclass(frozen=True)
class Segment:
    """Operators executed as one function."""

    nodes: tuple[fx.Node, ...]
    """Operators in topological order, with the parts of their results."""
    inputs: tuple[fx.Node, ...]
    """Values from outside that they read."""
    outputs: tuple[fx.Node, ...]
    """Values that others read, or that the step returns."""
    region: bool
    """Whether the plan made them one kernel."""

    @property
    def eager(self) -> bool:
        """Whether a compiler should leave the operators alone."""
        return is_eager_only(self.nodes[0])


def cut(
    module: fx.GraphModule, regions: Sequence[Sequence[str]], urgent: Iterable[Sequence[fx.Node]] = ()
) -> list[Segment]:
    """Partition a step into parts, in execution order.

    An operator in several regions is in each of their parts, and operators outside read the first one's result.
    Operators in no region, or alone in one, form parts as long as the order allows; uncompilable ones form separate
    parts.

    Args:
        module: Functional graph (`capture`), possibly with added operators that no region names.
        regions: Operator names of each region.
        urgent: Chains of added operators to run as early as possible; a part ends with each, so that its value is
            sent at once.

    Raises:
        PlanError: Operators are unknown, or regions depend on each other cyclically; the message names them.
    """
    nodes = [node for node in module.graph.nodes if is_operator(node)]
    units = [*_named(nodes, regions)]
    within = {node for unit in units for node in unit}
    units += [(node,) for node in nodes if node not in within]
    chains = [tuple(chain) for chain in urgent]
    first = {node for chain in chains for node in chain}
    order = _order(units, {node: i for i, node in enumerate(nodes)}, first)
    groups = _groups(units, order, {chain[-1] for chain in chains})
    return _parts(module, units, groups)


def _groups(
    units: Sequence[tuple[fx.Node, ...]], order: Sequence[int], ends: Collection[fx.Node]
) -> list[list[int]]:
    """Units that run as one part, the parts in order."""
    groups: list[list[int]] = []
    # Whether the last group takes units that stay eager or others; None: it takes no more.
    takes: bool | None = None
    for unit in order:
        alone, eager = len(units[unit]) > 1, any(map(is_eager_only, units[unit]))
        if alone or takes is not eager:
            groups.append([])
        groups[-1].append(unit)
        takes = None if alone or units[unit][0] in ends else eager
    return groups


def is_eager_only(node: fx.Node) -> bool:
    """Whether an operator must not be compiled: it is random, or has a oneDNN workspace."""
    target: Any = node.target
    return Tag.nondeterministic_seeded in target.tags or "mkldnn" in target._schema.name


def _named(nodes: Sequence[fx.Node], regions: Sequence[Sequence[str]]) -> Iterator[tuple[fx.Node, ...]]:
    """The nodes of each region, in topological order."""
    number = {node.name: i for i, node in enumerate(nodes)}
    unknown = [name for region in regions for name in region if name not in number]
    if unknown:
        raise PlanError(
            f"the plan's regions name operators that the captured step does not have: {format_names(unknown, _SHOWN)}; "
            "plan again from a capture of this model, loss and batch"
        )
    for region in regions:
        yield tuple(nodes[i] for i in sorted(number[name] for name in region))


def _order(
    units: Sequence[tuple[fx.Node, ...]], number: dict[fx.Node, int], urgent: Collection[fx.Node]
) -> list[int]:
    """Units as they get ready, first come first served, but the urgent at once; else by their last operator."""
    provider = _providers(units)
    # A copy of a value inside a unit serves that unit.
    needs = [
        {provider[read] for read in map(producer_of, _reads(unit)) if read in provider} for unit in units
    ]
    users: list[list[int]] = [[] for _ in units]
    for unit, reads in enumerate(needs):
        for read in reads:
            users[read].append(unit)
    left = [len(reads) for reads in needs]
    ready = deque(sorted((u for u, n in enumerate(left) if n == 0), key=lambda u: number[units[u][-1]]))
    order: list[int] = []
    while ready:
        order.append(unit := ready.popleft())
        for user in users[unit]:
            left[user] -= 1
        for user in sorted((u for u in users[unit] if left[u] == 0), key=lambda u: number[units[u][-1]]):
            (ready.appendleft if units[user][0] in urgent else ready.append)(user)
    if any(left):
        stuck = [units[u] for u, n in enumerate(left) if n and len(units[u]) > 1]
        told = "; ".join(format_names([node.name for node in unit], _SHOWN) for unit in stuck[:3])
        raise PlanError(
            f"{len(stuck)} regions wait for each other: {told}; a region may hold no two operators with a path "
            "between them that leaves it: plan again"
        )
    return order


def _providers(units: Sequence[tuple[fx.Node, ...]]) -> dict[fx.Node, int]:
    """The first unit that computes each operator."""
    found: dict[fx.Node, int] = {}
    for number, unit in enumerate(units):
        for node in unit:
            found.setdefault(node, number)
    return found


def _parts(
    module: fx.GraphModule, units: Sequence[tuple[fx.Node, ...]], groups: Sequence[Sequence[int]]
) -> list[Segment]:
    place = {unit: number for number, group in enumerate(groups) for unit in group}
    provider = {node: place[unit] for node, unit in _providers(units).items()}
    (end,) = module.graph.find_nodes(op="output")
    own = [[node for unit in group for node in units[unit]] for group in groups]
    reads = [_reads(nodes) for nodes in own]
    wanted = {node for inputs in reads for node in inputs} | set(end.all_input_nodes)
    parts = []
    for number, (group, nodes) in enumerate(zip(groups, own, strict=True)):
        whole = [part for node in nodes for part in (node, *parts_of_result(node))]
        given = [node for node in whole if node in wanted and provider[producer_of(node)] == number]
        region = len(units[group[0]]) > 1
        parts.append(Segment(tuple(whole), tuple(reads[number]), tuple(given), region))
    return parts


def _reads(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Values from outside that these operators read, each once."""
    inside = set(nodes)
    reads = (read for node in nodes for read in node.all_input_nodes if producer_of(read) not in inside)
    return list(dict.fromkeys(reads))


def module_of(part: Segment) -> fx.GraphModule:
    """Convert a part to a function of its inputs that returns its outputs as a tuple."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in part.inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in part.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in part.outputs))
    graph.eliminate_dead_code()
    return fx.GraphModule({}, graph)
