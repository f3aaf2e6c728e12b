"""Logical topology derived from a network, with a sketch or from the network alone."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

from wirewise.collective import Network
from wirewise.errors import InputError
from wirewise.planners.collective.demands import pairs
from wirewise.planners.collective.taccl.instance import is_symmetry
from wirewise.planners.collective.taccl.logical import (
    Logical,
    LogicalLink,
    Pair,
    Port,
    apply_sketch,
)
from wirewise.planners.collective.taccl.sketch import Sketch

__all__ = ["derive_topology", "hosts"]

_UNITS = 200
"""Units of time that the quickest pair takes for a chunk."""
_GAP = 1.8
"""Pairs within hosts are at least so many times as wide as those between."""


def derive_topology(
    network: Network, chunk_bytes: float, *, direct: bool = False, sketch: Sketch | None = None
) -> Logical:
    """Derive pairs from routes, ports from shared edges, relays from network ports, and symmetries by trial.

    Args:
        network: Network to derive from.
        chunk_bytes: Chunk size in bytes, which determines the weight of latencies.
        direct: Whether each rank sends to its counterpart on other hosts, for small sizes; otherwise one rank sends
            and one receives at each network port.
        sketch: Hosts, relays and symmetries, in place of derived ones; its switches are the network's.

    Raises:
        InputError: The hosts of the sketch do not divide the ranks, or its relays are not connected.
    """
    times = {pair: (network.latency(*pair), chunk_bytes / network.rate(*pair)) for pair in pairs(network)}
    unit_s = min(map(sum, times.values()), default=1.0) / _UNITS
    size = _host_size(network, sketch) if sketch else hosts(network)
    hops = {
        (s, t): LogicalLink(
            round(alpha / unit_s), max(round(beta / unit_s), 1), remote=s // size != t // size
        )
        for (s, t), (alpha, beta) in times.items()
    }
    shared = _shared(network)
    kept, senders = (
        (_drawn(network, size, hops, sketch), ()) if sketch else _relayed(network, size, hops, shared, direct)
    )
    ports = {
        frozenset(own & kept.keys()): max(
            round(chunk_bytes / network.edges[edge].bandwidth_bytes_per_s / unit_s), 1
        )
        for edge, own in sorted(
            shared.items(), key=lambda item: -network.edges[item[0]].bandwidth_bytes_per_s
        )
        if len(own & kept.keys()) > 1
    }
    plain = Logical(
        name=network.name,
        ranks=network.ranks,
        node_size=size,
        hops=kept,
        ports=tuple(Port(f"edge {n}", own, cost) for n, (own, cost) in enumerate(ports.items())),
        senders=senders,
        alpha_occupies=False,
        detours=True,
        unit_s=unit_s,
    )
    return apply_sketch(plain, sketch) if sketch else replace(plain, rotations=_rotations(plain))


def _host_size(network: Network, sketch: Sketch) -> int:
    if network.ranks % sketch.nnodes:
        raise InputError(
            f"the sketch has {sketch.nnodes} hosts; network {network.name!r} has {network.ranks} ranks, which they do "
            "not divide; change nnodes"
        )
    return network.ranks // sketch.nnodes


def _drawn(
    network: Network, size: int, hops: dict[Pair, LogicalLink], sketch: Sketch
) -> dict[Pair, LogicalLink]:
    """Pairs within hosts, and the relays of the sketch between them."""
    nodes = [range(node * size, (node + 1) * size) for node in range(sketch.nnodes)]
    relays = {
        (a[s], b[t])
        for s, targets in sketch.connections(size).items()
        for t in targets
        for a, b in itertools.permutations(nodes, 2)
    }
    if relays - hops.keys():
        s, t = min(relays - hops.keys())
        raise InputError(
            f"the sketch relays from rank {s} to {t}, which network {network.name!r} joins only over other ranks"
        )
    return {pair: hop for pair, hop in hops.items() if not hop.remote or pair in relays}


def hosts(network: Network) -> int:
    """Number of ranks per host: those joined by routes clearly faster than the others; all, if there is no such gap.

    Ranks of a host must be consecutive, and hosts of equal size; otherwise the network counts as one host.
    """
    rates = {pair: network.rate(*pair) for pair in pairs(network)}
    widths = sorted(set(rates.values()), reverse=True)
    for wide, narrow in sorted(itertools.pairwise(widths), key=lambda w: w[1] / w[0]):
        if wide < _GAP * narrow:
            break
        size = _component_size(network.ranks, {pair for pair, rate in rates.items() if rate >= wide})
        if size > 1:
            return size
    return network.ranks


def _component_size(ranks: int, wide: set[Pair]) -> int:
    """Common size of the groups that pairs join, if they are of one size and of neighbours in number; else 0."""
    label = list(range(ranks))
    for s, t in sorted(wide):
        old, new = max(label[s], label[t]), min(label[s], label[t])
        label = [new if each == old else each for each in label]
    size = label.count(label[0])
    regular = ranks % size == 0 and all(label[r] == r - r % size for r in range(ranks))
    return size if regular and size < ranks else 0


def _shared(network: Network) -> dict[int, set[Pair]]:
    """Pairs whose routes pass each edge."""
    found = defaultdict[int, set[Pair]](set)
    for pair in pairs(network):
        for edge, _ in network.route(*pair) or ():
            found[edge].add(pair)
    return found


def _relayed(
    network: Network, size: int, hops: dict[Pair, LogicalLink], shared: dict[int, set[Pair]], direct: bool
) -> tuple[dict[Pair, LogicalLink], tuple[tuple[int, ...], ...]]:
    """Pairs without those between hosts that are no relays, and who sends the chunks of each rank."""
    if size == network.ranks:
        return hops, ()
    out, into = {r: r for r in range(size)}, {r: r for r in range(size)}
    if not direct:
        ports = _network_ports(network, size, hops, shared)
        if all(len(port) == 1 for port in ports):
            return hops, ()
        for port in ports:
            for r in port:
                out[r], into[r] = port[0], port[1 % len(port)]
    ends = {(out[r], into[r]) for r in range(size)}
    kept = {(s, t): hop for (s, t), hop in hops.items() if not hop.remote or (s % size, t % size) in ends}
    joined = {(s // size, t // size) for (s, t), hop in kept.items() if hop.remote}
    nodes = network.ranks // size
    if len(joined) < nodes * (nodes - 1):
        return hops, ()
    return kept, tuple((r - r % size + out[r % size],) for r in range(network.ranks))


def _network_ports(
    network: Network, size: int, hops: dict[Pair, LogicalLink], shared: dict[int, set[Pair]]
) -> list[list[int]]:
    """Ranks of the first host by the narrowest edge that all their routes to other hosts share."""
    found = defaultdict[int, list[int]](list)
    for rank in range(size):
        away = {pair for pair, hop in hops.items() if hop.remote and pair[0] == rank}
        common = [edge for edge, own in shared.items() if away and away <= own]
        joint = [e for e in common if any(s != rank for s, _ in shared[e])] or common
        narrowest = min(joint, key=lambda e: (network.edges[e].bandwidth_bytes_per_s, e), default=-1 - rank)
        found[narrowest].append(rank)
    return list(found.values())


def _rotations(top: Logical) -> tuple[tuple[int, int], ...]:
    """The smallest offset that is a symmetry within hosts, and over all ranks."""
    found = []
    for size in dict.fromkeys((top.node_size, top.ranks)):
        offsets = range(1, size) if size == top.node_size else range(top.node_size, size, top.node_size)
        for offset in offsets:
            ranks = tuple(r - r % size + (r % size + offset) % size for r in range(top.ranks))
            if size % offset == 0 and is_symmetry(top, ranks):
                found.append((offset, size))
                break
    return tuple(found)
