"""Rows that a mean reads: each by itself, in any layout, or mixed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from wirewise.integrations.pyg.loss_rows import rows_mix

ROWS, COLUMNS = 12, 3


def fault(values: Callable[[Tensor], Tensor], allowed: Tensor | None = None) -> str:
    out = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).requires_grad_() * 1.0
    given = values(out)
    allowed = torch.ones(ROWS, dtype=torch.bool) if allowed is None else allowed
    found = (rows_mix([(given.grad_fn, 0)], ROWS, [out.grad_fn], allowed, seed) for seed in range(3))
    return next((text for text in found if text), "")


@pytest.mark.parametrize(
    "values",
    [
        lambda out: out.square(),
        lambda out: out.square().sum(1),
        lambda out: out.square().t(),
        lambda out: out.square().reshape(-1),
        lambda out: out.square().t().reshape(-1),
        lambda out: torch.cat([out[:, 0], out[:, 1].exp()]),
        lambda out: out.flip(0).log_softmax(1),
        lambda out: out.relu() * 0.0,
    ],
)
def test_rows_by_themselves(values: Callable[[Tensor], Tensor]) -> None:
    assert fault(values) == ""


@pytest.mark.parametrize(
    "values",
    [
        lambda out: out - out.mean(0),
        lambda out: out.cumsum(0),
        lambda out: out @ out.t(),
        lambda out: out.softmax(0),
        lambda out: out[torch.arange(ROWS) // 2],
        lambda out: out.roll(1, 0) * out,
    ],
)
def test_mixed_rows(values: Callable[[Tensor], Tensor]) -> None:
    assert "several rows" in fault(values)


def test_rows_that_are_not_allowed() -> None:
    assert "outside train_mask" in fault(lambda out: out.exp(), torch.arange(ROWS) < ROWS - 1)
