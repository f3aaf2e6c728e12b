"""The graph at a task, and the blocks that rows are made of."""

import numpy as np
import pytest
import torch

from tests.runtime.incremental.grown import FEW, small
from wirewise.runtime.incremental import CurrentGraph, learner_of


@pytest.fixture(scope="module")
def growing():
    return small()


def dense_embeddings(learner, growing, task):
    """Embeddings by the formulas, over all nodes that have arrived."""
    edges, nodes = growing.edges(task), growing.data.num_nodes
    adjacency = np.eye(nodes)
    adjacency[np.repeat(np.arange(nodes), np.diff(edges.indptr)), edges.indices] = 1
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    adjacency = torch.from_numpy(scale[:, None] * adjacency * scale).float()
    model = learner.model
    hidden = (adjacency @ torch.from_numpy(growing.data.x) @ model.first.T).relu()
    return adjacency @ hidden


def test_rows_of_a_block_are_those_of_the_whole_graph(growing):
    learner = learner_of("bare", growing, FEW)
    nodes = growing.tasks[1].train[::5]
    found = learner.model.embed(CurrentGraph(growing, 1).block(nodes))
    torch.testing.assert_close(found, dense_embeddings(learner, growing, 1)[nodes], rtol=1e-4, atol=1e-5)
