"""Congestion control of the connections that ranks send on."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["leave_bbr"]

_NAME_BYTES = 16


def leave_bbr(connection: socket.socket) -> None:
    """Take cubic or reno where BBR is the kernel's default; without them BBR stays.

    BBR needs a second to learn a link's rate, and transfers are shorter, with pauses in between: measured on links of
    100 to 1600 Mbit/s, 16 MB a time, 200 to 230 ms with cubic and 220 to 380 ms with BBR. It also allows no more under
    way than fits the least round trip of the last ten seconds, and where bytes come in as fast as they go out,
    acknowledgements wait behind them: measured at 50 Mbit/s both ways, round trips grow from 0.1 to 50 ms and a lone
    flow gets 0.1 to 0.2 of the link for most of a second, all of it with cubic.
    """
    found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    if found.startswith(b"bbr"):
        for name in (b"cubic", b"reno"):
            with contextlib.suppress(OSError):  # It may be missing, or only for root.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
                return
