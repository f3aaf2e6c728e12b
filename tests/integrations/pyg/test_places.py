"""Ranks that do not make the same calls learn who waits where, and not that a live rank died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg_models import CLASSES, FEATURES, HIDDEN, g
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import PeerError
from wirewise.integrations import pyg

TIMEOUT_S = 1.0


class Deep(nn.Module):
    """Three convolutions, of which the middle one may be left out by a global variable."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = g.SAGEConv(FEATURES, HIDDEN), g.SAGEConv(HIDDEN, HIDDEN)
        self.third = g.SAGEConv(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index).relu()
        if id(self) not in DROPPED:
            h = self.second(h, edge_index).relu()
        return self.third(h, edge_index)


DROPPED: set[int] = set()
"""Models that leave the middle layer out."""


def backward(model: Any, data: Any) -> None:
    out = model(data.x, data.edge_index)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()


def drops_a_layer(model: Any, data: Any, rank: int) -> None:
    if rank == 1:
        DROPPED.add(id(model))
    backward(model, data)


def skips_backward(model: Any, data: Any, rank: int) -> None:
    if rank == 1:
        model(data.x, data.edge_index)
    else:
        backward(model, data)
    backward(model, data)


def evaluates_alone(model: Any, data: Any, rank: int) -> None:
    if rank == 0:
        with torch.no_grad():
            model.eval()(data.x, data.edge_index)
        model.train()
    backward(model, data)


def evaluates_its_line_search_once_more(model: Any, data: Any, rank: int) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2 + rank)

    def closure() -> Tensor:
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        return loss

    optimizer.step(closure)
    model.eval()(data.x, data.edge_index)


@pytest.mark.parametrize(
    ("step", "mine", "other"),
    [
        (drops_a_layer, "forward1 of epoch 1", "forward2 of epoch 1"),
        (skips_backward, "the agreement on the loss of step 1", "forward1 of epoch 2"),
        (evaluates_alone, "before the proof", "forward1 of epoch 1"),
        (evaluates_its_line_search_once_more, "before the proof", "forward1 of epoch 3"),
    ],
)
@pytest.mark.parametrize("world", [2, 3])
def test_who_waits_where_is_told(
    step: Callable[[Any, Any, int], None], mine: str, other: str, world: int
) -> None:
    data, models = a_graph("undirected"), [Deep() for _ in range(world)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=TIMEOUT_S)
        model = job.distribute(models[rank])
        backward(model, job.data)
        with pytest.raises(PeerError) as found:
            step(model, job.data, rank)
        text = str(found.value)
        assert mine in text, text
        assert other in text, text
        assert "all of them live" in text

    run_ranks_as_threads(world, body)
