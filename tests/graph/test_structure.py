"""Edge lists as sorted in-neighbours."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.toys import adjacency, toy


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-4, 4)), max_size=20), st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_undirected_is_the_union_of_both_directions(edges, weighted):
    weight = np.array([w + 0.5 for *_, w in edges], np.float32) if weighted else None
    data = toy([edge[:2] for edge in edges], nodes=6, edge_weight=weight)
    both = data.undirected()
    assert not both.directed
    there, pattern = adjacency(data), np.zeros((6, 6), bool)
    for source, target, _ in edges:
        pattern[target, source] = source != target
    low = np.where(pattern, there, -np.inf)
    wanted = np.maximum(low, low.T)
    assert np.array_equal(adjacency(both), np.where(np.isfinite(wanted), wanted, 0))
    assert both.num_edges == (pattern | pattern.T).sum()
    both.validate()
