"""The kernel's counts of this process's connections."""

from __future__ import annotations

import socket

from wirewise.hosts.connections import connection_counts, own_connections


def test_bytes_that_arrived_are_counted_and_connections_found_by_their_peer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            before = connection_counts(one)
            one.sendall(bytes(100_000))
            read = 0
            while read < 100_000:
                read += len(other.recv(1 << 16))
            # An answer acknowledges all that came before it.
            other.sendall(b"!")
            one.recv(1)
            after = connection_counts(one)
            assert after.acknowledged_bytes - before.acknowledged_bytes == 100_000
            assert after.round_trip_s > 0 and after.busy_s >= after.receiver_limited_s >= 0
            address, port = server.getsockname()
            found = dict(own_connections())
            assert found[address, port, one.getsockname()[1]].acknowledged_bytes >= 100_000
            # What listens is no connection.
            assert (address, port, port) not in found
        # The copies that were read through are closed, and the connection is not.
        one.settimeout(5)
        assert one.recv(1) == b""
