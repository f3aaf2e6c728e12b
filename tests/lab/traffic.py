"""Run as a script on two hosts: one sends bytes over TCP, the other prints the bytes a second it received.

Time begins when the sender does, by a clock that both read: who waits for a processor makes the stream slower, never
faster.

Arguments: "send" or "receive", the receiver's address, the number of bytes.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from pathlib import Path

_PORT = 5000
_BEGIN = struct.Struct("<d")


def traffic(receiver: str, size_bytes: int, *, receives: int, sends: int, hosts: int = 2) -> list[list[str]]:
    """Commands for `Lab.launch(launcher="none")`: one host sends to another, the others do nothing."""
    script = [sys.executable, "-S", str(Path(__file__))]
    commands = [["true"]] * hosts
    commands[receives] = [*script, "receive", receiver, str(size_bytes)]
    commands[sends] = [*script, "send", receiver, str(size_bytes)]
    return commands


def _receive(address: str) -> None:
    with socket.create_server((address, _PORT)) as server:
        peer, _ = server.accept()
        with peer:
            (started,) = _BEGIN.unpack(peer.recv(_BEGIN.size, socket.MSG_WAITALL))
            got = _BEGIN.size
            while chunk := peer.recv(1 << 20):
                got += len(chunk)
            print(got / (time.monotonic() - started))  # noqa: T201


def _send(address: str, size_bytes: int) -> None:
    for _ in range(200):
        try:
            with socket.create_connection((address, _PORT)) as peer:
                peer.sendall(_BEGIN.pack(time.monotonic()) + bytes(size_bytes - _BEGIN.size))
                peer.shutdown(socket.SHUT_WR)
                peer.recv(1)
            return
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise SystemExit("nobody listens")


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        _receive(sys.argv[2])
    else:
        _send(sys.argv[2], int(sys.argv[3]))
