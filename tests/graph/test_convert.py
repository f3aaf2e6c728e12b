import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from wirewise.errors import GraphError
from wirewise.graph import SparseRows, from_ogb, from_pyg

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
        ({"val_mask": torch.ones(3, dtype=torch.bool)}, "val_mask and another mask both hold node 0"),
        ({"y": torch.tensor([2.9, 0.3, 1.7])}, r"y of node 0 is 2\.9; expected the number of a class"),
        (
            {"train_mask": torch.tensor([True])},
            r"train_mask has shape \[1\]; expected one value for each of 3",
        ),
        ({"edge_index": torch.tensor([[0], [5]])}, "edge 0 goes from node 0 to node 5"),
        ({"x": torch.full((3, 2), torch.nan)}, "x of node 0, column 0 is nan"),
        ({"train_mask": torch.zeros(3, dtype=torch.bool)}, "no node has split 0"),
    ],
)
def test_each_fault_is_named(changes, message):
    with pytest.raises(GraphError, match=message):
        from_pyg(pyg(**changes))


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
