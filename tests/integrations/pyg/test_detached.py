"""Numbers over own rows that went on without gradient are followed into the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg.spread import a_model
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError
from wirewise.integrations.pyg.outputs import OutputTensor


def an_output() -> Any:
    return torch.arange(12.0).view(4, 3).requires_grad_().as_subclass(OutputTensor) * 2


@pytest.mark.parametrize(
    ("take", "mixes"),
    [
        (lambda t: t.detach().mean(0), True),
        (lambda t: t.mean(0).detach() + 1, True),
        (lambda t: torch.stack([t.sum(), t.max()]).detach(), True),
        (lambda t: t.detach()[:, 0] > t.detach()[:, 0].median(), True),
        (lambda t: t[:, 0].argsort(), True),
        (lambda t: t.detach().softmax(0), True),
        (lambda t: t.detach() @ t.detach().t(), True),
        (lambda t: t.detach().mean(1), False),
        (lambda t: t.detach().softmax(1), False),
        (lambda t: t.argmax(1), False),
        (lambda t: t.detach()[torch.tensor([True, False, True, True])], False),
        (lambda t: t.detach() @ torch.ones(3, 2), False),
        (lambda t: t.mean(0), False),
    ],
)
def test_rows_that_are_taken_together_are_marked(take: Any, mixes: bool) -> None:
    assert bool(take(an_output()).mixes) == mixes


def test_metrics_beside_the_loss_are_free_and_doors_refuse_what_is_marked() -> None:
    data = a_graph("directed")

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(a_model()), job.data
        out = mine(own.x, own.edge_index)
        loss = F.cross_entropy(out[own.train_mask], own.y[own.train_mask])
        hits = (out.argmax(1) == own.y)[own.val_mask].float().mean() + loss.detach()
        assert 0 <= float(hits) < 10
        loss.backward()
        values: Tensor = F.cross_entropy(out.detach(), own.y, reduction="none")
        with pytest.raises(InputError, match=r"values depend on mean\(\) over own rows"):
            job.mean(values * (values > values.mean()), own.train_mask)

    run_ranks_as_threads(1, body)
