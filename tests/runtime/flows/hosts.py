"""Hosts of a job as threads."""

from tests.harness.threads import run_ranks_as_threads
from wirewise.runtime.flows import Connections
from wirewise.runtime.transport import Transport


def on_hosts(count, work, timeout_s=20.0):
    """What `work(peers)` returns or raises on each host, every host a thread."""

    def host(rank, group, store):
        try:
            with Connections(Transport(group, timeout_s=timeout_s, store=store)) as peers:
                return work(peers)
        except Exception as error:
            return error

    return run_ranks_as_threads(count, host)
