"""`job.cross_entropy` is torch's, of one process, over the nodes of all ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg.spread import a_model
from tests.integrations.pyg_models import CLASSES
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.errors import InputError

WEIGHT = torch.tensor([0.5, 2.0, 1.0, 4.0, 3.0])


def probabilities(data: Any) -> Tensor:
    return torch.stack([data.y * 0.2 + c for c in range(CLASSES)], dim=1).softmax(1)


@pytest.mark.parametrize("mask", ["train_mask", "val_mask", None])
@pytest.mark.parametrize(
    ("options", "soft"),
    [
        ({}, False),
        ({"weight": WEIGHT}, False),
        ({"ignore_index": 1}, False),
        ({"label_smoothing": 0.2}, False),
        ({"weight": WEIGHT, "ignore_index": 2, "label_smoothing": 0.1}, False),
        ({}, True),
        ({"weight": WEIGHT, "label_smoothing": 0.1}, True),
    ],
)
def test_value_and_gradient_are_those_of_one_process(
    options: dict[str, Any], soft: bool, mask: str | None
) -> None:
    data, model = a_graph("directed"), a_model()
    data.y[::7] = 1
    rows = slice(None) if mask is None else data[mask]
    target = probabilities(data) if soft else data.y
    alone = copy.deepcopy(model)
    loss = F.cross_entropy(alone(data.x, data.edge_index)[rows], target[rows], **options)
    loss.backward()
    expected = [p.grad for p in alone.parameters() if p.grad is not None]
    copies = [copy.deepcopy(model) for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(copies[rank]), job.data
        out = mine(own.x, own.edge_index)
        chosen = None if mask is None else own[mask]
        found = job.cross_entropy(out, probabilities(own) if soft else own.y, chosen, **options)
        found.backward()
        assert float(found.detach()) == pytest.approx(float(loss.detach()), rel=1e-5)
        assert distance([p.grad for p in mine.parameters() if p.grad is not None], expected) < 1e-5

    run_ranks_as_threads(3, body)


def test_functions_of_the_value_are_right() -> None:
    data, model = a_graph("directed"), a_model()
    alone = copy.deepcopy(model)

    def flooded(value: Tensor) -> Tensor:
        return (value - 0.3).abs() + value.sqrt() + value.square()

    flooded(
        F.cross_entropy(alone(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
    ).backward()
    expected = [p.grad for p in alone.parameters() if p.grad is not None]
    copies = [copy.deepcopy(model) for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(copies[rank]), job.data
        flooded(job.cross_entropy(mine(own.x, own.edge_index), own.y, own.train_mask)).backward()
        assert distance([p.grad for p in mine.parameters() if p.grad is not None], expected) < 1e-5

    run_ranks_as_threads(3, body)


def test_what_cannot_be_averaged_is_refused() -> None:
    data = a_graph("directed")

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        own = job.data
        out = job.distribute(a_model())(own.x, own.edge_index)
        with pytest.raises(InputError, match="rows of logits and 3 of target"):
            job.cross_entropy(out, own.y[:3])
        with pytest.raises(InputError, match="no node of any rank"):
            job.cross_entropy(out, torch.full_like(own.y, -100))

    run_ranks_as_threads(1, body)
