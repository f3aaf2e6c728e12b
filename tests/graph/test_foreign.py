import warnings

import numpy as np
import pytest
import torch

from wirewise.errors import GraphError
from wirewise.graph.foreign import to_numpy

with warnings.catch_warnings():
    # torch_geometric calls torch.jit.script when it is imported, which torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric import EdgeIndex


def test_an_edge_index_is_its_numbers_and_no_adjacency_matrix():
    pairs = torch.tensor([[0, 1, 2], [1, 2, 0]])
    found = to_numpy(EdgeIndex(pairs, sparse_size=(3, 3)))
    assert found.dtype == np.int64 and found.tolist() == pairs.tolist()


def test_sparse_tensors_become_dense():
    dense = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    assert to_numpy(dense.to_sparse()).tolist() == dense.tolist()


def test_numbers_that_numpy_does_not_know_are_named():
    with pytest.raises(GraphError, match="bfloat16"):
        to_numpy(torch.ones(2, dtype=torch.bfloat16))
