import dataclasses

import numpy as np
import pytest

from tests.graph.toys import toy
from wirewise.errors import GraphError
from wirewise.graph import SparseRows


def sparse(indptr, indices, data=None, columns=3):
    return SparseRows(
        indptr=np.array(indptr, np.int64),
        indices=np.array(indices, np.int32),
        data=None if data is None else np.array(data, np.float32),
        num_columns=columns,
    )


def with_nan(value):
    x = np.ones((4, 3), np.float32)
    x[2, 1] = value
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"edge_index": np.array([[0, 1], [1, 9]])},
            "edge 1 goes from node 1 to node 9, but nodes are 0 to 3; 1 of 2",
        ),
        ({"edge_index": np.array([[0, -1], [1, 0]])}, "edge 1 goes from node -1 to node 0"),
        (
            {"edge_index": np.array([0, 1])},
            r"edge_index is int64 \[2\]; expected integers of shape \[2, edges\]",
        ),
        ({"edge_index": np.zeros((2, 1))}, "edge_index is float64"),
        ({"y": np.zeros(0, np.int64)}, "the graph has no nodes"),
        (
            {"edge_weight": np.ones(5, np.float32)},
            r"edge_weight has shape \[5\]; expected one weight for each edge",
        ),
        ({"edge_weight": np.array([1, np.nan], np.float32)}, "edge_weight of edge 1 is nan"),
        ({"directed": False}, "marked undirected, but edge 0 -> 1 has no reverse"),
        ({"x": with_nan(np.nan)}, "x of node 2, column 1 is nan; expected finite numbers"),
        ({"x": with_nan(-np.inf)}, "x of node 2, column 1 is -inf"),
        ({"x": np.ones((3, 3), np.float32)}, "x has 3 rows and y has 4"),
        ({"x": np.ones((4, 0), np.float32)}, "x has no columns"),
        ({"x": np.ones(4, np.float32)}, r"x is float32 \[4\]; expected floats of shape"),
        ({"x": sparse([0, 1, 1, 1, 2], [0, 7])}, "x_indices of node 3 names column 7; expected 0 to 2"),
        ({"x": sparse([0, 1, 0, 1, 2], [0, 1])}, "x_indptr does not start at 0 or decreases"),
        ({"x": sparse([0, 1, 1, 1, 5], [0, 1])}, "x_indptr ends at 5, but x_indices has 2 values"),
        ({"x": sparse([0, 1, 1, 1, 2], [0, 1], [1])}, "x_data has 1 values and x_indices 2"),
        ({"x": sparse([0, 1, 1, 1, 2], [0, 2], [1, np.inf])}, "x of node 3, column 2 is inf"),
        ({"y": np.array([0, 1, -1, 0])}, "y of node 2 is -1; expected a class from 0 to 1"),
        ({"y": np.array([0, 1, 2, 0])}, "y of node 2 is 2; expected a class from 0 to 1"),
        ({"y": np.ones(4, np.float32)}, r"y is float32 \[4\]; expected integers"),
        ({"y": np.full((4, 2), 0.5, np.float32)}, "y of node 0, class 0 is 0.5; expected 0 or 1"),
        ({"y": np.ones((4, 3), np.float32)}, r"y is float32 \[4, 3\]; expected float32 \[nodes, 2\]"),
        ({"class_names": ("a",)}, "class_names has 1 names for 2 classes"),
        ({"split": np.array([0, 1, 7, 2], np.uint8)}, "split of node 2 is 7; expected 0"),
        ({"split": np.array([0, 1], np.uint8)}, r"split has shape \[2\] and y 4 rows"),
        ({"split": np.array([2, 1, 1, 2], np.uint8)}, r"no node has split 0 \(train\)"),
    ],
)
def test_each_fault_is_named(changes, message):
    with pytest.raises(GraphError, match=message):
        dataclasses.replace(toy([(0, 1), (2, 3)]), **changes).validate()


def test_a_node_without_a_split_needs_no_label():
    data = toy([(0, 1)], y=np.array([0, 1, 0, -1]), split=np.array([0, 1, 2, 255], np.uint8))
    assert data.validate() is data


def test_sparse_rows_are_the_same_matrix():
    dense = np.array([[0, 2, 0], [1, 0, 0], [0, 0, 0], [3, 0, 4]], np.float32)
    rows = SparseRows.from_dense(dense)
    assert rows.shape == (4, 3) and len(rows) == 4
    assert np.array_equal(rows.to_dense(), dense)
    order = np.array([3, 2, 3, 0])
    assert np.array_equal(rows.rows(order).to_dense(), dense[order])
    assert rows.nbytes == 5 * 8 + 4 * 4 + 4 * 4
    assert SparseRows.from_dense(dense > 0).data is None


def test_the_fingerprint_tells_graphs_apart_but_not_edge_orders():
    data = toy([(0, 1), (2, 3), (1, 2)])
    same = dataclasses.replace(data, edge_index=data.edge_index[:, ::-1].copy())
    assert same.fingerprint == data.fingerprint
    for changes in (
        {"edge_index": data.edge_index[::-1].copy()},
        {"x": data.x + 1},
        {"y": 1 - data.y},
        {"split": data.split[::-1].copy()},
        {"num_classes": 3},
    ):
        assert dataclasses.replace(data, **changes).fingerprint != data.fingerprint
