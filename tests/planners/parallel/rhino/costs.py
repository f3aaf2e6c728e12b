"""Costs that count bytes alone, and what a solution moves."""

from __future__ import annotations

from collections import Counter

from wirewise.planners.parallel.rhino.shardings import ShardingProblem, ShardingSpace
from wirewise.plans import MoveStep
from wirewise.trace.operator_graph import OperatorGraph


class ByteCosts:
    """A byte that a rank sends takes a nanosecond."""

    def seconds(self, step: MoveStep) -> float:
        return step.sent_bytes * 1e-9


def solved(
    graph: OperatorGraph, mesh: tuple[int, ...], **given
) -> tuple[ShardingProblem, ShardingSpace, float]:
    """The best shardings by bytes alone."""
    problem = ShardingProblem(graph=graph, mesh=mesh, costs=ByteCosts(), **given)
    chosen = problem.problem.solve()
    assert chosen is not None and chosen.cost - chosen.bound <= 1e-6 * chosen.cost
    return problem, problem.sharded(chosen.values), chosen.cost


def words(problem: ShardingProblem, sharded: ShardingSpace) -> dict[str, list[str]]:
    """Words of the placement of each parameter."""
    return {
        node.source: list(map(str, sharded.strategies[number].outputs[0]))
        for number, node in enumerate(problem.graph.nodes)
        if node.op == "parameter"
    }


def sent(problem: ShardingProblem, sharded: ShardingSpace, least: int = 100) -> Counter[tuple[str, str, str]]:
    """How often modules' tensors move, by module, phase and kind; moves of a few bytes do not count."""
    nodes = problem.graph.nodes
    return Counter(
        (nodes[move.producer].module, nodes[move.producer].phase, step.kind)
        for move in sharded.moves
        for step in move.steps
        if step.sent_bytes > least
    )
