"""Inclusion probabilities against closed forms, enumeration and sampling."""

from itertools import combinations

import numpy as np
import pytest

from wirewise.graph import BlockModel, block_model
from wirewise.graph.sampling import NeighborSampler
from wirewise.graph.structure import in_edges
from wirewise.planners.cache import (
    Drawers,
    inclusion,
    one_hop,
    seed_probability,
)


def drawn_from(edges, nodes):
    """Edges (u, v): v draws u."""
    return in_edges(np.array(edges).T.reshape(2, -1), nodes)


def out_tree(nodes, roots, rng):
    """A forest in which every node but the roots is drawn by one node before it."""
    return [(u, int(rng.integers(u))) for u in range(roots, nodes)]


@pytest.mark.slow
def test_v1_exact_on_a_forest_where_each_node_has_one_drawer():
    rng, nodes, rounds, roots = np.random.default_rng(3), 120, 50_000, 12
    edges = drawn_from(out_tree(nodes, roots, rng), nodes)
    train, fanouts = np.arange(roots), [2, 1, 2]
    expected = inclusion(Drawers(edges), seed_probability(nodes, train, 4), fanouts, frontier=True)
    sampler, counts = NeighborSampler(edges, fanouts, semantics="frontier"), np.zeros(nodes)
    for number in range(rounds):
        batch = sampler.sample(rng.choice(roots, 4, replace=False), batch=number)
        counts[batch.n_id[4:]] += 1
    # Seeds are drawn without replacement, which a node with one drawer cannot notice.
    deviation = np.sqrt(rounds * expected * (1 - expected))
    assert (np.abs(counts - rounds * expected) <= 4.5 * deviation + 1e-9).all()


def test_v1_closed_forms_of_a_path_and_a_star():
    path = Drawers(drawn_from([(1, 0), (2, 1), (3, 2)], 4))
    assert inclusion(path, np.array([0.3, 0, 0, 0]), [1, 1]) == pytest.approx([0, 0.3, 0.3, 0], abs=1e-12)
    leaves = 10
    star = Drawers(drawn_from([(leaf, 0) for leaf in range(1, leaves + 1)], leaves + 1))
    found = inclusion(star, np.array([0.5] + [0.0] * leaves), [4])
    assert found == pytest.approx([0] + [0.5 * 0.4] * leaves, abs=1e-12)
    centre = Drawers(drawn_from([(0, leaf) for leaf in range(1, leaves + 1)], leaves + 1))
    found = inclusion(centre, np.array([0] + [0.2] * leaves), [1])
    assert found[0] == pytest.approx(1 - 0.8**leaves, abs=1e-12)


def test_sums_over_drawers_are_those_of_the_turned_edges_in_their_order():
    rng, nodes = np.random.default_rng(2), 200
    drawers = Drawers(in_edges(rng.integers(nodes, size=(2, 1500)), nodes))
    values = rng.random(nodes) * (rng.random(nodes) < 0.2)
    expected = np.zeros(nodes)
    for node in range(nodes):
        for drawer in drawers.indices[drawers.indptr[node] : drawers.indptr[node + 1]]:
            expected[node] += values[drawer]
    assert (drawers.sums(values) == expected).all() and expected.any()
    assert (drawers.num_samplers == np.diff(drawers.indptr)).all()


def test_v1_one_hop_is_exact():
    rng, nodes, train, size, fanout = np.random.default_rng(0), 9, np.arange(6), 3, 2
    edges = in_edges(rng.integers(nodes, size=(2, 40)), nodes)
    degree = np.diff(edges.indptr)
    share = np.minimum(1, fanout / np.maximum(degree, 1))
    expected = np.zeros(nodes)
    sets = list(combinations(train.tolist(), size))
    for chosen in sets:
        spared = np.ones(nodes)
        for v in chosen:
            spared[edges.indices[edges.indptr[v] : edges.indptr[v + 1]]] *= 1 - share[v]
        expected += (1 - spared) / len(sets)
    assert one_hop(Drawers(edges), train, size, fanout) == pytest.approx(expected, abs=1e-10)


def test_v3_probabilities_whatever_the_knobs():
    edges = block_model(BlockModel(nodes=400, classes=3, features=2)).in_edges
    drawers = Drawers(edges)
    for train, size in [(np.arange(5), 50), (np.arange(0), 8), (np.arange(400), 400)]:
        for fanouts in [(0,), (3, 2), (-1, -1), (1000, 5)]:
            for frontier in (False, True):
                found = inclusion(drawers, seed_probability(400, train, size), fanouts, frontier=frontier)
                assert np.isfinite(found).all()
                assert found.min() >= -1e-12
                assert found.max() <= 1 + 1e-12


def test_v3_everything_drawn_is_reachability():
    rng, nodes = np.random.default_rng(5), 60
    edges = in_edges(rng.integers(nodes, size=(2, 70)), nodes)
    train = np.array([3, 4])
    found = inclusion(Drawers(edges), seed_probability(nodes, train, 2), [-1, -1])
    batch = NeighborSampler(edges, [-1, -1]).sample(train)
    reached = np.zeros(nodes, bool)
    for layer in batch.layers:
        reached[batch.n_id[layer.sources]] = True
    assert found == pytest.approx(reached.astype(float), abs=1e-9)


def test_v4_more_draws_never_make_a_node_less_likely():
    edges = block_model(BlockModel(nodes=500, classes=3, features=2)).in_edges
    drawers, train = Drawers(edges), np.arange(100)
    base = inclusion(drawers, seed_probability(500, train, 10), [4, 3])
    for size, fanouts in [(20, [4, 3]), (10, [6, 3]), (10, [4, 5])]:
        assert (inclusion(drawers, seed_probability(500, train, size), fanouts) >= base - 1e-12).all()


def test_v5_direction_matters():
    drawers = Drawers(drawn_from([(1, 0)], 2))
    assert inclusion(drawers, np.array([1.0, 0.0]), [1]) == pytest.approx([0, 1])
    assert inclusion(drawers, np.array([0.0, 1.0]), [1]) == pytest.approx([0, 0])
