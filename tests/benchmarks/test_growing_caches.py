"""Caches while a graph grows: the same as planned anew on every graph, from few probabilities."""

import numpy as np
import pytest
from benchmarks.incremental.growth import GrowingCache
from hypothesis import given, settings
from hypothesis import strategies as st

from wirewise.errors import InputError
from wirewise.graph import BlockModel, block_model
from wirewise.graph.rehearsal import growing_graph
from wirewise.graph.structure import in_edges
from wirewise.planners.cache import POLICIES, CacheProblem, select_cached

SPARSE = BlockModel(nodes=6000, classes=12, mean_degree=3.0, features=2)


def problem_of(edges, owner, train, fanouts=(3, 2)):
    return CacheProblem(edges=edges, owner=owner, train=train, batch_size=4, fanouts=fanouts)


def drawn_problem(seed, nodes, edges, fanouts):
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, 2, nodes)
    train = tuple(np.flatnonzero((owner == k) & (rng.random(nodes) < 0.4)) for k in range(2))
    return problem_of(in_edges(edges, nodes), owner, train, fanouts)


def assert_as_planned_anew(cache, problem, budgets):
    for machine, budget in enumerate(budgets):
        scores = POLICIES["vip"](problem, machine)
        np.testing.assert_allclose(cache.scores(machine), scores, rtol=1e-12, atol=1e-15)
        fresh = select_cached(cache.scores(machine), problem.owner == machine, budget)
        np.testing.assert_array_equal(cache.kept[machine], fresh)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 30), st.integers(0, 10), st.sampled_from([(3, 2), (-1, 1, 2)]))
def test_any_change_gives_what_the_whole_graph_gives(seed, nodes, more, fanouts):
    """Edges come and go, nodes come, seeds and owners are others."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, nodes, (2, 3 * nodes))
    stays = first[:, rng.random(first.shape[1]) < 0.8]
    second = np.concatenate([stays, rng.integers(0, nodes + more, (2, 1 + more))], axis=1)
    before = drawn_problem(seed, nodes, first, fanouts)
    after = drawn_problem(seed + rng.integers(0, 2), nodes + more, second, fanouts)
    cache = GrowingCache(before, (3, 5))
    then = [set(kept.tolist()) for kept in cache.kept]
    changes = cache.grow(after)
    assert_as_planned_anew(cache, after, (3, 5))
    for machine, change in enumerate(changes):
        now = (then[machine] - set(change.drop.tolist())) | set(change.fetch.tolist())
        assert now == set(cache.kept[machine].tolist()) and not now & set(change.drop.tolist())
        assert not set(change.fetch.tolist()) & then[machine]


def test_one_edge_is_felt_within_its_hops_only():
    """On a path of 100 nodes, in both directions, every tenth one a seed."""
    nodes = np.arange(99)
    path = np.concatenate([[nodes, nodes + 1], [nodes + 1, nodes]], axis=1)
    owner, train = np.arange(100) % 2, (np.arange(0, 100, 20), np.arange(10, 100, 20))
    cache = GrowingCache(problem_of(in_edges(path, 100), owner, train), (20, 20))
    assert [change.recomputed for change in cache.grow(cache.problem)] == [0, 0]
    longer = np.concatenate([path, [[40], [50]]], axis=1)
    after = problem_of(in_edges(longer, 100), owner, train)
    changes = cache.grow(after)
    assert_as_planned_anew(cache, after, (20, 20))
    # Node 50 is a seed of the second machine; the first one's seeds are ten hops away.
    assert changes[0].recomputed == 0 and 0 < changes[1].recomputed < 12
    assert 40 in changes[1].fetch


def test_tasks_of_a_growing_graph_touch_a_part_of_it():
    growing = growing_graph(block_model(SPARSE))
    owner = np.arange(SPARSE.nodes) % 2

    def problem(task):
        train = growing.tasks[task].train[::20]
        return problem_of(growing.edges(task), owner, tuple(train[owner[train] == k] for k in range(2)))

    cache = GrowingCache(problem(0), (200, 200))
    for task in range(1, len(growing.tasks)):
        changes = cache.grow(problem(task))
        assert_as_planned_anew(cache, problem(task), (200, 200))
        assert all(0 < change.recomputed < 2 * SPARSE.nodes / 3 for change in changes)
        assert all(len(change.fetch) > 0 for change in changes)


def test_another_graph_is_named():
    owner = np.array([0, 1, 0, 1])
    edges = in_edges(np.array([[0, 1, 2], [1, 2, 3]]), 4)
    small = problem_of(edges, owner, (np.array([0]), np.array([1])))
    cache = GrowingCache(small, (1, 1))
    with pytest.raises(InputError, match=r"expected at least 4, 2 and \(3, 2\): plan another graph anew"):
        cache.grow(problem_of(edges, owner, (np.array([0]), np.array([1])), (3, 2, 1)))
    with pytest.raises(InputError, match=r"budgets are \[1\]; expected 2"):
        GrowingCache(small, (1,))
