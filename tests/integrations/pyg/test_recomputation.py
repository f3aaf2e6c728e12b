"""Gradient checkpointing inside a distributed model computes what one process computes; around it, it is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg_models import CLASSES, FEATURES, HIDDEN, g
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.errors import InputError


class Deep(nn.Module):
    """Checkpoints around single convolutions and around pairs, and of a convolution that is called twice."""

    def __init__(
        self, make: Callable[[int, int], nn.Module], reentrant: bool, around: int = 1, twice: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.third = (
            make(FEATURES, HIDDEN),
            make(HIDDEN, HIDDEN),
            make(HIDDEN, HIDDEN),
        )
        self.norm, self.head = nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.reentrant, self.around, self.twice = reentrant, around, twice

    def recompute(self, call: Callable[..., Tensor], *args: Any) -> Tensor:
        return checkpoint(call, *args, use_reentrant=self.reentrant)

    def pair(self, h: Tensor, edge_index: Tensor) -> Tensor:
        return self.third(self.norm(self.second(h, edge_index)).relu(), edge_index)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        # The first layer's input needs no gradient, without which a reentrant checkpoint has none.
        h = self.first(x, edge_index) if self.reentrant else self.recompute(self.first, x, edge_index)
        if self.around == 2:
            return self.head(self.recompute(self.pair, h.relu(), edge_index))
        h = self.recompute(self.second, h.relu(), edge_index)
        return self.head(self.recompute(self.second if self.twice else self.third, h.tanh(), edge_index))


def gat(inputs: int, outputs: int) -> nn.Module:
    return g.GATConv(inputs, outputs, heads=2, concat=False)


def gradients(model: nn.Module, data: Any) -> list[Tensor]:
    for _ in range(2):
        out = model(data.x, data.edge_index)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.sweep(keep=4)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("around", [1, 2])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("make", [g.SAGEConv, g.GCNConv, gat])
def test_inside_the_model(make: Callable[[int, int], nn.Module], reentrant: bool, around: int) -> None:
    data, model = a_graph("directed"), Deep(make, reentrant, around, twice=not reentrant)
    copies = [copy.deepcopy(model) for _ in range(3)]
    expected = gradients(model, data)

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        assert distance(gradients(job.distribute(copies[rank]), job.data), expected) < 1e-5

    run_ranks_as_threads(3, body)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_layers_of_pyg_that_checkpoint_themselves() -> None:
    class DeepGcn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.encode, self.head = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
            self.layers = nn.ModuleList(
                g.DeepGCNLayer(
                    g.GENConv(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU(), block="res+", ckpt_grad=True
                )
                for _ in range(3)
            )

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.encode(x)
            for layer in self.layers:
                h = layer(h, edge_index)
            return self.head(h)

    data, model = a_graph("directed"), DeepGcn()
    copies = [copy.deepcopy(model) for _ in range(2)]
    expected = gradients(model, data)

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        assert distance(gradients(job.distribute(copies[rank]), job.data), expected) < 1e-5

    run_ranks_as_threads(2, body)


def test_around_the_model_is_refused_by_name() -> None:
    data, copies = a_graph("directed"), [Deep(g.SAGEConv, False) for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(copies[rank]), job.data
        out = checkpoint(mine, own.x, own.edge_index, use_reentrant=False)
        with pytest.raises(InputError, match="gradient checkpointing around it"):
            F.cross_entropy(out[own.train_mask], own.y[own.train_mask]).backward()

    run_ranks_as_threads(2, body)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_one_convolution_in_two_reentrant_checkpoints_is_refused_by_name() -> None:
    """Gradients of a parameter come in two parts, of which only the first would be summed over ranks."""
    data, copies = a_graph("directed"), [Deep(g.SAGEConv, True, twice=True) for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        with pytest.raises(InputError, match=r"give use_reentrant=False to torch\.utils\.checkpoint"):
            gradients(job.distribute(copies[rank]), job.data)

    run_ranks_as_threads(2, body)
