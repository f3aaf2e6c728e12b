"""Shardings that users write themselves, and that no plan is slower than these."""

from dataclasses import replace
from functools import partial

import pytest
from msgspec.structs import replace as replaced

from tests.planners.parallel import graphs
from tests.planners.parallel.rhino.costs import ByteCosts, words
from wirewise.cost import Links
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan, plan_of
from wirewise.planners.parallel.rhino.known import (
    data_parallel,
    paired_cuts,
    solve_preferring,
    tensor_parallel,
)
from wirewise.planners.parallel.rhino.shardings import ShardingProblem

CUTS = {"layers.*.up": "S1", "layers.*.down": "S0"}


def problem():
    graph = graphs.layers(rows=64, width=32, batch=8, attention=False)
    return ShardingProblem(graph=graph, mesh=(4,), costs=ByteCosts())


def test_the_batch_is_cut_and_gradients_are_summed():
    sharding = problem()
    graph = sharding.graph
    sharded = sharding.sharded(data_parallel(sharding).values)
    assert set(map(tuple, words(sharding, sharded).values())) == {("R",)}
    gradients = {n for name, n in graph.gradients.items() if name.startswith("layers.")}
    steps = {
        move.producer: [(step.kind, step.size_bytes) for step in move.steps]
        for move in sharded.moves
        if move.producer in gradients
    }
    assert len(steps) > 2
    assert steps == {n: [("all_reduce", graph.nodes[n].output_bytes)] for n in gradients}


def test_parameters_in_parts_are_gathered():
    sharding = problem()
    sharded = sharding.sharded(data_parallel(sharding, cut=True).values)
    held = words(sharding, sharded)
    assert set(map(tuple, held.values())) == {("S0",)}
    kinds = {
        step.kind
        for move in sharded.moves
        for step in move.steps
        if sharding.graph.nodes[move.producer].op == "parameter"
    }
    assert kinds == {"all_gather"}


def test_where_nothing_is_preferred_the_cheapest_is_taken():
    sharding = problem()
    free, found = sharding.problem.solve(), solve_preferring(sharding, lambda *_: False)
    assert found.cost == pytest.approx(free.cost)


@pytest.mark.parametrize("rate", [1e9, 1e7])
def test_no_plan_is_slower_than_what_users_write(rate):
    """Gradients are exchanged behind the backward pass, which the sum of all costs does not see."""
    given = ParallelProblem(graph=problem().graph, links=Links.uniform(4, rate, 1e-6))
    usual = plan_of(given, data_parallel, "data parallel")
    found = plan(given, stages=1, mesh=(4,))
    for name, way in (
        ("parts", partial(data_parallel, cut=True)),
        ("by hand", partial(tensor_parallel, cuts=CUTS)),
        ("in pairs", partial(tensor_parallel, cuts=paired_cuts(given.graph))),
    ):
        one = plan_of(given, way, name)
        of_hand = plan(replace(given, cuts=CUTS), stages=1, mesh=(4,)) if name == "by hand" else found
        assert of_hand.predicted_step_s <= one.predicted_step_s * (1 + 1e-12), name
    assert found.predicted_step_s <= usual.predicted_step_s
    assert found.bound_s <= found.predicted_step_s and found.gap >= 0


def test_matrices_of_a_module_are_cut_in_pairs():
    graph = graphs.layers(rows=64, width=32, batch=8, attention=False)
    nodes = [replaced(node, module=node.source) if node.op == "parameter" else node for node in graph.nodes]
    found = paired_cuts(replaced(graph, nodes=tuple(nodes)))
    assert found == {
        f"layers.{n}.{name}": cut for n in range(2) for name, cut in (("up", "S0"), ("down", "S1"))
    }
