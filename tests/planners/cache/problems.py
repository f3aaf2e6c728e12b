"""A graph of blocks on a few machines."""

import numpy as np

from wirewise.graph import BlockModel, block_model
from wirewise.planners.cache import CacheProblem


def block_problem(batch_size, *, machines=3, nodes=6000, fanouts=(8, 4), **more):
    graph = block_model(BlockModel(nodes=nodes, classes=12, mean_degree=8.0, features=2))
    owner = graph.y % machines
    return CacheProblem(
        edges=graph.in_edges,
        owner=owner,
        train=tuple(np.flatnonzero((graph.split == 0) & (owner == k)) for k in range(machines)),
        batch_size=batch_size,
        fanouts=fanouts,
        **more,
    )
