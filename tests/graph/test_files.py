import dataclasses
import os

import numpy as np
import pytest

from tests.graph.toys import toy
from wirewise.errors import GraphError
from wirewise.files import atomic_file
from wirewise.graph import SparseRows, read_graph, write_graph


def arrays(**changes):
    good = {
        "edge_index": np.array([[0, 1], [1, 2]]),
        "x": np.ones((3, 2), np.float32),
        "y": np.array([0, 1, 1]),
        "split": np.array([0, 1, 2]),
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


SPARSE = {
    "x": None,
    "x_indptr": np.array([0, 1, 2, 2]),
    "x_indices": np.array([0, 1]),
    "num_features": np.array(2),
}
EMPTY = {key: value[:, :0] if key == "edge_index" else value[:0] for key, value in arrays().items()}


@pytest.fixture
def file(tmp_path):
    def write(**changes):
        path = tmp_path / "graph.npz"
        np.savez(path, **arrays(**changes))
        return path

    return write


def test_a_file_is_undirected_unless_it_says_otherwise(file):
    assert read_graph(file()).edge_index.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
    directed = read_graph(file(directed=np.bool_(True)))
    assert directed.directed and directed.edge_index.tolist() == [[0, 1], [1, 2]]


def test_sparse_features_and_class_names(file):
    sparse = {
        "x": None,
        "x_indptr": np.array([0, 1, 1, 2]),
        "x_indices": np.array([1, 0]),
        "num_features": np.int32(2),
    }
    data = read_graph(file(**sparse, class_names=np.array(["a", "b", "c"])))
    assert data.x.to_dense().tolist() == [[0, 1], [0, 0], [1, 0]] and data.num_classes == 3
    data = read_graph(file(**sparse, x_data=np.array([5.0, 7.0])))
    assert data.x.to_dense().tolist() == [[0, 5], [0, 0], [7, 0]] and data.num_classes == 2


def test_several_labels_a_node(file):
    data = read_graph(file(y=np.eye(3, 4, dtype=bool)))
    assert data.multilabel and data.num_classes == 4 and data.y.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "y missing; got edge_index, split, x, expected edge_index, .x or x_indptr"),
        ({"x": None}, "num_features, x_indices, x_indptr missing"),
        (
            {"edge_index": np.array([[0.5], [1]])},
            r"edge_index is float64 \[2, 1\]; expected integers with 2 dim",
        ),
        (
            {"edge_index": np.array([[0, 1], [1, 3]])},
            "edge 1 goes from node 1 to node 3, but nodes are 0 to 2",
        ),
        ({"x": np.array([["a", "b"]] * 3)}, "x is <U1"),
        ({"x": np.array([[1, np.nan]] * 3)}, "x of node 0, column 1 is nan"),
        ({"x": np.ones((2, 2))}, "x has 2 rows and y has 3"),
        ({"y": np.array([0, -1, 1])}, "y of node 1 is -1; expected a class"),
        ({"y": np.array([0.0, 1, 1])}, r"y is float64 \[3\]; expected integers"),
        ({"split": np.array([0, 1, -1])}, "split of node 2 is -1; expected 0, 1, 2 or 255"),
        ({"split": np.array([0, 1, 3])}, "split of node 2 is 3"),
        ({"split": np.array([1, 1, 2])}, "no node has split 0"),
        ({"split": np.array([[0, 1, 2]])}, r"split is int64 \[1, 3\]; expected integers with 1 dim"),
        ({"directed": np.array([True, False])}, r"directed is bool \[2\]; expected a truth value"),
        ({"class_names": np.array("ab")}, r"class_names is <U2 \[\]; expected texts with 1 dim"),
        ({"edge_weight": np.array(["a", "b"])}, r"edge_weight is <U1 \[2\]; expected numbers"),
        ({"edge_weight": np.ones(2, np.complex64)}, "edge_weight is complex64"),
        (
            {"x": np.array([[1, 1], [1, -1e39], [1, 1]])},
            r"x\[1, 1\] is -1e\+39; expected numbers that float32",
        ),
        (SPARSE | {"x_indices": np.array([0, 2**32])}, "x_indices of node 1 names column 4294967296"),
        (SPARSE | {"num_features": np.array(-1)}, "num_features is -1; expected at least one"),
        (
            {"y": np.array([0, 10**9, 1])},
            "y of node 1 is 1000000000, which makes 1000000001 classes of 3 nodes",
        ),
        ({"y": np.array([[0], [1], [2]])}, "expected 0 or 1, or one class number a node"),
        (EMPTY, "the graph has no nodes"),
        ({"y": np.array([None, 1, 1])}, "is no complete npz file .Object arrays cannot be loaded"),
    ],
)
def test_each_fault_is_named_with_the_file(file, changes, message):
    with pytest.raises(GraphError, match=message) as caught:
        read_graph(file(**changes))
    assert "graph.npz" in str(caught.value)


def test_files_that_are_no_npz_files(file, tmp_path):
    path = file()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GraphError, match=r"graph.npz is no complete npz file .*truncated"):
        read_graph(path)
    path.write_bytes(b"")
    with pytest.raises(GraphError, match="is no complete npz file"):
        read_graph(path)
    path.write_text("some text")
    with pytest.raises(GraphError, match="it begins with b'some t', an npz file with b'PK'"):
        read_graph(path)
    path.write_bytes(whole[:60] + b"\xff" * 8 + whole[68:])
    with pytest.raises(GraphError, match="is no complete npz file"):
        read_graph(path)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(GraphError, match=r"one.npy is a single array"):
        read_graph(tmp_path / "one.npy")


def test_paths_that_cannot_be_read(tmp_path):
    with pytest.raises(GraphError, match=r"cannot read .*absent.npz: No such file or directory"):
        read_graph(tmp_path / "absent.npz")
    with pytest.raises(GraphError, match=r"cannot read .*: Is a directory"):
        read_graph(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(file):
    path = file()
    path.chmod(0)
    with pytest.raises(GraphError, match=r"cannot read .*: Permission denied"):
        read_graph(path)


@pytest.mark.parametrize("kind", ["dense", "sparse", "values", "weights", "directed", "names"])
def test_what_is_written_reads_back(tmp_path, kind):
    data = toy([(0, 1), (1, 2), (3, 0)], directed=kind == "directed")
    if kind in ("sparse", "values"):
        x = (data.x % 2).astype(np.float32) * (3 if kind == "values" else 1)
        data = dataclasses.replace(data, x=SparseRows.from_dense(x))
    if kind == "weights":
        data = dataclasses.replace(data, edge_weight=np.ones(data.num_edges, np.float32))
    if kind == "names":
        data = dataclasses.replace(data, class_names=("left", "right"))
    write_graph(data, tmp_path / "out.npz")
    read = read_graph(tmp_path / "out.npz")
    assert read.fingerprint == data.fingerprint and read.class_names == data.class_names
    assert (read.edge_weight is None) == (data.edge_weight is None)


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as file:
        file.write(b"half of the new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(
        GraphError, match=r"cannot write .*out.npz: No such file or directory; nothing was left there"
    ):
        write_graph(toy([(0, 1)]), tmp_path / "absent" / "out.npz")


def test_what_reading_merges_and_lacks_is_said(file):
    loops = np.array([[0, 1, 1, 0, 0], [1, 2, 1, 1, 1]])
    data = read_graph(
        file(edge_index=loops, edge_weight=np.array([1, 0, 1, -2, 5]), split=np.array([0, 2, 2]))
    )
    assert data.notes == (
        "1 self loops are left out",
        "2 repeated edges are merged into those that they repeat",
        "2 edges weigh zero or less, the least -2",
        "no node has split 1 (validation): no result can be chosen by validation accuracy",
    )
    assert read_graph(file()).notes == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.array([0, 1])}, "x has 3 rows and y has 2; expected one row for each node in both"),
        ({"edge_attr": np.ones((2, 4))}, "edge_attr is not read and would be lost; expected edge_index"),
    ],
)
def test_a_short_y_and_an_unknown_array_are_named(file, changes, message):
    with pytest.raises(GraphError, match=message):
        read_graph(file(**changes))


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"edge_data": {"edge_attr": np.ones((1, 2))}}, "edge_attr of edges"),
        ({"node_data": {"age": np.ones(4)}}, "age of nodes"),
        ({"edge_index": np.array([[0], [0]])}, "self loops and repeated edges"),
    ],
)
def test_a_file_that_would_lose_something_is_not_written(tmp_path, changes, lost):
    data = dataclasses.replace(toy([(0, 1)]), multigraph=True, **changes)
    with pytest.raises(GraphError, match=f"a graph file does not hold {lost}"):
        write_graph(data, tmp_path / "out.npz")
    assert list(tmp_path.iterdir()) == []
