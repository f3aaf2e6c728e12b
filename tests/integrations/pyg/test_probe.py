"""An error of one rank's own code ends the proof on all ranks at once, and the job goes on after it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg_models import CLASSES, FEATURES, HIDDEN, g
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError

RANK = threading.local()


class Breaking(nn.Module):
    """Raises on rank 1 before, between or after its convolutions; `skips` leaves one out there instead."""

    def __init__(self, breaks_at: int, kind: type[Exception] | None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.breaks_at, self.kind = breaks_at, kind
        self.first, self.second = g.SAGEConv(FEATURES, HIDDEN), g.GCNConv(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def _point(self, number: int) -> None:
        if RANK.value == 1 and number == self.breaks_at and self.kind is not None:
            raise self.kind("of this rank's rows")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self._point(0)
        h = self.first(x, edge_index).relu()
        self._point(1)
        if self.kind is not None or RANK.value != 1:
            h = self.second(h, edge_index).relu()
        self._point(2)
        return self.out(h)


def sound(model: Any, data: Any) -> None:
    out = model(data.x, data.edge_index)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()


@pytest.mark.parametrize("kind", [IndexError, InputError])
@pytest.mark.parametrize("breaks_at", [0, 1, 2])
def test_all_ranks_learn_of_an_error_and_go_on(breaks_at: int, kind: type[Exception]) -> None:
    data = a_graph("undirected")
    models = [Breaking(breaks_at, kind) for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        RANK.value = rank
        job = job_of(data, rank, group, store)
        mine = job.distribute(models[rank])
        why = "of this rank's rows" if rank == 1 else "rank 1 could not run the model on its own rows"
        for _ in range(2):
            with pytest.raises(InputError, match=why):
                mine(job.data.x, job.data.edge_index)
        models[rank].breaks_at = mine.breaks_at = -1
        sound(mine, job.data)

    run_ranks_as_threads(3, body)


def test_another_sequence_of_convolutions_is_named_on_each_rank() -> None:
    data = a_graph("undirected")
    models = [Breaking(-1, None) for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        RANK.value = rank
        job = job_of(data, rank, group, store)
        mine = job.distribute(models[rank])
        came = "the end of the forward where rank 0" if rank == 1 else "second where rank 1"
        with pytest.raises(InputError, match=f"rank {rank} came to {came} came to another convolution"):
            mine(job.data.x, job.data.edge_index)

    run_ranks_as_threads(2, body)
