"""Functions with a backward of their own, and hooks: gradients of rows stay apart, or all ranks refuse by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg.spread import a_model
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError


def with_backward(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The identity, whose gradient is changed."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return change(grad)

    return Changed.apply


def by_norm(grad: Tensor) -> Tensor:
    return grad / (grad.norm() + 1e-6)


def centred(grad: Tensor) -> Tensor:
    return grad - grad.mean(0)


def reversed_(grad: Tensor) -> Tensor:
    return -0.5 * grad


def run(prepare: Callable[[Any], None], loss_of: Callable[[Tensor], Tensor], error: str) -> None:
    data, models = a_graph("undirected"), [a_model() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(models[rank]), job.data
        prepare(mine)

        def step() -> None:
            out = loss_of(mine(own.x, own.edge_index))
            F.cross_entropy(out[own.train_mask], own.y[own.train_mask]).backward()

        if not error:
            step()
            return
        with pytest.raises(InputError, match=error):
            step()

    run_ranks_as_threads(2, body)


@pytest.mark.parametrize(
    ("change", "error"),
    [(by_norm, "own backward takes gradients"), (centred, "own backward mixes gradients"), (reversed_, "")],
)
def test_functions_in_a_model(change: Callable[[Tensor], Tensor], error: str) -> None:
    function = with_backward(change)
    run(
        lambda model: model.head.register_forward_hook(lambda *call: function(call[2])),
        lambda out: out,
        error,
    )


@pytest.mark.parametrize(
    ("change", "error"), [(by_norm, "reads rows of the outputs other"), (centred, "outside"), (reversed_, "")]
)
def test_functions_in_a_loss(change: Callable[[Tensor], Tensor], error: str) -> None:
    run(lambda model: None, with_backward(change), error)


def test_hooks_on_outputs_and_on_gradients_of_modules_are_refused() -> None:
    def hooked(out: Tensor) -> Tensor:
        out.register_hook(by_norm)
        return out

    run(lambda model: None, hooked, "register_hook on what a distributed model returned")
    hook = nn.Module.register_full_backward_hook
    run(
        lambda model: bool(hook(model.head, lambda *_: None)) and None,
        lambda out: out,
        "module 'head' has a backward hook",
    )
