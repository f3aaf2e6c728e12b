"""Centres and covers of vertices in a graph: near optimal (E2)."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.toys import path, undirected
from wirewise.graph.rehearsal import coverage, k_centre, radius


def best_radius(edges, vertices, budget, most=None):
    """By trying all."""
    return min(radius(edges, vertices, np.array(c), most=most) for c in combinations(vertices, budget))


@st.composite
def graphs(draw, tree=False):
    nodes = draw(st.integers(2, 14))
    if tree:
        pairs = [(draw(st.integers(0, i - 1)), i) for i in range(1, nodes)]
    else:
        node = st.integers(0, nodes - 1)
        pairs = draw(st.lists(st.tuples(node, node), max_size=24))
    return undirected(pairs, nodes), nodes, draw(st.integers(1, min(4, nodes)))


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([None, 3]))
def test_e2_centres_are_within_twice_the_best_radius(graph, most):
    edges, nodes, budget = graph
    vertices = np.arange(nodes)[:: 1 + nodes % 2]
    budget = min(budget, len(vertices))
    found = k_centre(edges, vertices, budget, most=most)
    assert len(found) <= budget and set(found) <= set(vertices)
    assert radius(edges, vertices, found, most=most) <= 2 * best_radius(edges, vertices, budget, most)
    assert np.array_equal(found, k_centre(edges, vertices, budget, most=most))


@settings(max_examples=50, deadline=None)
@given(graphs(tree=True))
def test_e2_centres_of_a_tree_are_optimal(graph):
    edges, nodes, budget = graph
    vertices = np.arange(nodes)
    assert radius(edges, vertices, k_centre(edges, vertices, budget)) == best_radius(edges, vertices, budget)


@pytest.mark.parametrize("nodes", [2, 5, 9, 14])
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_e2_centres_of_a_path_are_optimal(nodes, budget):
    vertices = np.arange(nodes)
    expected = max(0, -(-(nodes - budget) // (2 * budget)))
    assert radius(path(nodes), vertices, k_centre(path(nodes), vertices, budget)) == expected


def test_a_path_without_an_end_counts_as_the_cap():
    edges = undirected([(0, 1), (2, 3)], 5)
    assert radius(edges, np.arange(5), np.array([0]), most=3) == 3
    assert radius(edges, np.array([0, 1]), np.array([0]), most=3) == 1


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 3))
def test_coverage_reaches_its_share_of_the_best(graph, hops):
    edges, nodes, budget = graph

    def covers(chosen):
        within = [
            v for v in range(nodes) if radius(edges, np.array([v]), np.array(chosen), most=hops + 1) <= hops
        ]
        return len(within)

    best = max(covers(list(c)) for c in combinations(range(nodes), budget))
    found = coverage(edges, np.arange(nodes), budget, hops=hops)
    assert len(found) == len(set(found)) == budget
    assert covers(found.tolist()) >= (1 - 1 / np.e) * best


def test_coverage_begins_anew_once_all_is_covered():
    star = undirected([(0, i) for i in range(1, 80)], 80)
    assert len(coverage(star, np.arange(80), 5, hops=1)) == 5
    assert 0 in coverage(star, np.arange(80), 1, hops=1)
