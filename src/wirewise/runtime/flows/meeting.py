"""Connections among the hosts of a job, for flows and for control, in both directions between each pair of hosts."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from wirewise.runtime.transport import Transport

__all__ = ["FLOWS", "WORDS", "Connections"]

FLOWS, WORDS = 0, 1


class Connections:
    """All connections of one host, open until the end of its context.

    Args:
        transport: Messages between the hosts, one rank each; all connect at the same time, once per store.

    Attributes:
        out: Connections to send on, by host and purpose.
        into: Connections to receive from, by host and purpose.

    Raises:
        PeerError: A host did not connect in time.
    """

    def __init__(self, transport: Transport) -> None:
        # Both need torch, which takes seconds to import.
        from torch._C._distributed_c10d import PrefixStore

        from wirewise.runtime.collective.rendezvous import join

        self.transport, self.rank, self.timeout_s = transport, transport.rank, transport.timeout_s
        self.out: dict[tuple[int, int], socket.socket] = {}
        self.into: dict[tuple[int, int], socket.socket] = {}
        for purpose in (FLOWS, WORDS):
            for up in (True, False):
                store = PrefixStore(f"flows-{purpose}-{up}", transport.store)
                found = join(store, self.rank, transport.world_size, timeout_s=self.timeout_s)
                for host, connection in found.items():
                    connection.settimeout(self.timeout_s)
                    # Bytes go one way on each: from the lower rank to the higher one, or back.
                    (self.out if (host > self.rank) == up else self.into)[host, purpose] = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in (*self.out.values(), *self.into.values()):
            connection.close()
