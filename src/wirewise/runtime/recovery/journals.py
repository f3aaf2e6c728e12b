"""Values of parameters before their last update, kept for a rollback (see `consistency` for the journals)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wirewise.plans.recovery import Consistency
from wirewise.runtime.recovery.undo import (
    AppliedUpdate,
    PreUpdateState,
    capture_update,
    group_settings,
    restore_parameter,
    values_before,
)

__all__ = ["JOURNALS", "BucketParameter", "Consistency", "Journal"]


class BucketParameter(NamedTuple):
    """Parameter of a bucket."""

    optimizer: Optimizer
    group: dict[str, Any]
    parameter: nn.Parameter


class Journal(Protocol):
    """Values of a bucket before its last update."""

    @property
    def size_bytes(self) -> int: ...

    def keep(self, members: Sequence[BucketParameter]) -> None:
        """Store values before an update."""

    def seal(self, *, stepped: bool) -> None:
        """Complete the record after an update; `stepped` is False if nothing changed."""

    def restore(self) -> None:
        """Restore the values."""


class _Nothing:
    size_bytes = 0

    def keep(self, members: Sequence[BucketParameter]) -> None:
        pass

    def seal(self, *, stepped: bool) -> None:
        pass

    def restore(self) -> None:
        pass


class _PingPong:
    """All values in a second buffer, whose memory is used again by every update."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[nn.Parameter, str], Tensor] = {}
        self._kept: list[tuple[BucketParameter, list[str], dict[str, Any]]] = []

    @property
    def size_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    @torch.no_grad()
    def keep(self, members: Sequence[BucketParameter]) -> None:
        self._kept, values, copies = [], [], []
        for member in members:
            if member.parameter.grad is None:
                continue
            tensors = _tensors(member)
            for name, tensor in tensors.items():
                key = member.parameter, name
                if (held := self._buffers.get(key)) is None or held.shape != tensor.shape:
                    held = self._buffers[key] = torch.empty_like(tensor)
                values.append(tensor)
                copies.append(held)
            state = member.optimizer.state.get(member.parameter, {})
            rest = {name: value for name, value in state.items() if name not in tensors}
            self._kept.append((member, list(tensors), rest))
        if values:
            torch._foreach_copy_(copies, values)

    def seal(self, *, stepped: bool) -> None:
        pass

    @torch.no_grad()
    def restore(self) -> None:
        for member, names, rest in self._kept:
            now = _tensors(member)
            for name in names:
                now[name].copy_(self._buffers[member.parameter, name])
            _forget(member, {*names, *rest})
            if rest:
                member.optimizer.state[member.parameter].update(rest)


class _Undo:
    """Gradients, for the inverse of the update."""

    def __init__(self) -> None:
        self._kept: list[tuple[BucketParameter, AppliedUpdate]] = []

    @property
    def size_bytes(self) -> int:
        return sum(update.gradient.nbytes for _, update in self._kept)

    def keep(self, members: Sequence[BucketParameter]) -> None:
        old = {member.parameter: update.gradient for member, update in self._kept}
        groups = {id(m.group): group_settings(m.optimizer, m.group) for m in _first_of_groups(members)}
        found = (
            (m, capture_update(m.optimizer, m.parameter, groups[id(m.group)], old.get(m.parameter)))
            for m in members
        )
        self._kept = [(member, update) for member, update in found if update is not None]

    def seal(self, *, stepped: bool) -> None:
        if not stepped:
            self._kept = []

    def restore(self) -> None:
        found = [values_before(member.optimizer, member.parameter, update) for member, update in self._kept]
        for (member, update), values in zip(self._kept, found, strict=True):
            restore_parameter(member.optimizer, member.parameter, update, values)


class _Exact(_Undo):
    """Gradients, and what the bits of the inverse differ by from those of the values before."""

    def __init__(self) -> None:
        super().__init__()
        self._values: list[dict[str, Tensor]] = []
        self._differences: list[dict[str, bytes]] = []

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + sum(len(one) for of in self._differences for one in of.values())

    @torch.no_grad()
    def keep(self, members: Sequence[BucketParameter]) -> None:
        super().keep(members)
        self._values = [
            {name: tensor.clone() for name, tensor in _tensors(member).items()} for member, _ in self._kept
        ]

    @torch.no_grad()
    def seal(self, *, stepped: bool) -> None:
        super().seal(stepped=stepped)
        self._differences = []
        for (member, update), values in zip(self._kept, self._values, strict=False):
            guess = _guess(member, update)
            self._differences.append(
                {
                    name: _compressed(_bits(value) - _bits(guess[name]))
                    for name, value in values.items()
                    if name != "step"
                }
            )
        self._values = []

    @torch.no_grad()
    def restore(self) -> None:
        for (member, update), differences in zip(self._kept, self._differences, strict=True):
            guess = _guess(member, update)
            exact = {}
            for name, packed in differences.items():
                bits = _bits(guess[name])
                whole = bits + _decompressed(packed, bits.dtype).to(bits.device)
                exact[name] = whole.view(guess[name].dtype).view(guess[name].shape)
            restore_parameter(
                member.optimizer, member.parameter, update, PreUpdateState(exact.pop(""), exact)
            )


JOURNALS: dict[Consistency, type[Journal]] = {
    "roll-forward": _Nothing,
    "ping-pong": _PingPong,
    "undo": _Undo,
    "journal": _Exact,
}


def _first_of_groups(members: Sequence[BucketParameter]) -> list[BucketParameter]:
    return list({id(member.group): member for member in members}.values())


def _guess(member: BucketParameter, update: AppliedUpdate) -> dict[str, Tensor]:
    """Values before an update as the inverse has them, in the types of the values; those it does not give as now."""
    values = values_before(member.optimizer, member.parameter, update)
    now = {name: tensor for name, tensor in _tensors(member).items() if not name or name in update.known}
    return {
        name: (values.parameter if not name else values.state.get(name, tensor)).to(tensor.dtype)
        for name, tensor in now.items()
    }


def _bits(tensor: Tensor) -> Tensor:
    """Values as integers, 1-D: their difference and its sum wrap around, so nothing is lost."""
    return tensor.detach().contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])


def _compressed(difference: Tensor) -> bytes:
    """Small integers of both signs, a byte of each after the other: nearly all but the lowest are zero."""
    size = difference.element_size()
    folded = (difference << 1) ^ (difference >> (8 * size - 1))
    planes = folded.cpu().view(torch.uint8).reshape(-1, size).T.contiguous()
    return zlib.compress(planes.numpy().data, 1)


def _decompressed(data: bytes, dtype: torch.dtype) -> Tensor:
    planes = np.frombuffer(zlib.decompress(data), dtype=np.uint8).reshape(dtype.itemsize, -1)
    folded = torch.from_numpy(planes.T.copy().ravel()).view(dtype)
    return ((folded >> 1) & torch.iinfo(dtype).max) ^ -(folded & 1)


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _tensors(member: BucketParameter) -> dict[str, Tensor]:
    """The parameter, under the name "", and the tensors of its state."""
    state = member.optimizer.state.get(member.parameter, {})
    return {"": member.parameter.detach()} | {n: v for n, v in state.items() if isinstance(v, Tensor)}


def _forget(member: BucketParameter, known: set[str]) -> None:
    """Remove state that an update made."""
    state = member.optimizer.state.get(member.parameter, {})
    for name in state.keys() - known:
        del state[name]
    if not state:
        member.optimizer.state.pop(member.parameter, None)
