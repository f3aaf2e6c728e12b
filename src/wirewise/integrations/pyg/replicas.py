"""Notices that parameters or buffers of a distributed model are no longer equal on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.log import logger
from wirewise.runtime import full_graph

__all__ = ["Replicas", "bits_of"]

_log = logger("graph")
_WINDOW_BYTES = 1 << 16
"""Bytes of a tensor that one step looks at, by turns; 64 KiB take some 4 microseconds, a million parameters 300."""
_FACTOR = 1_000_003
_ROUNDING = 16
"""Multiples of the type's precision up to which ranks may differ by the order of additions of their processors."""


class Replicas:
    """Parameters and buffers of a module, expected to have the same bits on all ranks.

    Args:
        module: The distributed copy.
        transport: Messages between the ranks.
    """

    def __init__(self, module: nn.Module, transport: full_graph.Transport) -> None:
        self.module, self.transport = module, transport
        self._places: list[tuple[str, dict[str, Any], str]] = []
        self.find()

    def find(self) -> None:
        """Look up where the tensors are held, once: a walk over the modules takes longer than all checksums."""
        self._places, seen = [], set()
        modules = list(self.module.named_modules())
        # Parameters first: what went wrong with them is seen in statistics too.
        held = [(p, m._parameters) for p, m in modules] + [(p, m._buffers) for p, m in modules]
        for prefix, tensors in held:
            for key, value in tensors.items():
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    self._places.append((f"{prefix}.{key}".lstrip("."), tensors, key))

    def checksum(self, turn: int) -> int:
        """A 64-bit number of the bits of all tensors; of large ones a window that moves with `turn`."""
        total = 0
        for _, held, key in self._places:
            value = held.get(key)
            if value is not None:
                total = (total * _FACTOR + bits_of(value, turn)) & 0x7FFF_FFFF_FFFF_FFFF
        return total

    def compare(self, turn: int, what: str) -> None:
        """Compare the checksums of a turn on all ranks, and all bits where they differ; a collective call.

        Raises:
            InputError: A tensor differs by more than rounding; the message names it.
        """
        own = torch.tensor([self.checksum(turn)])
        if len({int(one) for one in self.transport.all_gather(own, f"checksum of parameters, {what}")}) > 1:
            self.check(what)

    def check(self, what: str) -> None:
        """Compare all bits on all ranks; a collective call.

        Raises:
            InputError: A tensor differs by more than rounding; the message names it.
        """
        own = torch.tensor([bits_of(t) for t in self._tensors().values()] + [0], dtype=torch.int64)
        count = torch.tensor([len(own)])
        counts = [int(c) for c in self.transport.all_gather(count, f"number of tensors, {what}")]
        if len(set(counts)) > 1:
            raise InputError(f"ranks hold {counts} parameters and buffers; give all ranks the same model")
        sums = torch.stack(self.transport.all_gather(own, f"checksums of parameters, {what}"))
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


def bits_of(tensor: Tensor, turn: int | None = None) -> int:
    """Sum of the bits of a tensor, or of the window of a turn, as 8-byte words."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if turn is not None and len(flat) > _WINDOW_BYTES:
        windows = -(-len(flat) // _WINDOW_BYTES)
        start = turn % windows * _WINDOW_BYTES
        flat = flat[start : start + _WINDOW_BYTES]
    end = len(flat) & ~7
    words = int(flat[:end].view(np.uint64).sum(dtype=np.uint64)) if end else 0
    return (words + sum(int(b) << (8 * i) for i, b in enumerate(flat[end:].tolist()))) & 0x7FFF_FFFF_FFFF_FFFF


def _off(own: Tensor, first: Tensor) -> float:
    """Largest difference, in precisions of the type at the tensor's scale."""
    if not own.is_floating_point() or not own.numel():
        return 0.0 if torch.equal(own, first) else float("inf")
    scale = float(first.abs().max()) * torch.finfo(own.dtype).eps
    difference = float((own - first).abs().max())
    return 0.0 if difference == 0.0 else difference / scale if scale else float("inf")
