"""Named tensors: groups to communicate together, and a check that ranks have the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["alike_groups", "description", "digests", "first_and_last", "replace_in_groups"]

_GROUP_BYTES = 2**24
"""Tensors of one message hold about so much: a copy of it is made."""


def alike_groups(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Group tensors of one dtype and device, by name, into groups of at least 16 MiB, except the last ones."""
    held: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        group = held.setdefault((tensor.dtype, tensor.device), [])
        group.append(name)
        if sum(tensors[n].nbytes for n in group) >= _GROUP_BYTES:
            yield held.pop((tensor.dtype, tensor.device))
    yield from held.values()


@torch.no_grad()
def replace_in_groups(tensors: Mapping[str, Tensor], exchange: Callable[[list[str], Tensor], Tensor]) -> None:
    """Exchange tensors in place, those of one type and device as one flat tensor.

    Args:
        tensors: Tensors by name.
        exchange: Function of the names of a group and a copy of its elements, [elements], that returns as many new
            ones. Tensors of a group whose exchange raises keep their values.
    """
    for names in alike_groups(tensors):
        group = [tensors[name] for name in names]
        flat = exchange(names, torch.cat([tensor.reshape(-1) for tensor in group]))
        for tensor, part in zip(group, flat.split([one.numel() for one in group]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def digests(tensors: Mapping[str, Tensor]) -> Tensor:
    """Digest of each tensor's index, name, shape and dtype, int64 [tensors]."""
    told = (f"{place} {description(tensors, place)}" for place in range(len(tensors)))
    found = [hashlib.sha256(text.encode()).digest()[:8] for text in told]
    return torch.tensor([int.from_bytes(d, "little", signed=True) for d in found], dtype=torch.int64)


def description(tensors: Mapping[str, Tensor], index: int) -> str:
    """Describe a tensor by its index: name, shape and dtype, or that it does not exist."""
    if index >= len(tensors):
        return "none"
    name = list(tensors)[index]
    return f"{name!r}, {str(tensors[name].dtype).removeprefix('torch.')} {list(tensors[name].shape)}"


def first_and_last(names: Sequence[str]) -> str:
    """Summarise the names of a group for messages."""
    return repr(names[0]) if len(names) == 1 else f"{names[0]!r} to {names[-1]!r}"
