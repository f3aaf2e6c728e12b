from types import SimpleNamespace

import numpy as np
import pytest
import torch

from wirewise.errors import GraphError
from wirewise.graph.splits import mask_of, masks_of, split_of

NODES = 5


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([True, False, True, False, False]),
        np.array([1, 0, 1, 0, 0]),
        torch.tensor([1.0, 0, 1, 0, 0]),
        torch.tensor([2, 0]),
        torch.tensor([[0], [2]]),
        np.array([0, 2], np.uint16),
    ],
)
def test_masks_and_numbers_of_nodes_say_the_same(given):
    assert mask_of("train_mask", given, NODES).tolist() == [True, False, True, False, False]


def test_few_numbers_are_no_mask():
    assert mask_of("train_idx", torch.tensor([0, 1]), NODES).tolist() == [True, True, False, False, False]
    assert not mask_of("test_idx", torch.tensor([], dtype=torch.int64), NODES).any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.tensor([0, 5]), "train_mask names node 5; expected numbers from 0 to 4"),
        (torch.tensor([-1]), "names node -1"),
        (torch.tensor([3, 3]), "names node 3 more than once"),
        (torch.tensor([0.5, 0, 1, 1, 1]), "float32 with other values than 0 and 1"),
        (torch.tensor([float("nan"), 0, 1, 1, 1]), "other values than 0 and 1"),
        (torch.ones(3, dtype=torch.bool), r"shape \[3\]; expected one value for each of 5 nodes"),
        (torch.ones(5, 2, dtype=torch.bool), "mask_column is None; train_mask has 2 columns"),
        (np.array(["a"] * 5), "train_mask is <U1"),
    ],
)
def test_what_names_no_nodes_is_refused(given, message):
    with pytest.raises(GraphError, match=message):
        mask_of("train_mask", given, NODES)


def test_numbers_are_read_where_there_is_no_mask():
    data = SimpleNamespace(train_idx=torch.tensor([4]), valid_idx=np.array([0, 1]), test_mask=torch.eye(5)[2])
    masks = masks_of(data, NODES, None)
    assert split_of(data, NODES, masks).tolist() == [1, 1, 2, 255, 0]
    data.train_mask = torch.tensor([1, 0, 0, 0, 0])
    assert masks_of(data, NODES, None)["train_mask"].tolist() == [True, False, False, False, False]
