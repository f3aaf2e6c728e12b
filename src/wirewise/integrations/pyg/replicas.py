"""Detection of parameters or buffers of a distributed model that are no longer equal on all ranks."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.log import logger
from wirewise.runtime import full_graph

__all__ = ["Replicas", "bits_of"]

_log = logger("graph")
_WINDOW_BYTES = 1 << 16
"""Bytes of a tensor that one step compares, in turn; 64 KiB take some 4 microseconds, a million parameters 300."""
_FEW_BYTES = 1 << 13
"""Bytes up to which a cyclic checksum takes less than NumPy: once a step, its first sum takes 55 microseconds."""
_FACTOR = 1_000_003
_MASK = 0x7FFF_FFFF_FFFF_FFFF
_ROUNDING = 16
"""Multiples of the type's precision up to which ranks may differ by the order of additions of their processors."""


class Replicas:
    """Parameters and buffers of a module, which must be bit-identical on all ranks.

    Args:
        module: The distributed copy.
        transport: Messages between the ranks.
    """

    def __init__(self, module: nn.Module, transport: full_graph.Transport) -> None:
        self.module, self.transport = module, transport
        self._places: list[tuple[str, dict[str, Any], str]] = []
        self._bytes: list[_Bytes | None] = []
        """Bytes of the tensor that was at each place before."""
        self.find()

    def find(self) -> None:
        """Cache references to the tensors, as walking the modules takes longer than all checksums."""
        self._places, seen = [], set()
        modules = list(self.module.named_modules())
        # Parameters first: what went wrong with them is seen in statistics too.
        held = [(p, m._parameters) for p, m in modules] + [(p, m._buffers) for p, m in modules]
        for prefix, tensors in held:
            for key, value in tensors.items():
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    self._places.append((f"{prefix}.{key}".lstrip("."), tensors, key))
        self._bytes = [None] * len(self._places)

    def checksum(self, turn: int, *, briefly: bool = False) -> int:
        """64-bit checksum of all tensors; for large ones, of a window that moves with `turn`.

        Args:
            turn: Index of the check.
            briefly: Check one tensor only, another one in each turn.
        """
        count, total = len(self._places), 0
        for number in range(turn % count, turn % count + 1) if briefly and count else range(count):
            _, held, key = self._places[number]
            value = held.get(key)
            if value is not None:
                known = self._bytes[number]
                if known is None or not known.is_of(value):
                    known = self._bytes[number] = _Bytes(value)
                # By `turn // count` where tensors take turns, or a window might never come.
                total = (total * _FACTOR + known.sum(turn // count if briefly else turn)) & _MASK
        return total

    def compare(self, turn: int, label: str) -> None:
        """Compare checksums on all ranks, and all bits if they differ; a collective call.

        Raises:
            InputError: A tensor differs by more than rounding; the message names it.
        """
        own = torch.tensor([self.checksum(turn)])
        if len({int(one) for one in self.transport.all_gather(own, f"checksum of parameters, {label}")}) > 1:
            self.check(label)

    def check(self, label: str) -> None:
        """Compare all bits on all ranks; a collective call.

        Raises:
            InputError: A tensor differs by more than rounding; the message names it.
        """
        own = torch.tensor([bits_of(t) for t in self._tensors().values()] + [0], dtype=torch.int64)
        count = torch.tensor([len(own)])
        counts = [int(c) for c in self.transport.all_gather(count, f"number of tensors, {label}")]
        if len(set(counts)) > 1:
            raise InputError(f"ranks hold {counts} parameters and buffers; give all ranks the same model")
        sums = torch.stack(self.transport.all_gather(own, f"checksums of parameters, {label}"))
        differ = (sums != sums[0]).any(0).nonzero().flatten().tolist()
        if differ:
            self._resolve(differ, sums)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: held[key] for name, held, key in self._places if held.get(key) is not None}

    @torch.no_grad()
    def _resolve(self, differ: list[int], sums: Tensor) -> None:
        """Take rank 0's values where ranks differ by rounding; name the tensor that differs by more."""
        tensors = list(self._tensors().items())
        firsts = {name: t.detach().clone() for name, t in (tensors[i] for i in differ)}
        self.transport.broadcast(firsts, "parameters that differ")
        off = torch.tensor([_off(tensors[i][1], firsts[tensors[i][0]]) for i in differ], dtype=torch.float64)
        self.transport.all_reduce(off, "by how much parameters differ", torch.distributed.ReduceOp.MAX)
        for place, ratio in zip(differ, off.tolist(), strict=True):
            if not ratio <= _ROUNDING:
                raise self._refused(tensors[place][0], len(differ), sums[:, place].tolist())
        _log.warning(
            "%d tensors differed between ranks by rounding; all ranks took those of rank 0", len(differ)
        )
        for place in differ:
            # Past the version counters: a back-propagation may go on, whose saved values differ by rounding only.
            tensors[place][1].data.copy_(firsts[tensors[place][0]])

    def _refused(self, name: str, count: int, sums: list[int]) -> InputError:
        groups: dict[int, list[int]] = {}
        for rank, value in enumerate(sums):
            groups.setdefault(value, []).append(rank)
        who = "; ".join(
            f"ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else f"rank {ranks[0]}"
            for ranks in groups.values()
        )
        return InputError(
            f"{name} is not the same on all ranks ({count} of {len(self._places)} parameters and buffers differ; "
            f"those with equal values: {who}). Expected that all ranks do the same to the model: reset_parameters() "
            "and noise under the same seed, load_state_dict() on all ranks, a learning rate that follows "
            "job.mean(values, mask) and not this rank's own loss, no buffer of statistics of own rows. "
            "job.synchronize() gives all ranks the values of rank 0"
        )


class _Bytes:
    """Bytes of a tensor, as a view of its memory where that is possible.

    Five operators of torch make the view, which took 15 of the 18 microseconds of a small tensor's checksum.
    """

    def __init__(self, tensor: Tensor) -> None:
        plain = tensor.detach()
        self._tensor, self._place, self._kind = tensor, tensor.data_ptr(), (tensor.shape, tensor.dtype)
        self._is_view = plain.device.type == "cpu" and plain.is_contiguous()
        flat = plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        self._size, self._end = len(flat), len(flat) & ~7
        self._words, self._rest = flat[: self._end].view(np.uint64), flat[self._end :]
        self._windows = -(-len(flat) // _WINDOW_BYTES)
        self._small: Any = flat if len(flat) <= _FEW_BYTES else None

    def is_of(self, tensor: Tensor) -> bool:
        """Whether these are the bytes of a tensor now."""
        return (
            self._is_view
            and tensor is self._tensor
            # `p.data = ...` and `resize_` leave the object and take other memory.
            and tensor.data_ptr() == self._place
            and (tensor.shape, tensor.dtype) == self._kind
        )

    def sum(self, turn: int | None = None) -> int:
        """Sum of all 8-byte words, or of those in the window of a turn; a checksum of few bytes."""
        if self._small is not None:
            return crc32(self._small)
        words, length, last = self._words, _WINDOW_BYTES // 8, True
        if turn is not None and self._windows > 1:
            start = turn % self._windows * length
            # The bytes after the last word are in the last window.
            words, last = words[start : start + length], start + length > len(words)
        # The method `sum` takes half as long again.
        total = int(np.add.reduce(words))
        if last and self._end < self._size:
            total += int.from_bytes(self._rest.tobytes(), "little")
        return total & _MASK


def bits_of(tensor: Tensor) -> int:
    """Sum of the bits of a tensor, as 8-byte words."""
    return _Bytes(tensor).sum()


def _off(own: Tensor, first: Tensor) -> float:
    """Largest difference, in precisions of the type at the tensor's scale."""
    if not own.is_floating_point() or not own.numel():
        return 0.0 if torch.equal(own, first) else float("inf")
    scale = float(first.abs().max()) * torch.finfo(own.dtype).eps
    difference = float((own - first).abs().max())
    return 0.0 if difference == 0.0 else difference / scale if scale else float("inf")
