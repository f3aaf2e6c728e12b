import gzip

import numpy as np
import pytest
import torch

from tests.graph.toys import toy
from wirewise.errors import GraphError
from wirewise.graph import blocks, convert, from_pyg, load, read_graph, read_mapped

EDGES = np.array([[0, 1, 1, 2, 3, 3], [1, 2, 2, 0, 3, 1]])


def arrays(**changes):
    good = {
        "edge_index": EDGES,
        "x": np.arange(12, dtype=np.float64).reshape(4, 3),
        "y": np.array([0, 1, 1, 0]),
        "split": np.array([0, 1, 2, 255]),
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


SPARSE = {
    "x": None,
    "x_indptr": np.array([0, 1, 2, 2, 4]),
    "x_indices": np.array([0, 1, 0, 2]),
    "num_features": np.array(3),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"directed": np.bool_(True)},
        {"edge_weight": np.arange(6, dtype=np.float64)},
        {"edge_weight": np.arange(6, dtype=np.float64), "directed": np.bool_(True)},
        {"edge_index": np.asfortranarray(EDGES), "edge_weight": np.ones(6, np.float32)},
        {"x": np.asfortranarray(np.arange(12.0).reshape(4, 3)), "class_names": np.array(["a", "b", "c"])},
        SPARSE,
        SPARSE | {"x_data": np.array([5.0, 6, 7, 8])},
        {"y": np.eye(4, 3, dtype=bool)},
        {"edge_index": EDGES[:, :0]},
    ],
)
def test_an_npz_file_in_blocks_is_what_it_is_in_memory(tmp_path, monkeypatch, save, changes):
    monkeypatch.setattr(blocks, "CHUNK", 4)
    save(tmp_path / "graph.npz", **arrays(**changes))
    whole, mapped = read_graph(tmp_path / "graph.npz"), convert(str(tmp_path / "graph.npz"), tmp_path / "out")
    assert mapped.fingerprint == whole.fingerprint and mapped.notes == whole.notes
    assert mapped.class_names == whole.class_names and mapped.num_classes == whole.num_classes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "y missing; got edge_index, split, x"),
        ({"more": np.ones(2)}, "more is not read and would be lost"),
        (
            {"edge_index": np.array([[0, 1], [1, 4]])},
            "edge 1 goes from node 1 to node 4, but nodes are 0 to 3",
        ),
        ({"edge_index": EDGES * 0.5}, r"edge_index is float64 \[2, 6\]; expected integers"),
        ({"x": np.full((4, 3), np.nan)}, "x of node 0, column 0 is nan"),
        ({"x": np.full((4, 3), -1e39)}, r"x\[0\] is -1e\+39; expected numbers that float32 can hold"),
        ({"x": np.ones((2, 3))}, "x has 2 rows and y has 4"),
        ({"split": np.ones(4, int)}, "no node has split 0"),
        (
            {"edge_weight": np.ones(5)},
            r"edge_weight is float64 \[5\]; expected one number for each of 6 edges",
        ),
        (SPARSE | {"x_indices": np.array([0, 2**32, 0, 1])}, "x_indices names column 4294967296"),
    ],
)
def test_what_is_wrong_is_named_with_the_file_and_leaves_nothing(tmp_path, changes, message):
    np.savez(tmp_path / "graph.npz", **arrays(**changes))
    with pytest.raises(GraphError, match=message) as caught:
        convert(str(tmp_path / "graph.npz"), tmp_path / "out")
    assert "graph.npz" in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_cut_short_or_damaged_is_named(tmp_path, save):
    path = tmp_path / "graph.npz"
    save(path, **arrays(x=np.random.default_rng(0).normal(size=(4, 300))))
    whole = path.read_bytes()
    for raw in (whole[: len(whole) // 2], b"", b"text", whole[:900] + b"\xff" * 8 + whole[908:]):
        path.write_bytes(raw)
        with pytest.raises(GraphError, match=r"graph\.npz is no complete npz file"):
            convert(str(path), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_named_graph_is_loaded_first(tmp_path):
    mapped = convert("block:nodes=60,classes=3,features=4,mean_degree=4", tmp_path / "out", seed=2)
    assert mapped.fingerprint == load("block:nodes=60,classes=3,features=4,mean_degree=4", seed=2).fingerprint
    assert load(str(tmp_path / "out")).fingerprint == mapped.fingerprint
    assert convert(str(tmp_path / "out"), tmp_path / "again").fingerprint == mapped.fingerprint


@pytest.mark.parametrize("form", ["data", "dict", "collated"])
def test_saved_data_of_pyg(tmp_path, form):
    from torch_geometric.data import Data

    edges = torch.from_numpy(np.concatenate([EDGES[:, :4], EDGES[::-1, :4]], axis=1).copy())
    mask = torch.tensor([True, False, True, False])
    data = Data(
        edge_index=edges, x=torch.arange(12.0).view(4, 3), y=torch.tensor([0, 1, 1, 0]), train_mask=mask
    )
    given = {"data": data, "dict": data.to_dict(), "collated": (data.to_dict(), None)}[form]
    torch.save(given, tmp_path / "data.pt")
    mapped, whole = convert(str(tmp_path / "data.pt"), tmp_path / "out"), from_pyg(data)
    assert np.array_equal(mapped.edge_index, np.stack([whole.simple_in_edges.indices, mapped.edge_index[1]]))
    assert np.array_equal(mapped.x, whole.x) and np.array_equal(mapped.split, whole.split)
    assert not mapped.directed
    data.edge_attr = torch.ones(8, 2)
    torch.save(data, tmp_path / "data.pt")
    with pytest.raises(
        GraphError, match=r"data.pt: the Data object has edge_attr, which a mapped graph does not hold"
    ):
        convert(str(tmp_path / "data.pt"), tmp_path / "out")
    (tmp_path / "data.pt").write_bytes(b"no archive")
    with pytest.raises(GraphError, match=r"data.pt: it is no saved Data"):
        convert(str(tmp_path / "data.pt"), tmp_path / "out")


SOUND = {
    "edge_index": torch.tensor([[0, 1], [1, 0]]),
    "x": torch.tensor([[1.0, 2.0], [0.0, 3.0]]),
    "y": torch.tensor([0, 1]),
    "train_mask": torch.tensor([True, False]),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"x": SOUND["x"].bfloat16()}, {"x": SOUND["x"].half()}, {"x": SOUND["x"].to_sparse()},
        {"x": SOUND["x"].clone().requires_grad_()}, {"x": [[1.0, 2.0], [0.0, 3.0]]}, {"num_nodes": torch.tensor(2)},
        {"x": SOUND["x"].to(torch.float8_e4m3fn)}, {"y": torch.tensor([[0], [1]])},
    ],
)  # fmt: skip
def test_ordinary_tensors_of_users_are_read(tmp_path, changes):
    torch.save(SOUND | changes, tmp_path / "data.pt")
    found = convert(str(tmp_path / "data.pt"), tmp_path / "out")
    assert found.x.tolist() == [[1.0, 2.0], [0.0, 3.0]] and found.y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (5, "it holds a int; expected a Data"),
        ([1, 2], "it holds a int; expected a Data"),
        (torch.ones(3), "it holds a Tensor; expected a Data"),
        (SOUND | {"y": torch.tensor(1)}, r"y is int64 \[\]; expected a tensor of numbers"),
        (SOUND | {"y": ["a", "b"]}, "y is <U1"),
        (SOUND | {"x": [[1.0], [2.0, 3.0]]}, "x is a list with uneven rows"),
        (
            SOUND | {"x": torch.sparse_coo_tensor(size=(10**7, 10**7))},
            r"\[10000000, 10000000\], 4e\+05 GB",
        ),
        (SOUND | {"edge_index": torch.tensor([[0, 1], [1, 0]]).to_sparse()}, "edge_index is a sparse matrix"),
        (SOUND | {"num_nodes": 3}, "num_nodes is 3 and y has 2 rows"),
        (
            SOUND | {"x": torch.ones(1, 1).expand(2, 10**10)},
            r"\[2, 10000000000\], 80000000000 bytes, in a file of",
        ),
        (SOUND | {"num_nodes": [2]}, r"num_nodes is \[2\]; expected one whole number"),
        (SOUND | {"num_nodes": torch.tensor([2, 2])}, r"num_nodes is tensor\(\[2, 2\]\); expected one"),
        (SOUND | {"x": torch.empty(2, 3, device="meta")}, "that NumPy does not take"),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path, held, message):
    torch.save(held, tmp_path / "data.pt")
    with pytest.raises(GraphError, match=message):
        convert(str(tmp_path / "data.pt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def text(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, np.atleast_1d(row))) + "\n" for row in rows)


@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_downloaded_folder_of_ogb(tmp_path, monkeypatch, form):
    monkeypatch.setattr(blocks, "CHUNK", 4)
    raw, x, y = (
        tmp_path / "ogbn_toy" / "raw",
        np.arange(12.0).reshape(4, 3),
        np.array([[0], [1], [np.nan], [1]]),
    )
    if form == "text":
        text(raw / "edge.csv.gz", EDGES.T)
        text(raw / "node-feat.csv.gz", x)
        text(raw / "node-label.csv.gz", y)
        text(raw / "num-edge-list.csv.gz", [6])
    else:
        raw.mkdir(parents=True)
        np.savez(raw / "data.npz", edge_index=EDGES, node_feat=x.astype(np.float16), num_nodes_list=[4])
        np.savez(raw / "node-label.npz", node_label=y)
    for name, ids in (("train", [1, 0]), ("valid", [3]), ("test", [])):
        text(tmp_path / "ogbn_toy" / "split" / "time" / f"{name}.csv.gz", ids)
    mapped = convert(str(tmp_path / "ogbn_toy"), tmp_path / "out")
    assert mapped.split.tolist() == [0, 0, 255, 1] and mapped.y.tolist() == [0, 1, -1, 1]
    assert mapped.x.tolist() == x.tolist() and mapped.directed and mapped.name == "ogbn-toy"
    assert mapped.simple_in_edges.indices.tolist() == toy(EDGES.T.tolist()).simple_in_edges.indices.tolist()
    assert read_mapped(tmp_path / "out", verify=True).notes == (
        "1 self loops are left out",
        "1 repeated edges are merged into those that they repeat",
    )
