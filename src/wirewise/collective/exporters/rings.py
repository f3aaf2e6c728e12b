"""Rings over all ranks: those used by a program, and edge-disjoint ones that fit into a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wirewise.collective.network import Network
from wirewise.collective.program import Program
from wirewise.errors import ProgramError, TopologyError

__all__ = ["Ring", "pack_rings", "rings_of", "with_bandwidth"]

_VISITS = 20_000
"""Partial rings that the search for one ring looks at, at most."""


class Ring(NamedTuple):
    """Ring of ranks in order; the last sends to the first."""

    order: tuple[int, ...]
    bandwidth_bytes_per_s: float = 0.0
    """Dedicated bandwidth of each hop, 0 if unknown."""


def rings_of(program: Program) -> list[Ring]:
    """Rings that a program sends along, each starting at the lowest rank.

    Raises:
        ProgramError: A chunk is not passed along a ring of all ranks.
    """
    paths: list[dict[int, int]] = []
    for chunk in range(program.chunks):
        hops = {(t.source, t.target) for t in program.transfers if t.chunk == chunk}
        if len({s for s, _ in hops}) < len(hops) or len({t for _, t in hops}) < len(hops):
            raise ProgramError(f"program {program.name!r} is no ring: chunk {chunk} branches")
        path = dict(hops)
        fits = next((p for p in paths if _agree(p, path)), None)
        if fits is None:
            paths.append(path)
        else:
            fits.update(path)
    rings = [Ring(order) for order in dict.fromkeys(_closed(path, program) for path in paths if path)]
    if not rings:
        raise ProgramError(f"program {program.name!r} is no ring: it sends nothing")
    return rings


def pack_rings(network: Network, maximum: int = 16) -> list[Ring]:
    """Pack rings of equal bandwidth that share no capacity, by a greedy search for the highest total bandwidth.

    For each distinct edge capacity, rings are taken one after another until none is left; the capacity with the
    highest total wins.

    Args:
        network: Network to pack; a hop between ranks takes `Network.route`.
        maximum: Maximum number of rings.

    Raises:
        TopologyError: No ring over all ranks exists.
    """
    if network.ranks < 2:
        raise TopologyError(f"topology {network.name!r} has {network.ranks} ranks; a ring needs at least 2")
    best: list[Ring] = []
    for rate in sorted({edge.bandwidth_bytes_per_s for edge in network.edges}, reverse=True):
        found = list(_rings_at(network, rate, maximum))
        if _total(found) > _total(best):
            best = found
    if not best:
        raise TopologyError(f"topology {network.name!r}: found no ring over its {network.ranks} ranks")
    return best


def with_bandwidth(rings: Sequence[Ring], network: Network) -> list[Ring]:
    """Set the bandwidth of each ring, if all run at once and share every edge equally.

    Raises:
        TopologyError: A hop has no path.
    """
    uses = [_uses(network, ring.order) for ring in rings]
    load: dict[int, float] = defaultdict(float)
    for own in uses:
        for edge, times in own.items():
            load[edge] += times

    def share(edge: int) -> float:
        return network.edges[edge].bandwidth_bytes_per_s / load[edge]

    return [
        ring._replace(bandwidth_bytes_per_s=min(map(share, own)))
        for ring, own in zip(rings, uses, strict=True)
    ]


def _total(rings: list[Ring]) -> float:
    return sum(ring.bandwidth_bytes_per_s for ring in rings)


def _agree(a: dict[int, int], b: dict[int, int]) -> bool:
    forth = {**a, **b}
    return all(forth[s] == t for s, t in a.items()) and len({*forth.values()}) == len(forth)


def _closed(path: dict[int, int], program: Program) -> tuple[int, ...]:
    """The ranks along the path from the lowest one; a single missing hop is filled in."""
    everyone = {*range(program.ranks)}
    if len(path) == program.ranks - 1:
        path = path | dict(zip(everyone - {*path}, everyone - {*path.values()}, strict=True))
    order = [0]
    while len(order) < program.ranks and path.get(order[-1], 0) not in order:
        order.append(path[order[-1]])
    if len(order) < program.ranks:
        raise ProgramError(
            f"program {program.name!r} is no ring: a chunk passes {order} and does not reach all ranks"
        )
    return tuple(order)


def _rings_at(network: Network, rate: float, maximum: int) -> Iterator[Ring]:
    """Rings of `rate` bytes per second, until the capacity is used up."""
    left = [edge.bandwidth_bytes_per_s for edge in network.edges]
    for _ in range(maximum):
        order = _one_ring(network, left, rate)
        if order is None:
            return
        for edge, times in _uses(network, order).items():
            left[edge] -= rate * times
        yield Ring(order, rate)


def _uses(network: Network, order: tuple[int, ...]) -> dict[int, float]:
    """Times that a ring crosses each edge."""
    found: dict[int, float] = defaultdict(float)
    for s, t in zip(order, (*order[1:], order[0]), strict=True):
        path = network.route(s, t)
        if path is None:
            raise TopologyError(
                f"topology {network.name!r} has no path from rank {s} to {t}, which the ring needs"
            )
        for edge, fraction in path:
            found[edge] += fraction
    return found


def _one_ring(network: Network, left: list[float], rate: float) -> tuple[int, ...] | None:
    """Depth first from rank 0, the hops with least room to spare first; None if none found."""
    used: dict[int, float] = defaultdict(float)
    visits = 0

    def room(s: int, t: int) -> float:
        """Times that the hop still fits; below 1 it does not."""
        path = network.route(s, t)
        # Allow for rounding: capacities that are used up by equal shares must come out as empty.
        return min(((left[e] / rate - used[e]) / f + 1e-9 for e, f in path), default=0) if path else 0

    def extend(order: list[int]) -> tuple[int, ...] | None:
        nonlocal visits
        visits += 1
        here = order[-1]
        if len(order) == network.ranks:
            return tuple(order) if room(here, order[0]) >= 1 else None
        open_ = [t for t in network.neighbours(here) if t not in order and room(here, t) >= 1]
        for t in sorted(open_, key=lambda t: (room(here, t), t)):
            path = network.route(here, t) or ()
            for edge, fraction in path:
                used[edge] += fraction
            found = extend([*order, t]) if visits < _VISITS else None
            if found is not None:
                return found
            for edge, fraction in path:
                used[edge] -= fraction
        return None

    return extend([0])
