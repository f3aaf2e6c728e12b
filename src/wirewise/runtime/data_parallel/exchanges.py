"""Collectives of flat buffers: blocking ones, with counts of sent bytes, and asynchronous all-reduces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from wirewise.runtime.transport import Transport

__all__ = ["AllReduces", "Exchanges"]


class Exchanges:
    """Blocking collectives; all ranks must call them in the same order.

    Args:
        transport: Transport between the ranks.
        label: Owner of the gradients, for messages.
    """

    def __init__(self, transport: Transport, label: str) -> None:
        self.transport, self.what = transport, label
        self.sent_bytes = 0
        """Bytes sent by this rank so far: of an all-reduce as by a ring."""

    def all_reduce(self, flat: Tensor) -> None:
        """Sum over the ranks, in place, [elements]."""
        ranks = self.transport.world_size
        staged = self.transport.staged(flat)
        if ranks > 1:
            self._wait("all-reduce", self.transport.group.allreduce, [staged])
        if staged is not flat:
            flat.copy_(staged)
        self.sent_bytes += 2 * (ranks - 1) * flat.nbytes // ranks

    def all_gather(self, own: Tensor) -> Tensor:
        """Gather equal-sized tensors of all ranks: [elements] -> [ranks, elements]."""
        ranks = self.transport.world_size
        staged = self.transport.staged(own)
        rows = staged.new_empty(ranks * own.numel())
        if ranks > 1:
            self._wait("all-gather", self.transport.group._allgather_base, rows, staged)
        else:
            rows.copy_(staged)
        self.sent_bytes += (ranks - 1) * own.nbytes
        return rows.view(ranks, -1).to(own.device)

    def all_to_all(self, parts: Mapping[int, Tensor], sizes: Mapping[int, int]) -> dict[int, Tensor]:
        """Send each rank its part; all ranks participate, even with nothing to send.

        Args:
            parts: Bytes to send, uint8 [bytes], by rank.
            sizes: Bytes to receive, by rank.

        Returns:
            Received bytes, uint8 [bytes] by rank, for the ranks in `sizes`.
        """
        ranks, own = range(self.transport.world_size), self.transport.rank
        device = next(iter(parts.values())).device
        together = self.transport.staged(torch.cat([parts[rank] for rank in sorted(parts)]))
        came = together.new_empty(sum(sizes.values()))
        out = [parts[rank].numel() if rank in parts else 0 for rank in ranks]
        into = [sizes.get(rank, 0) for rank in ranks]
        if len(ranks) > 1:
            self._wait("all-to-all", self.transport.group.alltoall_base, came, together, into, out)
        else:
            came.copy_(together)
        self.sent_bytes += sum(out) - out[own]
        rows = came.to(device).split(into)
        return {rank: rows[rank] for rank in sizes}

    def _wait(self, name: str, collective: Any, *args: Any) -> None:
        self.transport.complete(lambda: collective(*args), f"the {name} of {self.what}")


class AllReduces:
    """All-reduces without a codec, started on the back-propagation thread.

    Args:
        transport: Transport between the ranks.
        collective: Function called on a separate thread, replacing the group's all-reduce.
    """

    def __init__(self, transport: Transport, collective: Callable[[Tensor], None] | None) -> None:
        self.transport, self._collective = transport, collective
        self._thread = ThreadPoolExecutor(1, "wirewise-reduce") if collective else None
        self._works: list[tuple[str, Any]] = []

    def __len__(self) -> int:
        return len(self._works)

    def start(self, tensor: Tensor, label: str, planned: bool = True) -> None:
        """Start an all-reduce; those not in the plan use the group's all-reduce."""
        if planned and self._thread is not None:
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
            assert self._collective is not None
            notify_handover(self._collective, tensor)
            self._works.append((label, self._thread.submit(self._collective, tensor)))
            return

        def launch() -> None:
            self._works.append((label, self.transport.group.allreduce([self.transport.lend(tensor)])))

        self.transport.guard(launch, "all-reduce")

    def wait(self) -> None:
        """Wait until all all-reduces have completed.

        Raises:
            PeerError: A peer is gone.
        """
        for what, work in self._works:
            if isinstance(work, Future):
                # The collective has timeouts of its own.
                work.result()
            else:
                self.transport.wait_for(work, what)

    def forget(self) -> None:
        """Drop completed work handles."""
        self._works = []


def notify_handover(collective: Callable[[Tensor], None], tensor: Tensor) -> None:
    """Notify a collective, if it supports this, that a tensor was handed over."""
    if (handed_over := getattr(collective, "handed_over", None)) is not None:
        handed_over(tensor)
