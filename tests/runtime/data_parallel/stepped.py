"""Steps under a reducer on ranks that are threads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.examples import batch, made
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import Reducer


def loss_of(model: nn.Module, rank: int, step: int = 0) -> torch.Tensor:
    x, y = batch(rank, step)
    return nn.functional.cross_entropy(model(x), y)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def run(ranks: int, build, plan: FusionPlan, body, **options) -> list[Any]:
    """`body(model, reducer, rank)` on every rank."""

    def rank_body(rank: int, group: Any, store: Any) -> Any:
        model = made(build)
        reducer = Reducer(model, plan, group, store=store, timeout_s=20, **options)
        try:
            return body(model, reducer, rank)
        finally:
            reducer.close()

    return run_ranks_as_threads(ranks, rank_body)
