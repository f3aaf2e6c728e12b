"""Serialisation of nested states without code: dictionaries, lists and tuples of tensors, numbers and strings."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wirewise.errors import InputError

__all__ = ["Tree", "checksum_of", "copy_into", "digest_of", "pack", "raw_bytes", "unpack"]

_BLOCK = 2**16
_FACTOR = 0x9E3779B97F4A7C15

Tree = Any
"""Nested dictionaries, lists and tuples of tensors, numbers and strings."""


def pack(tree: Tree) -> tuple[bytes, list[Tensor]]:
    """Split a tree into a frame with everything except tensor contents, and its tensors in the frame's order.

    Raises:
        InputError: A value cannot be stored without code.
    """
    tensors: list[Tensor] = []

    def emptied(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    file = io.BytesIO()
    torch.save(_mapped(tree, emptied), file)
    return file.getvalue(), tensors


def unpack(frame: bytes, fill: Callable[[list[Tensor]], None]) -> Tree:
    """Rebuild the tree of a frame.

    Args:
        frame: Frame from `pack`; nothing in it is executed.
        fill: Function that fills the tensors on the CPU, in the frame's order.

    Raises:
        InputError: The frame is damaged, or holds code.
    """
    try:
        tree = torch.load(io.BytesIO(frame), weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            "it is damaged, or holds objects that would run code when loaded; expected tensors, numbers and texts only"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise InputError(
            f"its frame of {len(frame)} bytes is damaged: {str(error).splitlines()[0]}"
        ) from error
    buffers: list[Tensor] = []

    def allocated(tensor: Tensor) -> Tensor:
        buffers.append(torch.empty(tensor.shape, dtype=tensor.dtype))
        return buffers[-1]

    found = _mapped(tree, allocated)
    fill(buffers)
    return found


def digest_of(tree: Tree) -> str:
    """Digest of a tree, sixteen hex digits, over names, dtypes, shapes and all bytes."""
    found = hashlib.blake2b(digest_size=8)
    for path, leaf in _leaves(tree, ""):
        if isinstance(leaf, Tensor):
            found.update(f"{path} {leaf.dtype} {list(leaf.shape)}".encode())
            found.update(_checksum(raw_bytes(leaf).numpy()))
        else:
            found.update(f"{path} {leaf!r}".encode())
    return found.hexdigest()


def _checksum(data: NDArray[np.uint8]) -> bytes:
    """Weighted sum of all words, and the bytes behind the last whole one: 30 times as fast as a cryptographic digest.

    Weights are odd, so a change of one word always changes the sum.
    """
    words, total = data[: len(data) // 8 * 8].view(np.int64), 0
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        total = (total * _FACTOR + int(np.dot(block, _weights()[: len(block)]))) % 2**64
    return total.to_bytes(8, "little") + data[len(words) * 8 :].tobytes()


def checksum_of(tensor: Tensor) -> int:
    """64-bit checksum of a tensor's bytes: weighted by position on the CPU, a plain sum on a device."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if data.device.type == "cpu":
        sums = _checksum(data.numpy())
        return int.from_bytes(sums[:8], "little") ^ int.from_bytes(sums[8:], "little")
    whole = len(data) // 8 * 8
    words = data[:whole].view(torch.int64).sum() if whole else 0
    return int(words + data[whole:].sum()) % 2**64


@cache
def _weights() -> NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64(0)).integers(-(2**63), 2**63 - 1, _BLOCK) | 1


def raw_bytes(tensor: Tensor) -> Tensor:
    """Contents of a tensor as bytes on the CPU, uint8 [bytes]; a view if it is contiguous there."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _leaves(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key in sorted(tree, key=str):
            yield from _leaves(tree[key], f"{path}.{key}")
    elif isinstance(tree, list | tuple):
        for number, one in enumerate(tree):
            yield from _leaves(one, f"{path}.{number}")
    else:
        yield path, tree


def _mapped(tree: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    """The tree with each tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        # Schedules count milestones in one.
        made = {key: _mapped(one, change) for key, one in tree.items()}
        return Counter(made) if isinstance(tree, Counter) else made
    if isinstance(tree, list | tuple):
        changed = [_mapped(one, change) for one in tree]
        return changed if isinstance(tree, list) else tuple(changed)
    if tree is None or isinstance(tree, bool | int | float | str | bytes):
        return tree
    raise InputError(
        f"a state holds a {type(tree).__name__}; expected tensors, numbers and texts in dictionaries, lists and "
        "tuples: let state_dict() give these"
    )


def copy_into(tree: Tree, into: Tree = None) -> Tree:
    """Copy a tree, reusing the memory of matching tensors of `into`."""
    if isinstance(tree, Tensor):
        if isinstance(into, Tensor) and _kind(into) == _kind(tree):
            return into.copy_(tree.detach())
        return tree.detach().clone()
    if isinstance(tree, Mapping):
        old = into if isinstance(into, Mapping) else {}
        made = {key: copy_into(one, old.get(key)) for key, one in tree.items()}
        return Counter(made) if isinstance(tree, Counter) else made
    if isinstance(tree, list | tuple):
        rest = into if isinstance(into, list | tuple) and len(into) == len(tree) else [None] * len(tree)
        parts = [copy_into(one, old) for one, old in zip(tree, rest, strict=True)]
        return parts if isinstance(tree, list) else tuple(parts)
    return tree


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device
