"""Several modules that are distributed in one call: a head, a decoder, tied parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg_models import CLASSES, FEATURES, HIDDEN, g
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.errors import InputError


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = g.SAGEConv(FEATURES, HIDDEN), g.SAGEConv(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class NormedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, h: Tensor) -> Tensor:
        return self.out(self.norm(h).relu())


class GraphHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = g.SAGEConv(HIDDEN, CLASSES)

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(h, edge_index)


def modules(head: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    return Encoder(), head()


def calls_head(encoder: Any, head: Any, data: Any) -> Tensor:
    h = F.elu(encoder(data.x, data.edge_index))
    return head(h, data.edge_index) if isinstance(head, GraphHead) else head(h)


def ce(out: Tensor, data: Any) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def of_head(encoder: Any, head: Any, data: Any) -> Tensor:
    return ce(calls_head(encoder, head, data), data)


def of_both(encoder: Any, head: Any, data: Any) -> Tensor:
    """The encoder's output is in the loss too, beside the head's."""
    h = encoder(data.x, data.edge_index)
    out = head(h, data.edge_index) if isinstance(head, GraphHead) else head(h)
    return ce(out, data) + 0.5 * h[data.train_mask].square().mean()


def head_twice(encoder: Any, head: Any, data: Any) -> Tensor:
    more = (data.edge_index,) if isinstance(head, GraphHead) else ()
    h = encoder(data.x, data.edge_index)
    return ce(head(h, *more), data) + 0.3 * ce(head(h * 2, *more), data)


def head_alone(encoder: Any, head: Any, data: Any) -> Tensor:
    """The encoder is frozen, as in linear probing."""
    with torch.no_grad():
        h = encoder(data.x, data.edge_index)
    return ce(head(h, data.edge_index) if isinstance(head, GraphHead) else head(h), data)


Loss = Callable[[Any, Any, Any], Tensor]


def gradients(encoder: nn.Module, head: nn.Module, data: Any, loss: Loss) -> list[Tensor]:
    loss(encoder, head, data).backward()
    return [
        torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for p in [*encoder.parameters(), *head.parameters()]
    ]


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("loss", [of_head, of_both, head_twice, head_alone])
@pytest.mark.parametrize("kind", [NormedHead, GraphHead])
def test_heads_have_the_gradients_of_one_process(kind: type[nn.Module], loss: Loss) -> None:
    data, whole = a_graph("directed"), modules(kind)
    expected = gradients(*copy.deepcopy(whole), data, loss)
    copies = [copy.deepcopy(whole) for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        encoder, head = job.distribute(*copies[rank])
        assert distance(gradients(encoder, head, job.data, loss), expected) < 1e-5

    run_ranks_as_threads(3, body)


def test_an_optimizer_of_both_trains_as_on_one_process() -> None:
    data, whole = a_graph("undirected"), modules(NormedHead)
    copies = [copy.deepcopy(whole) for _ in range(2)]

    def train(encoder: nn.Module, head: nn.Module, where: Any) -> list[Tensor]:
        optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            of_head(encoder, head, where).backward()
            optimizer.step()
        return [p.detach().clone() for p in [*encoder.parameters(), *head.parameters()]]

    expected = train(*whole, data)

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        assert distance(train(*job.distribute(*copies[rank]), job.data), expected) < 1e-4

    run_ranks_as_threads(2, body)


def test_parameters_that_two_modules_share() -> None:
    class Decoder(nn.Module):
        def __init__(self, encoder: Any) -> None:
            super().__init__()
            self.weight = encoder.second.lin_r.weight

        def forward(self, h: Tensor) -> Tensor:
            return h @ self.weight[:, :CLASSES]

    encoder = modules(NormedHead)[0]
    whole = encoder, Decoder(encoder)
    data = a_graph("directed")
    expected = gradients(*copy.deepcopy(whole), data, of_head)
    copies = [copy.deepcopy(whole) for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        assert distance(gradients(*job.distribute(*copies[rank]), job.data, of_head), expected) < 1e-5

    run_ranks_as_threads(2, body)


def centred(encoder: Any, head: Any, data: Any) -> Tensor:
    h = encoder(data.x, data.edge_index)
    return ce(head(h - h.mean(0)), data)


def scaled_by_a_parameter(encoder: Any, head: Any, data: Any) -> Tensor:
    return ce(head(encoder(data.x, data.edge_index) * nn.Parameter(torch.ones(()))), data)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (centred, "several rows|the loss of rank"),
        (scaled_by_a_parameter, r"job\.distribute\(model, head\)"),
    ],
)
def test_what_happens_between_two_modules_is_looked_at(loss: Loss, message: str) -> None:
    data, copies = a_graph("directed"), [modules(NormedHead) for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        with pytest.raises(InputError, match=message):
            gradients(*job.distribute(*copies[rank]), job.data, loss)

    run_ranks_as_threads(2, body)


def test_a_head_outside_is_refused_by_shape_and_a_head_alone_says_what_to_do() -> None:
    data, copies = a_graph("directed"), [modules(NormedHead) for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        encoder = job.distribute(copies[rank][0])
        with pytest.raises(InputError, match="belong to no distributed model"):
            gradients(encoder, copies[rank][1], job.data, of_head)
        with pytest.raises(InputError, match=r"job\.distribute\(model, head\)"):
            job.distribute(copies[rank][1])

    run_ranks_as_threads(2, body)
