"""All-to-all exchanges of uneven sizes between machines, with byte counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from wirewise.errors import InputError
from wirewise.runtime.transport import Transport

__all__ = ["AllToAll", "exclusive"]

_BUSY: set[int] = set()
"""Identities of the groups that batches travel on now; whoever put one there holds the group."""


class AllToAll:
    """All-to-all exchanges over a process group that nothing else uses at the same time.

    Args:
        transport: Transport between the machines.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.sent_bytes = self.received_bytes = 0
        """Bytes of all messages but those that a machine sends to itself."""
        self._counting = threading.Lock()

    @property
    def groups(self) -> set[Any]:
        """Process groups that must not be used otherwise meanwhile."""
        return {self.transport.group}

    def exchange(
        self,
        label: str,
        sends: Tensor,
        received: Tensor,
        send_counts: NDArray[Any] | None = None,
        receive_counts: NDArray[Any] | None = None,
    ) -> None:
        """Send parts of `sends` to the machines, and receive theirs into `received`, in rank order.

        Args:
            label: Name of the exchange for error messages.
            sends: Parts to send, 1-D.
            received: Output for received parts, 1-D. Between devices (NCCL) both are copied via the device.
            send_counts: Number of elements for each machine. Defaults to equal parts. [K]
            receive_counts: Number of elements from each machine. Defaults to equal parts. [K]

        Raises:
            PeerError: A machine is gone.
        """
        transport = self.transport
        out, into = ([] if one is None else [int(n) for n in one] for one in (send_counts, receive_counts))
        self.count(self._foreign_bytes(sends, out), self._foreign_bytes(received, into))
        if transport.world_size == 1:
            received.copy_(sends)
            return
        landed = received
        if transport.on_device:
            sends, landed = sends.cuda(), torch.empty_like(received, device="cuda")
        transport.complete(
            lambda: transport.group.alltoall_base(transport.lend(landed), transport.lend(sends), into, out),
            label,
        )
        if landed is not received:
            received.copy_(landed)

    def count(self, sent_bytes: int, received_bytes: int) -> None:
        """Add to the counts of sent and received bytes; thread-safe."""
        with self._counting:
            self.sent_bytes += sent_bytes
            self.received_bytes += received_bytes

    def _foreign_bytes(self, buffer: Tensor, counts: list[int]) -> int:
        own = counts[self.transport.rank] if counts else buffer.numel() // self.transport.world_size
        return (buffer.numel() - own) * buffer.element_size()


@contextmanager
def exclusive(*exchanges: AllToAll) -> Iterator[None]:
    """Hold the groups of these exchanges exclusively, so that no other batches are sent on them.

    Raises:
        InputError: Batches are already sent on one of them; those of the two would be mismatched, or deadlock.
    """
    groups = {id(group) for each in exchanges for group in each.groups}
    if groups & _BUSY:
        raise InputError(
            "a loader was started on a process group that carries the batches of another one, whose pipeline runs "
            "ahead into its next epoch. Expected one at a time: iterate over loader.epoch(number) to the end before "
            "another loader begins (loader.epochs goes on between epochs), or give the second loader a Fetcher, and a "
            "PartitionedSampler, on groups of its own (torch.distributed.new_group())"
        )
    _BUSY.update(groups)
    try:
        yield
    finally:
        _BUSY.difference_update(groups)
