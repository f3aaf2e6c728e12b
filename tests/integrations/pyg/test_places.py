"""Ranks that do not make the same calls learn who waits where, and not that a live rank died."""

from __future__ import annotations

import threading
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


OF_RANK = threading.local()
"""Not an attribute of the model: a change of one would be proven anew, on one rank alone."""


class Failing(Deep):
    """Fails between two exchanges, or as its gradient comes, on the rank that says so."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of own nodes."""
        out = super().forward(x, edge_index)
        fails = getattr(OF_RANK, "fails", "")
        if fails == "forward":
            raise ValueError("of this rank alone")
        if fails == "backward":
            out.register_hook(self._fail)
        return out

    def _fail(self, gradient: Tensor) -> Tensor:
        raise ValueError("of this rank alone")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.sample(2)
def test_an_error_that_a_script_catches_on_one_rank_is_told_to_the_others(where: str, goes_on: bool) -> None:
    """None of the ranks waits for the 200 s after which one counts as silent."""
    data, models, ended = a_graph("undirected"), [Failing() for _ in range(2)], threading.Event()

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=200)
        model = job.distribute(models[rank])
        backward(model, job.data)
        if rank == 1:
            OF_RANK.fails = where
            with pytest.raises(ValueError, match="of this rank alone"):
                backward(model, job.data)
            OF_RANK.fails = ""
            if not goes_on:
                assert ended.wait(60)
                return
        with pytest.raises(PeerError) as found:
            backward(model, job.data)
        ended.set()
        text = str(found.value)
        if goes_on:
            assert "all of them live" in text and "an error that a script catches" in text, text
        else:
            assert "rank 1 left the" in text and "ValueError: of this rank alone" in text, text

    run_ranks_as_threads(2, body, timeout_s=60)
