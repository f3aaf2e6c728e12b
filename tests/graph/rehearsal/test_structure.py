"""Centres and covers of nodes in a graph: near optimal (E2)."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.toys import path, undirected
from wirewise.graph.rehearsal import coverage, k_centre, radius


def best_radius(edges, nodes, budget, most=None):
    """Best radius, by trying all."""
    return min(radius(edges, nodes, np.array(c), maximum=most) for c in combinations(nodes, budget))


@st.composite
def graphs(draw, tree=False):
    count = draw(st.integers(2, 14))
    if tree:
        pairs = [(draw(st.integers(0, i - 1)), i) for i in range(1, count)]
    else:
        node = st.integers(0, count - 1)
        pairs = draw(st.lists(st.tuples(node, node), max_size=24))
    return undirected(pairs, count), count, draw(st.integers(1, min(4, count)))


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([None, 3]))
def test_e2_centres_are_within_twice_the_best_radius(graph, most):
    edges, count, budget = graph
    nodes = np.arange(count)[:: 1 + count % 2]
    budget = min(budget, len(nodes))
    found = k_centre(edges, nodes, budget, maximum=most)
    assert len(found) <= budget and set(found) <= set(nodes)
    assert radius(edges, nodes, found, maximum=most) <= 2 * best_radius(edges, nodes, budget, most)
    assert np.array_equal(found, k_centre(edges, nodes, budget, maximum=most))


@settings(max_examples=50, deadline=None)
@given(graphs(tree=True))
def test_e2_centres_of_a_tree_are_optimal(graph):
    edges, count, budget = graph
    nodes = np.arange(count)
    assert radius(edges, nodes, k_centre(edges, nodes, budget)) == best_radius(edges, nodes, budget)


@pytest.mark.parametrize("count", [2, 5, 9, 14])
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_e2_centres_of_a_path_are_optimal(count, budget):
    nodes = np.arange(count)
    expected = max(0, -(-(count - budget) // (2 * budget)))
    assert radius(path(count), nodes, k_centre(path(count), nodes, budget)) == expected


def test_a_path_without_an_end_counts_as_the_cap():
    edges = undirected([(0, 1), (2, 3)], 5)
    assert radius(edges, np.arange(5), np.array([0]), maximum=3) == 3
    assert radius(edges, np.array([0, 1]), np.array([0]), maximum=3) == 1


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 3))
def test_coverage_reaches_its_share_of_the_best(graph, hops):
    edges, count, budget = graph

    def covers(chosen):
        within = [
            v
            for v in range(count)
            if radius(edges, np.array([v]), np.array(chosen), maximum=hops + 1) <= hops
        ]
        return len(within)

    best = max(covers(list(c)) for c in combinations(range(count), budget))
    found = coverage(edges, np.arange(count), budget, hops=hops)
    assert len(found) == len(set(found)) == budget
    assert covers(found.tolist()) >= (1 - 1 / np.e) * best


def test_coverage_begins_anew_once_all_is_covered():
    star = undirected([(0, i) for i in range(1, 80)], 80)
    assert len(coverage(star, np.arange(80), 5, hops=1)) == 5
    assert 0 in coverage(star, np.arange(80), 1, hops=1)
