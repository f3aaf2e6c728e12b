"""Stages of graphs that are no chains: against every cut, and against cuts of the order that modules are written in."""

import itertools

import numpy as np
import pytest

from tests.planners.parallel import graphs
from wirewise.errors import PlanError
from wirewise.planners.parallel.rhino.stages import (
    StageGraph,
    communication_cost,
    cut_stages,
    stage_graph,
    stages_of_nodes,
)


def unet() -> StageGraph:
    """Two levels, in the order that a U-Net is written in: each skip's narrowing stands at its joint in the decoder."""
    # 0 first, 1 down, 2 second, 3 down, 4 middle, 5 up, 6 narrow, 7 join, 8 up, 9 narrow, 10 join, 11 last.
    work = (4.0, 1.0, 4.0, 1.0, 6.0, 1.0, 1.0, 4.0, 1.0, 1.0, 4.0, 4.0)
    tensors = (
        (0, 64.0, (1, 9)), (1, 16.0, (2,)), (2, 32.0, (3, 6)), (3, 8.0, (4,)), (4, 8.0, (5,)), (5, 16.0, (7,)),
        (6, 8.0, (7,)), (7, 16.0, (8,)), (8, 32.0, (10,)), (9, 16.0, (10,)), (10, 32.0, (11,)),
    )  # fmt: skip
    return StageGraph(work, tensors)


def allowed(graph: StageGraph, stage_of, stages: int, balance: float) -> bool:
    work = np.bincount(stage_of, graph.work, stages)
    return work.max() <= (1 + balance) * work.mean() + 1e-9 and all(
        stage_of[op] <= stage_of[user] for op, _, users in graph.tensors for user in users
    )


def contiguous(graph: StageGraph, stages: int, balance: float) -> float:
    """Least that crosses where stages are runs of the order."""
    found = [np.inf]
    for cuts in itertools.combinations(range(1, len(graph.work)), stages - 1):
        stage_of = np.searchsorted(cuts, np.arange(len(graph.work)), side="right")
        if allowed(graph, stage_of, stages, balance):
            found.append(communication_cost(graph, stage_of))
    return min(found)


def test_p5_a_unet_crosses_less_than_any_cut_of_its_order():
    graph = unet()
    found = cut_stages(graph, 2)
    every = (np.array(s) for s in itertools.product(range(2), repeat=len(graph.work)))
    best = min(communication_cost(graph, s) for s in every if allowed(graph, s, 2, 0.08))
    assert found.cost == pytest.approx(best) == pytest.approx(found.bound)
    assert found.balance <= 1.08 and found.cost < contiguous(graph, 2, 0.08)


def drawn(seed: int) -> StageGraph:
    rng = np.random.default_rng(seed)
    ops = int(rng.integers(5, 10))
    tensors = tuple(
        (op, float(rng.integers(1, 20)), tuple(sorted({int(u) for u in rng.integers(op + 1, ops, 2)})))
        for op in range(ops - 1)
    )
    return StageGraph(tuple(float(w) for w in rng.integers(1, 4, ops)), tensors)


def test_p5_never_more_than_the_best_contiguous_cut_and_equal_to_trying_all():
    for seed in range(12):
        graph = drawn(seed)
        found = cut_stages(graph, 3, balance=0.3)
        assert all(
            found.stage_of[op] <= found.stage_of[user] for op, _, users in graph.tensors for user in users
        )
        limit = found.balance - 1 if found.balance > 1.3 else 0.3
        every = itertools.product(range(3), repeat=len(graph.work)) if len(graph.work) <= 8 else ()
        costs = [communication_cost(graph, s) for s in every if allowed(graph, s, 3, limit)]
        assert found.cost <= contiguous(graph, 3, min(limit, 0.3)) + 1e-9
        assert not costs or found.balance > 1.3 or found.cost == pytest.approx(min(costs))


def test_a_tensor_goes_to_a_stage_once_however_many_take_it():
    graph = StageGraph((1.0, 1.0, 1.0, 1.0), ((0, 5.0, (2, 3)), (1, 3.0, (2,))), together=((2, 3),))
    assert cut_stages(graph, 2, balance=0.0)[:2] == ((0, 0, 1, 1), 8.0)


def test_a_training_step_is_cut_in_balance_with_its_backward_pass():
    graph = graphs.gpt(layers=4, fold=False, batch=4, length=8, width=32, words=64)
    ops, op_of = stage_graph(graph)
    found = cut_stages(ops, 2)
    stage_of = stages_of_nodes(graph, op_of, found.stage_of)
    work = np.bincount(stage_of, [node.time_s for node in graph.nodes], 2)
    assert work.max() / work.mean() <= 1.09
    for number, node in enumerate(graph.nodes):
        for source in node.inputs if node.op != "output" else ():
            first, second = stage_of[source], stage_of[number]
            if graph.nodes[source].computes and graph.nodes[source].phase == node.phase:
                assert first <= second if node.phase == "forward" else first >= second


def test_more_stages_than_operators_are_refused():
    with pytest.raises(PlanError, match="no more stages than operators"):
        cut_stages(StageGraph((1.0,), ()), 2)
