"""The memory that a part and its activations take."""

import numpy as np

from tests.graph.toys import toy
from wirewise.graph import (
    part_memory_bytes,
    split_graph,
)


def test_the_memory_formula_counts_arrays_and_activations():
    part = next(split_graph(toy([(0, 1), (2, 1)]), np.array([1, 0, 1, 1])))
    assert (part.num_own, part.num_halo) == (1, 2)
    arrays = sum(value.nbytes for value in vars(part).values() if isinstance(value, np.ndarray))
    assert part_memory_bytes(part, []) == arrays
    assert part.num_central == 0
    assert part_memory_bytes(part, [(10, 7, 3), (5, 0, 0)]) == arrays + 4 * (1 * 15 + 1 * 7 + 2 * 3)
    assert part_memory_bytes(part, [(10, 0, 3)], value_bytes=8) == arrays + 8 * (10 + 6)
    inner = next(split_graph(toy([(0, 1), (2, 1)]), np.array([0, 0, 0, 1])))
    assert inner.num_own == inner.num_central == 3
    assert part_memory_bytes(inner, [(10, 7, 3)]) == inner.nbytes + 4 * 3 * 10
