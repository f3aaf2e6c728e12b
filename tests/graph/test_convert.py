import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from wirewise.errors import GraphError
from wirewise.graph import SparseRows, edge_weights, from_ogb, from_pyg, load_part, save_parts
from wirewise.graph.sampling import NeighborSampler

with warnings.catch_warnings():
    # torch_geometric calls torch.jit.script when it is imported, which torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data


def pyg(**changes):
    given = {
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "x": torch.eye(3) + 1,
        "y": torch.tensor([0, 1, 1]),
        "train_mask": torch.tensor([True, False, False]),
        "val_mask": torch.tensor([False, True, False]),
        "test_mask": torch.tensor([False, False, True]),
    }
    return Data(**{key: value for key, value in (given | changes).items() if value is not None})


def test_masks_become_a_split():
    data = from_pyg(pyg(test_mask=None))
    assert data.split.tolist() == [0, 1, 255] and data.directed and data.num_classes == 2
    assert data.x.dtype == np.float32 and data.y.dtype == np.int64


def test_a_split_attribute_is_taken():
    data = from_pyg(pyg(train_mask=None, split=torch.tensor([0, 2, 1])))
    assert data.split.tolist() == [0, 2, 1]


def test_one_of_several_splits_is_chosen():
    masks = torch.tensor([[True, False], [False, True], [False, False]])
    assert from_pyg(pyg(train_mask=masks, val_mask=None), mask_column=1).split.tolist() == [255, 0, 2]
    with pytest.raises(GraphError, match="mask_column is 2; train_mask has 2 columns"):
        from_pyg(pyg(train_mask=masks), mask_column=2)


def test_direction_is_seen_and_can_be_given():
    both = torch.tensor([[0, 1], [1, 0]])
    assert not from_pyg(pyg(edge_index=both)).directed
    assert from_pyg(pyg(edge_index=both), directed=True).directed
    assert from_pyg(pyg(), directed=False).num_edges == 4


def test_weights_labels_and_sparse_features():
    x = torch.zeros(3, 20)
    x[0, 3] = x[2, 7] = 1
    y = torch.tensor([[1, 0], [0, 1], [1, 1]])
    data = from_pyg(pyg(x=x, y=y, edge_weight=torch.tensor([2.0, 3.0])))
    assert isinstance(data.x, SparseRows) and data.x.data is None and data.x.indices.tolist() == [3, 7]
    assert data.multilabel and data.num_classes == 2 and data.edge_weight.tolist() == [2, 3]
    assert from_pyg(pyg(x=x.to_sparse())).x.indices.tolist() == [3, 7]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "the Data object has no y; expected edge_index, x, y"),
        ({"train_mask": None}, "neither train_mask nor split"),
        ({"train_mask": torch.ones(3, 2, dtype=torch.bool)}, "mask_column is None; train_mask has 2 columns"),
        ({"edge_attr": torch.ones(3, 2)}, r"edge_attr is float32 \[3, 2\]; expected .* each of 2 edges"),
        ({"edge_index": None, "adj_t": torch.eye(3)}, "holds adj_t in place of edge_index"),
        (
            {"train_mask": torch.tensor([True])},
            r"train_mask has shape \[1\]; expected one value for each of 3",
        ),
        ({"edge_index": torch.tensor([[0], [5]])}, "edge 0 goes from node 0 to node 5"),
        ({"x": torch.full((3, 2), torch.nan)}, "x of node 0, column 0 is nan"),
        ({"train_mask": torch.zeros(3, dtype=torch.bool)}, "no node has split 0"),
        ({"y": ["a", "b", "c"]}, "y is <U1 .*; expected numbers"),
        ({"x": torch.ones(3, 2, dtype=torch.complex64)}, "x is complex64 .*; expected real numbers"),
        ({"edge_index": torch.eye(3).to_sparse()}, "edge_index is a sparse matrix"),
    ],
)
def test_each_fault_is_named(changes, message):
    with pytest.raises(GraphError, match=message):
        from_pyg(pyg(**changes))


def test_labels_and_masks_are_carried_as_given():
    real, every = torch.tensor([2.9, 0.3, 1.7], dtype=torch.float64), torch.ones(3, dtype=torch.bool)
    data = from_pyg(pyg(y=real, train_mask=every))
    assert data.node_data["y"].dtype == np.float64 and data.node_data["y"].tolist() == real.tolist()
    assert data.node_data["train_mask"].all() and data.node_data["val_mask"].tolist() == [False, True, False]
    # Built-in training has classes and one split a node.
    assert data.num_classes == 1 and data.split.tolist() == [0, 0, 0]
    targets = torch.rand(3, 4)
    assert np.array_equal(from_pyg(pyg(y=targets)).node_data["y"], targets.numpy())


def test_other_kinds_of_graphs_are_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch_geometric.data import HeteroData
    several = HeteroData(paper={"x": torch.eye(2)}, author={"x": torch.eye(2)})
    with pytest.raises(GraphError, match="got HeteroData with nodes of the types paper, author"):
        from_pyg(several)


def test_every_edge_is_kept_with_its_rows(tmp_path):
    """Loops and repeated edges reach the parts as often as they are given, each with its own attributes."""
    edges = torch.tensor([[0, 1, 1, 2, 0, 1, 3], [1, 1, 0, 0, 1, 2, 3]])
    attributes = torch.arange(14.0, dtype=torch.float64).reshape(7, 2)
    data = from_pyg(
        Data(
            edge_index=edges,
            x=torch.eye(4),
            y=torch.tensor([0, 1, 1, 0]),
            train_mask=torch.ones(4, dtype=torch.bool),
            edge_weight=torch.arange(7.0),
            edge_attr=attributes,
            age=torch.tensor([7, 8, 9, 10]),
        )
    )
    assert data.directed and len(data.in_edges.indices) == 7 and len(data.simple_in_edges.indices) == 4
    save_parts(data, np.array([0, 1, 0, 1]), tmp_path)
    found = []
    for rank in range(2):
        part = load_part(tmp_path, rank)
        rows = np.concatenate([part.own_ids, part.halo_ids])
        target = np.repeat(part.own_ids, np.diff(part.indptr))
        assert np.array_equal(edges[:, part.edge_id], [rows[part.indices], target])
        assert np.array_equal(part.edge_data["edge_attr"], attributes[part.edge_id])
        assert np.array_equal(part.edge_data["edge_weight"], part.edge_id.astype(np.float32))
        assert part.edge_data["edge_attr"].dtype == np.float64
        assert np.array_equal(part.node_data["age"], part.own_ids + 7)
        assert part.node_data["train_mask"].dtype == bool
        assert np.array_equal(part.in_degree, np.bincount(edges[1], minlength=4)[rows])
        found += part.edge_id.tolist()
        with pytest.raises(GraphError, match="the graph has 2 self loops, and the weights of gcn add one"):
            edge_weights(part, "gcn")
    assert sorted(found) == list(range(7))


@pytest.mark.parametrize("fanout", [-1, 2])
def test_samples_hold_loops_and_repeated_edges(fanout):
    edges = torch.tensor([[0, 1, 1, 2, 0], [1, 1, 0, 1, 1]])
    data = from_pyg(pyg(edge_index=edges))
    layer = NeighborSampler(data.in_edges, [fanout], seed=0).sample(np.array([1]), epoch=0).layers[0]
    drawn = layer.sources[layer.indptr[0] : layer.indptr[1]]
    assert len(drawn) == (4 if fanout == -1 else 2)


class FakeOgb:
    def __init__(self, features):
        self.graph = {"edge_index": np.array([[0, 1], [1, 2]]), "node_feat": features}

    def __getitem__(self, _):
        return self.graph, np.array([[0.0], [1.0], [np.nan]])

    def get_idx_split(self):
        return {"train": np.array([0]), "valid": np.array([1]), "test": np.array([], np.int64)}


def test_benchmark_sets_keep_direction_and_unlabelled_nodes():
    data = from_ogb(FakeOgb(np.ones((3, 2), np.float32)), name="ogbn-fake")
    assert data.directed and data.y.tolist() == [0, 1, -1] and data.split.tolist() == [0, 1, 255]
    assert data.name == "ogbn-fake"
    with pytest.raises(GraphError, match="ogbn-fake has no node features"):
        from_ogb(FakeOgb(None), name="ogbn-fake")


def test_any_object_with_the_attributes_will_do():
    plain = SimpleNamespace(
        edge_index=np.array([[0], [1]]), x=np.ones((2, 1)), y=np.array([0, 1]), split=np.array([0, 1])
    )
    assert from_pyg(plain).num_nodes == 2


def test_numbers_that_numpy_does_not_know_are_refused():
    with pytest.raises(GraphError, match=r"a tensor of torch.bfloat16 that NumPy does not take"):
        from_pyg(pyg(x=torch.ones(3, 2, dtype=torch.bfloat16)))
