"""Nodes renumbered so that each machine's are a range."""

import numpy as np

from tests.graph.toys import toy
from wirewise.graph.ranges import ranges_of


def test_renumbered_nodes_keep_their_rows():
    data = toy([(0, 1), (2, 3)], node_data={"age": np.array([5, 6, 7, 8])})
    ranges = ranges_of(np.array([1, 0, 1, 0]))
    assert ranges.renumber(data).node_data["age"].tolist() == [6, 8, 5, 7]
