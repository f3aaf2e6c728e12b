"""What a distributed model sees of its part."""

from __future__ import annotations

import copy
from typing import Any

import torch

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.spread import a_model
from tests.integrations.pyg_models import FEATURES
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.integrations import pyg


def test_features_changed_in_place_travel() -> None:
    data, model = a_graph("undirected"), a_model()
    assert data.x.shape[1] == FEATURES
    with torch.no_grad():
        expected = model(data.x * 2, data.edge_index)
    copies = [copy.deepcopy(model) for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        mine = job.distribute(copies[rank])
        job.data.x.mul_(2)
        with torch.no_grad():
            assert distance([mine(job.data.x, job.data.edge_index)], [expected[job.data.n_id]]) < 1e-5

    run_ranks_as_threads(2, body)
