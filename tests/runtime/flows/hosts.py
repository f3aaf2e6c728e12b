"""Hosts of a job as threads."""

import socket
from concurrent.futures import ThreadPoolExecutor

from wirewise.runtime.flows import meet


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def on_hosts(count, work, timeout_s=20.0):
    """What `work(peers)` returns or raises on each host, every host a thread."""
    port = free_port()

    def host(rank):
        try:
            with meet(rank, count, "127.0.0.1", port, timeout_s=timeout_s) as peers:
                return work(peers)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(host, range(count)))
