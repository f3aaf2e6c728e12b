"""The counter-based generator of `wirewise.rng` as torch operations, for any device."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from wirewise.errors import InputError
from wirewise.rng import GOLDEN, half_width, mix

__all__ = ["drop_threshold", "keep_mask", "uniform16"]

_MASK = 0xFFFFFFFF


def uniform16(key: int, rows: Int[Tensor, " n"], width: int) -> Int[Tensor, "n width"]:
    """16 random bits for every (row, column), as `wirewise.rng.uniform16`; int64, on the device of `rows`."""
    rows = rows.long()
    high = mix(((rows >> 32) + GOLDEN) & _MASK)
    keys = mix(mix((rows & _MASK) ^ high) ^ key)
    counter = (torch.arange(half_width(width), device=rows.device) * GOLDEN) & _MASK
    words = mix((keys[:, None] + counter[None, :]) & _MASK)
    return torch.cat([words & 0xFFFF, words >> 16], dim=1)[:, :width]


def drop_threshold(p: float) -> int:
    """Threshold of 16-bit draws for dropout with probability p, in units of 2**-16."""
    if not 0.0 <= p < 1.0:
        raise InputError(f"got dropout probability {p}; expected 0 <= p < 1")
    return round(p * 65536)


def keep_mask(key: int, rows: Int[Tensor, " n"], width: int, p: float) -> Bool[Tensor, "n width"]:
    """Mask of the values of each row that survive dropout with probability p."""
    return uniform16(key, rows, width) >= drop_threshold(p)
