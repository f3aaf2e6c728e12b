"""A small graph that grows, and ranks as threads that learn on it together."""

import numpy as np

from tests.harness.threads import run_ranks_as_threads
from wirewise.graph import BlockModel, block_model
from wirewise.graph.rehearsal import growing_graph
from wirewise.runtime.incremental import (
    Peers,
    Settings,
    train,
)
from wirewise.runtime.transport import Transport


def small(nodes=600, **knobs):
    """Three tasks."""
    data = block_model(
        BlockModel(nodes=nodes, classes=6, features=12, mean_degree=8, noise=1.0, norm_sigma=0.1)
    )
    return growing_graph(data, **knobs)


def train_by_threads(owner, growing, methods, settings, workers):
    """What each of the ranks gets."""

    def work(rank, group, store):
        transport = Transport(group, timeout_s=30, store=store)
        return train(growing, methods, settings, peers=Peers(np.asarray(owner), transport))

    return run_ranks_as_threads(workers, work)


FEW = Settings(epochs=3, budget=2, hidden=8)
