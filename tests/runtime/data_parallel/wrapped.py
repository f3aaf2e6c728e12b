"""Models under plans on ranks that are threads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.examples import batch, made
from wirewise.runtime.data_parallel import parallel


def run(build, plan, body, ranks: int = 2, **options) -> list[Any]:
    """`body(wrapped, optimizer, rank)` on every rank, which start with weights of their own."""

    def rank_body(rank: int, group: Any, store: Any) -> Any:
        model = made(build, seed=rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = parallel(model, plan, optimizer, group, store=store, timeout_s=20, **options)
        return body(wrapped, optimizer, rank)

    return run_ranks_as_threads(ranks, rank_body)


def backward(model: nn.Module, rank: int, step: int = 0, width: int = 12) -> None:
    x, y = batch(rank, step, width=width)
    nn.functional.cross_entropy(model(x), y).backward()


def gradients(wrapped: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in wrapped.module.named_parameters()}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
