"""Which bytes a collective sends between which hosts, by algorithm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from wirewise.errors import InputError

__all__ = ["ALGORITHMS", "Flows", "collective_flows"]

ALGORITHMS = ("ring", "tree", "ps", "hierarchical")


class Flows(NamedTuple):
    """(source host, destination host, bytes), and how often in a row the latency is paid."""

    flows: list[tuple[int, int, float]]
    rounds: int


def collective_flows(
    collective: str, hosts: Sequence[int], size_bytes: float, algorithm: str = "ring", *, servers: int = 1
) -> Flows:
    """Flows of a collective as one transfer.

    Args:
        collective: A name of `dataflow.COLLECTIVES`; all but all_reduce ignore the algorithm.
        hosts: Host of each rank of the group, in the order of ranks; send and recv: of the two ends.
        size_bytes: Payload of one rank (of all_gather and all_to_all: what it gives).
        algorithm: One of ALGORITHMS. "ring": a ring over all ranks. "tree": a reduction up and a broadcast
            down a binary tree over all ranks. "ps": push to and pull from `servers`, which are the first
            ranks. "hierarchical": within each host, then a ring over hosts, then within each host.
        servers: Ranks that hold a part of the parameters each.

    Raises:
        InputError: An algorithm that is not known, or a number of servers that does not fit.
    """
    n = len(hosts)
    if algorithm not in ALGORITHMS:
        raise InputError(f"got the algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}")
    if n < 2 or size_bytes <= 0.0:
        return Flows([], 0)
    if collective == "all_reduce" and algorithm != "ring":
        return {"tree": _tree, "hierarchical": _hierarchical}.get(algorithm, _to_servers)(
            hosts, size_bytes, servers
        )
    if collective in ("send", "recv"):
        return Flows([(hosts[0], hosts[1], size_bytes)], 1)
    if collective == "broadcast":
        hops = _pairs([(hosts[(i - 1) // 2], hosts[i], size_bytes) for i in range(1, n)])
        return Flows(hops, n.bit_length() - 1)
    if collective == "all_to_all":
        every = [(a, b, size_bytes / n) for i, a in enumerate(hosts) for j, b in enumerate(hosts) if i != j]
        return Flows(_pairs(every), n - 1)
    if collective in ("", "barrier"):
        # What is not known keeps the time that was measured.
        return Flows([], 0)
    # Each of n - 1 rounds passes a whole payload (all_gather) or a n-th of it; all_reduce does so twice.
    rounds = n - 1 if collective in ("all_gather", "reduce_scatter") else 2 * (n - 1)
    return Flows(_ring(hosts, rounds * size_bytes / (1 if collective == "all_gather" else n)), rounds)


def _pairs(flows: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Flows between the same two hosts as one."""
    total: dict[tuple[int, int], float] = {}
    for source, destination, size in flows:
        total[source, destination] = total.get((source, destination), 0.0) + size
    return [(a, b, size) for (a, b), size in total.items() if size > 0]


def _ring(hosts: Sequence[int], hop_bytes: float) -> list[tuple[int, int, float]]:
    return _pairs([(a, hosts[(i + 1) % len(hosts)], hop_bytes) for i, a in enumerate(hosts)])


def _tree(hosts: Sequence[int], size_bytes: float, _servers: int) -> Flows:
    flows = []
    for child in range(1, len(hosts)):
        parent = hosts[(child - 1) // 2]
        flows += [(hosts[child], parent, size_bytes), (parent, hosts[child], size_bytes)]
    return Flows(_pairs(flows), 2 * (len(hosts).bit_length() - 1))


def _to_servers(hosts: Sequence[int], size_bytes: float, servers: int) -> Flows:
    if not 1 <= servers <= len(hosts):
        raise InputError(f"got {servers} servers for {len(hosts)} ranks; expected 1 to {len(hosts)}")
    flows = []
    for rank, host in enumerate(hosts):
        for server in range(servers):
            if rank != server:
                part = size_bytes / servers
                flows += [(host, hosts[server], part), (hosts[server], host, part)]
    return Flows(_pairs(flows), 2)


def _hierarchical(hosts: Sequence[int], size_bytes: float, _servers: int) -> Flows:
    counts = Counter(hosts)
    flows = [(h, h, 2.0 * size_bytes * (n - 1)) for h, n in counts.items() if n > 1]
    flows += _ring(list(counts), 2.0 * (len(counts) - 1) / len(counts) * size_bytes)
    inside = 2 if flows and max(counts.values()) > 1 else 0
    return Flows(_pairs(flows), inside + 2 * (len(counts) - 1))
