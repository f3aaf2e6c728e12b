"""A graph of blocks on three machines."""

import numpy as np

from wirewise.graph import BlockModel, block_model
from wirewise.planners.cache import CacheProblem


def block_problem(batch_size):
    graph = block_model(BlockModel(nodes=6000, classes=12, mean_degree=8.0, features=2))
    owner = graph.y % 3
    return CacheProblem(
        edges=graph.in_edges,
        owner=owner,
        train=tuple(np.flatnonzero((graph.split == 0) & (owner == k)) for k in range(3)),
        batch_size=batch_size,
        fanouts=(8, 4),
    )
