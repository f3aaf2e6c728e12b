"""Edges of a part as the user's code sees them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError


def test_edges_answer_no_questions() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        edges = job_of(a_graph("directed"), rank, group, store).data.edge_index
        assert edges.dtype == torch.int64
        assert "in-edges" in repr(edges)
        assert edges.to("cpu") is edges
        for ask in (
            lambda e: e[0],
            lambda e: e + 1,
            lambda e: e.numpy(),
            lambda e: torch.cat([e, e]),
            lambda e: list(e),
            lambda e: torch.sparse_coo_tensor(e, torch.ones(e.shape[1])),
            lambda e: torch.sparse_coo_tensor(e, torch.ones(e.shape[1]), (100, 100)),
            lambda e: torch.ops.aten.add.Tensor(e, 1),
        ):
            with pytest.raises(InputError, match=r"edge_index of job\.data"):
                ask(edges)

    run_ranks_as_threads(1, body)
