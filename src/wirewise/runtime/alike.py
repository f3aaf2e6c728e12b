"""Tensors by name: which of them travel together, and whether ranks have the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["alike_groups", "description", "digests", "first_and_last"]

_GROUP_BYTES = 2**24
"""Tensors of one message hold about so much: a copy of it is made."""


def alike_groups(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Names of tensors of one type on one device, in groups of at least 16 MiB but the last ones."""
    held: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        group = held.setdefault((tensor.dtype, tensor.device), [])
        group.append(name)
        if sum(tensors[n].nbytes for n in group) >= _GROUP_BYTES:
            yield held.pop((tensor.dtype, tensor.device))
    yield from held.values()


def digests(tensors: Mapping[str, Tensor]) -> Tensor:
    """Digests, int64 [tensors]: what each tensor's place, name, shape and type come to."""
    told = (f"{place} {description(tensors, place)}" for place in range(len(tensors)))
    found = [hashlib.sha256(text.encode()).digest()[:8] for text in told]
    return torch.tensor([int.from_bytes(d, "little", signed=True) for d in found], dtype=torch.int64)


def description(tensors: Mapping[str, Tensor], place: int) -> str:
    """Name, type and shape of a tensor by its place, or that there is none."""
    if place >= len(tensors):
        return "none"
    name = list(tensors)[place]
    return f"{name!r}, {str(tensors[name].dtype).removeprefix('torch.')} {list(tensors[name].shape)}"


def first_and_last(names: Sequence[str]) -> str:
    """Names of a group for messages."""
    return repr(names[0]) if len(names) == 1 else f"{names[0]!r} to {names[-1]!r}"
