"""Differences of bits come back whatever they are, and small ones take little room."""

from __future__ import annotations

import pytest
import torch

from wirewise.runtime.recovery.journals import _bits, _compressed, _decompressed


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_differences_come_back(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    edges = torch.tensor([info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max], dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(info.min, info.max, (500,), generator=generator, dtype=dtype)
    for values in (edges, drawn, drawn[:0]):
        assert torch.equal(_decompressed(_compressed(values), dtype), values)


def test_small_differences_take_little_room() -> None:
    values = torch.randint(-1, 2, (10_000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    assert len(_compressed(values)) < 0.35 * len(values)


def test_differences_of_floats_wrap_around() -> None:
    values = torch.tensor([1.5, -1.5, 0.0, -0.0, float("inf"), float("nan"), 1e-40])
    others = values.flip(0)
    difference = _bits(values) - _bits(others)
    assert torch.equal((_bits(others) + difference).view(torch.float32).view(torch.int32), _bits(values))
