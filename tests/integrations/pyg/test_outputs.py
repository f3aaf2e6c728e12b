"""Outputs of distributed models are ordinary tensors but for their backward."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg.spread import a_model
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.integrations.pyg.outputs import OutputTensor


def test_pickles_hold_plain_tensors_and_evaluation_returns_them() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(a_graph("directed"), rank, group, store)
        mine = job.distribute(a_model())
        out = mine(job.data.x, job.data.edge_index)
        assert type(out) is OutputTensor
        kept = out.detach()
        assert type(pickle.loads(pickle.dumps(kept))) is Tensor
        stream = io.BytesIO()
        torch.save(kept, stream)
        stream.seek(0)
        assert torch.equal(torch.load(stream, weights_only=True), kept)
        assert kept.numpy().shape == tuple(out.shape)
        with torch.no_grad():
            assert type(mine(job.data.x, job.data.edge_index)) is Tensor

    run_ranks_as_threads(1, body)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_losses_run() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(a_graph("directed"), rank, group, store)
        mine, own = job.distribute(a_model()), job.data

        def loss(out: Tensor) -> Tensor:
            return F.cross_entropy(out[own.train_mask], own.y[own.train_mask])

        torch.compile(loss, backend="aot_eager")(mine(own.x, own.edge_index)).backward()
        found = [p.grad.clone() for p in mine.parameters() if p.grad is not None]
        mine.zero_grad()
        loss(mine(own.x, own.edge_index)).backward()
        assert distance(found, [p.grad for p in mine.parameters() if p.grad is not None]) < 1e-6

    run_ranks_as_threads(1, body)
