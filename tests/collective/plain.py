"""The known algorithms written down a second time, without programs: bytes, rounds and single transfers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field


def collective_flows(
    collective: str, hosts: Sequence[int], size_bytes: float, algorithm: str = "ring", *, servers: int = 1
) -> tuple[list[tuple[int, int, float]], int]:
    """Flows between hosts, and rounds."""
    n = len(hosts)
    if n < 2 or size_bytes <= 0.0:
        return ([], 0)
    if collective == "all_reduce" and algorithm != "ring":
        return {"tree": _tree_flows, "hierarchical": _hierarchical_flows}.get(algorithm, _to_servers)(
            hosts, size_bytes, servers
        )
    if collective in ("send", "recv"):
        return ([(hosts[0], hosts[1], size_bytes)], 1)
    if collective == "broadcast":
        hops = _pairs([(hosts[(i - 1) // 2], hosts[i], size_bytes) for i in range(1, n)])
        return (hops, n.bit_length() - 1)
    if collective == "all_to_all":
        every = [(a, b, size_bytes / n) for i, a in enumerate(hosts) for j, b in enumerate(hosts) if i != j]
        return (_pairs(every), n - 1)
    if collective in ("", "barrier"):
        # What is not known keeps the time that was measured.
        return ([], 0)
    # Each of n - 1 rounds passes a whole payload (all_gather) or a n-th of it; all_reduce does so twice.
    rounds = n - 1 if collective in ("all_gather", "reduce_scatter") else 2 * (n - 1)
    return (_ring_flows(hosts, rounds * size_bytes / (1 if collective == "all_gather" else n)), rounds)


def _pairs(flows: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Flows between the same two hosts as one."""
    total: dict[tuple[int, int], float] = {}
    for source, destination, size in flows:
        total[source, destination] = total.get((source, destination), 0.0) + size
    return [(a, b, size) for (a, b), size in total.items() if size > 0]


def _ring_flows(hosts: Sequence[int], hop_bytes: float) -> list[tuple[int, int, float]]:
    return _pairs([(a, hosts[(i + 1) % len(hosts)], hop_bytes) for i, a in enumerate(hosts)])


def _tree_flows(
    hosts: Sequence[int], size_bytes: float, _servers: int
) -> tuple[list[tuple[int, int, float]], int]:
    flows = []
    for child in range(1, len(hosts)):
        parent = hosts[(child - 1) // 2]
        flows += [(hosts[child], parent, size_bytes), (parent, hosts[child], size_bytes)]
    return (_pairs(flows), 2 * (len(hosts).bit_length() - 1))


def _to_servers(
    hosts: Sequence[int], size_bytes: float, servers: int
) -> tuple[list[tuple[int, int, float]], int]:
    flows = []
    for rank, host in enumerate(hosts):
        for server in range(servers):
            if rank != server:
                part = size_bytes / servers
                flows += [(host, hosts[server], part), (hosts[server], host, part)]
    return (_pairs(flows), 2)


def _hierarchical_flows(
    hosts: Sequence[int], size_bytes: float, _servers: int
) -> tuple[list[tuple[int, int, float]], int]:
    counts = Counter(hosts)
    flows = [(h, h, 2.0 * size_bytes * (n - 1)) for h, n in counts.items() if n > 1]
    flows += _ring_flows(list(counts), 2.0 * (len(counts) - 1) / len(counts) * size_bytes)
    inside = 2 if flows and max(counts.values()) > 1 else 0
    return (_pairs(flows), inside + 2 * (len(counts) - 1))


@dataclass
class Hop:
    """One transfer."""

    source: int
    """Place of the sender in the group."""
    target: int
    size_bytes: float
    round: int
    after: set[int] = field(default_factory=set)
    """Numbers of the hops that must end before, as they bring its bytes or use its sender."""


def hops(
    collective: str,
    hosts: Sequence[int],
    size_bytes: float,
    algorithm: str = "ring",
    *,
    servers: int = 1,
    splits: Sequence[Sequence[float]] | None = None,
) -> list[Hop]:
    """Single transfers, each behind those that it needs."""
    n = len(hosts)
    if n < 2 or size_bytes <= 0 or collective == "barrier":
        return []
    if collective == "all_reduce":
        if algorithm == "tree":
            return _tree(n, size_bytes)
        if algorithm == "ps":
            return _servers(n, size_bytes, servers)
        if algorithm == "hierarchical":
            return _hierarchical(hosts, size_bytes)
        return _ring(list(range(n)), size_bytes / n, 2 * (n - 1))
    if collective == "reduce_scatter":
        return _ring(list(range(n)), size_bytes / n, n - 1)
    if collective == "all_gather":
        return _ring(list(range(n)), size_bytes, n - 1)
    if collective == "all_to_all":
        return _all_to_all(n, splits or [[size_bytes / n] * n] * n)
    if collective == "broadcast":
        return _down(n, size_bytes, [], 0)
    return [Hop(0, 1, size_bytes, 0)]


def _ring(places: Sequence[int], part: float, rounds: int, start: int = 0) -> list[Hop]:
    """Round by round each rank passes to the next what it got in the round before."""
    n = len(places)
    found: list[Hop] = []
    for number in range(rounds):
        for i, place in enumerate(places):
            base = (number - 1) * n
            after = {base + i, base + (i - 1) % n} if number else set()
            found.append(Hop(place, places[(i + 1) % n], part, start + number, after))
    return found


def _tree(n: int, size: float) -> list[Hop]:
    found: list[Hop] = []
    into: dict[int, set[int]] = defaultdict(set)
    depth = (n - 1).bit_length()
    for child in range(n - 1, 0, -1):
        parent = (child - 1) // 2
        into[parent].add(len(found))
        found.append(Hop(child, parent, size, depth - (child + 1).bit_length() + 1, set(into[child])))
    return _down(n, size, found, max(hop.round for hop in found) + 1, into[0])


def _down(n: int, size: float, found: list[Hop], start: int, first: set[int] | None = None) -> list[Hop]:
    """Hops from rank 0 down a binary tree, after the hops `found`."""
    number = {0: first or set()}
    for child in range(1, n):
        parent = (child - 1) // 2
        number[child] = {len(found)}
        found.append(Hop(parent, child, size, start + (child + 1).bit_length() - 2, set(number[parent])))
    return found


def _servers(n: int, size: float, servers: int) -> list[Hop]:
    part = size / servers
    found: list[Hop] = []
    pushed: dict[int, set[int]] = defaultdict(set)
    pairs = [(rank, server) for rank in range(n) for server in range(servers) if rank != server]
    for rank, server in pairs:
        pushed[server].add(len(found))
        found.append(Hop(rank, server, part, 0))
    return found + [Hop(server, rank, part, 1, set(pushed[server])) for rank, server in pairs]


def _hierarchical(hosts: Sequence[int], size: float) -> list[Hop]:
    """Members to the first rank of each host, a ring of these, back to the members."""
    leaders: dict[int, int] = {}
    for place, host in enumerate(hosts):
        leaders.setdefault(host, place)
    members = [(place, leaders[host]) for place, host in enumerate(hosts) if leaders[host] != place]
    found = [Hop(place, leader, size, 0) for place, leader in members]
    order = list(leaders.values())
    begin, count = len(found), len(order)
    into = {leader: {i for i, hop in enumerate(found) if hop.target == leader} for leader in order}
    last = 2 * (count - 1)
    for hop in _ring(order, size / count, last, start=1):
        # A sum goes out only once all members of its host have given theirs.
        hop.after = {begin + i for i in hop.after} or into[hop.source] | into[hop.target]
        found.append(hop)
    if last:
        into = {
            leader: {i for i, hop in enumerate(found) if hop.target == leader and hop.round == last}
            for leader in order
        }
    return found + [Hop(leader, place, size, last + 1, set(into[leader])) for place, leader in members]


def _all_to_all(n: int, splits: Sequence[Sequence[float]]) -> list[Hop]:
    """Hops of rounds: in round t each rank sends to the one t places on."""
    found: list[Hop] = []
    before: dict[int, set[int]] = defaultdict(set)
    for number in range(1, n):
        for source in range(n):
            target = (source + number) % n
            if splits[source][target] > 0:
                hop = Hop(source, target, splits[source][target], number - 1, before[source])
                before[source] = {len(found)}
                found.append(hop)
    return found
