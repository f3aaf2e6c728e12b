"""A user's own PyG model on many ranks equals the same model on one process."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError

with warnings.catch_warnings():
    # PyG scripts functions at import, which torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

    from wirewise.integrations import pyg
from tests.integrations.pyg.graphs import Net, whole_graph

_LOCK = threading.Lock()


def gin(inputs: int, outputs: int) -> nn.Module:
    return GINConv(nn.Linear(inputs, outputs))


def gat(inputs: int, outputs: int) -> nn.Module:
    return GATConv(inputs, outputs, heads=2, concat=False, add_self_loops=False)


def descent(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.005)


def train(model: nn.Module, data: Data, steps: int, optimizer_of: Callable = descent) -> list[float]:
    optimizer = optimizer_of(model)
    losses = []
    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.sweep
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    ("make", "optimizer_of", "off"),
    [(SAGEConv, descent, 2e-5), (GCNConv, descent, 2e-5), (gin, adam, 1e-3), (gat, adam, 1e-3)],
)
def test_equals_one_process(
    make: Callable[[int, int], nn.Module], optimizer_of: Callable, off: float, directed: bool
) -> None:
    """After five steps, which amplify the rounding of sums of a hundred and of softmax; one step is within 1e-5."""
    data = whole_graph(directed)
    torch.manual_seed(1)
    model = Net(make)
    alone = copy.deepcopy(model)
    train(alone, data, 5, optimizer_of)
    with torch.no_grad():
        expected = alone.eval()(data.x, data.edge_index)

    def body(rank: int, group: Any, store: Any) -> tuple[Tensor, Tensor, list[Tensor], float]:
        job = pyg.Job(data if rank == 0 else None, mode="adaqp-p", group=group, store=store)
        mine = job.distribute(copy.deepcopy(model))
        train(mine, job.data, 5, optimizer_of)
        with torch.no_grad():
            logits = mine.eval()(job.data.x, job.data.edge_index)
        return (
            job.data.n_id,
            logits,
            [p.detach() for p in mine.parameters()],
            job.accuracy(logits, job.data.test_mask),
        )

    for n_id, logits, parameters, accuracy in run_ranks_as_threads(3, body):
        assert torch.allclose(logits, expected[n_id], rtol=off, atol=off)
        for ours, theirs in zip(parameters, alone.parameters(), strict=True):
            assert torch.allclose(ours, theirs.detach(), atol=off / 2)
        right = (expected.argmax(1) == data.y)[data.test_mask].double().mean()
        assert accuracy == pytest.approx(float(right), abs=0.03)


def test_quantized_messages_train_it_too() -> None:
    data = whole_graph()

    def body(rank: int, group: Any, store: Any) -> tuple[list[float], int]:
        job = pyg.Job(data if rank == 0 else None, mode="uniform-8", group=group, store=store)
        with _LOCK:
            torch.manual_seed(0)
            own = Net(SAGEConv)
        model = job.distribute(own)
        losses = train(model, job.data, 20)
        return losses, job.exchange.lanes["forward1"].bytes_sent

    for losses, sent in run_ranks_as_threads(2, body):
        assert losses[-1] < 0.7 * losses[0]
        assert sent > 0


def test_without_a_process_group_it_says_what_to_do() -> None:
    with pytest.raises(InputError, match="init_process_group"):
        pyg.Job(whole_graph())


def backward(model: nn.Module, data: Data, factor: float) -> None:
    out = model(data.x, data.edge_index)
    (factor * F.cross_entropy(out[data.train_mask], data.y[data.train_mask])).backward()


@pytest.mark.parametrize("to_none", [False, True])
def test_gradients_add_up_over_backward_passes(to_none: bool) -> None:
    data = whole_graph()
    torch.manual_seed(1)
    model = Net(SAGEConv)

    def gradients(one: nn.Module, where: Data) -> list[Tensor]:
        for factor in (5.0, 1.0, 2.0):
            if factor == 1.0:
                one.zero_grad(set_to_none=to_none)
            backward(one, where, factor)
            one(where.x, where.edge_index)  # a forward pass alone changes nothing
        return [p.grad.clone() for p in one.parameters()]

    expected = gradients(copy.deepcopy(model), data)

    def body(rank: int, group: Any, store: Any) -> list[Tensor]:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store)
        return gradients(job.distribute(copy.deepcopy(model)), job.data)

    for found in run_ranks_as_threads(2, body):
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
