"""Groups of gradients that carriers bring to all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.harness.threads import run_ranks_as_threads
from wirewise.codec.gradients import CODECS
from wirewise.runtime.data_parallel import Compression, GroupSender, Pools
from wirewise.runtime.transport import Transport

SIZES = {"a": 37, "b": 1, "c": 130, "d": 24}


NAMES = tuple(SIZES)


WAYS = [(codec, scheme) for codec in CODECS for scheme in ("all_gather", "divisible", "hierarchical")]


def gradient(rank: int, step: int, total: int = sum(SIZES.values())) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(total, generator=generator)


def carried(ranks: int, body: Any, compression: Compression, *, timeout_s: float = 20) -> list[Any]:
    """`body(carrier, rank)` on every rank."""

    def rank_body(rank: int, group: Any, store: Any) -> Any:
        transport = Transport(group, timeout_s=timeout_s, store=store)
        carrier = GroupSender(transport, Pools(SIZES, compression), compression)
        try:
            return body(carrier, rank)
        finally:
            carrier.close()

    return run_ranks_as_threads(ranks, rank_body)


class Counting:
    """A process group that counts its collectives."""

    def __init__(self, group: Any) -> None:
        self._group, self.calls = group, []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)
        if name not in ("allreduce", "allgather", "_allgather_base", "alltoall_base"):
            return found
        return lambda *args: (self.calls.append(name), found(*args))[1]
