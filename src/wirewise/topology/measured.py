"""Topology from measurements between its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from wirewise.errors import TopologyError
from wirewise.topology.model import Host, Link, LinkKind, Switch, Topology, cable

__all__ = ["from_pairs"]

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]

_SHARED = 0.8
"""A rank whose links together reach less than this part of their sum has one port for all of them."""
_ALIKE = 0.1
"""Both directions of a link count as one where rates and latencies differ by less than this part."""


def from_pairs(
    name: str,
    ranks: Sequence[str],
    *,
    rate: ArrayLike,
    latency_s: ArrayLike,
    leaving: ArrayLike,
    arriving: ArrayLike,
    burst_bytes: ArrayLike = 0.0,
    kind: LinkKind = "ethernet",
    description: str = "",
) -> Topology:
    """Find the simplest network that explains the measured bandwidths.

    Pairs without mutual slowdown get direct links. Ranks limited by their ports, equally for every peer, get one
    switch. If both are observed, each rank gets an output and an input port, and output ports are linked to input
    ports.

    Args:
        name: Name of the topology.
        ranks: Name of each rank; each becomes a host.
        rate: Bandwidth of each pair alone, in bytes per second, [ranks, ranks], source first; the diagonal is
            ignored.
        latency_s: One-way latency of an empty message, in seconds, [ranks, ranks].
        leaving: Total send bandwidth of each rank to all others at once, in bytes per second, [ranks].
        arriving: Total receive bandwidth of each rank from all others at once, in bytes per second, [ranks].
        burst_bytes: Burst of each pair after a pause, in bytes, [ranks, ranks], or of all.
        kind: Kind of the links.
        description: Source of the figures.

    Raises:
        TopologyError: Shapes do not match, or a bandwidth is not positive.
    """
    rates, waits = np.asarray(rate, np.float64), np.asarray(latency_s, np.float64)
    out, into = np.asarray(leaving, np.float64), np.asarray(arriving, np.float64)
    _check(len(ranks), rates, waits, out, into)
    others = ~np.eye(len(ranks), dtype=bool)
    bound = _bind(rates * others, out, into)
    hosts = tuple(Host(name=rank) for rank in ranks)
    switches: tuple[Switch, ...] = ()
    if not bound.any():
        links = _direct(ranks, rates, waits, kind)
    elif bound.all() and _explained(rates, out, into, others):
        switches = (Switch(name="network", kind="network"),)
        links = _around_switch(ranks, out, into, waits, kind)
    else:
        switches = tuple(Switch(name=f"{r}-{way}", kind="network") for r in ranks for way in ("out", "in"))
        links = list(_through_ports(ranks, rates, waits, out, into, kind))
    burst = np.broadcast_to(np.asarray(burst_bytes, np.float64), rates.shape)
    links = [_bursting(link, ranks, burst) for link in links]
    return Topology(name=name, description=description, hosts=hosts, switches=switches, links=tuple(links))


def _bursting(link: Link, ranks: Sequence[str], burst: Matrix) -> Link:
    """The link with the burst of its pair; of a port, with the median over the pairs that use it."""
    place = {
        name: number for number, rank in enumerate(ranks) for name in (rank, f"{rank}-out", f"{rank}-in")
    }
    a, b = place.get(link.source), place.get(link.target)
    if a is not None and b is not None and a != b:
        size = float(burst[a, b])
    else:
        own = a if a is not None else b
        others = [r for r in range(len(ranks)) if r != own]
        size = float(np.median(burst[own, others])) if own is not None else 0.0
    return msgspec.structs.replace(link, burst_bytes=size)


def _check(count: int, rates: Matrix, waits: Matrix, *ends: Vector) -> None:
    shapes = [rates.shape, waits.shape, *(end.shape for end in ends)]
    if shapes != [(count, count)] * 2 + [(count,)] * 2:
        raise TopologyError(f"got shapes {shapes}; expected two of {(count, count)} and two of {(count,)}")
    wanted = rates[~np.eye(count, dtype=bool)]
    if not (np.isfinite(wanted).all() and (wanted > 0).all() and all((end > 0).all() for end in ends)):
        raise TopologyError("got a rate that is not above 0; measure it again")


def _bind(rates: Matrix, out: Vector, into: Vector) -> NDArray[np.bool_]:
    """Whether each rank cannot use all its links at once."""
    if len(rates) < 3:
        return np.zeros(len(rates), dtype=bool)
    return np.asarray((out < _SHARED * rates.sum(axis=1)) | (into < _SHARED * rates.sum(axis=0)))


def _explained(rates: Matrix, out: Vector, into: Vector, others: NDArray[np.bool_]) -> bool:
    """Whether each pair gets what the narrower of its two ports has."""
    ports = np.minimum(out[:, None], into[None, :])
    return bool((rates[others] >= _SHARED * ports[others]).all())


def _direct(ends: Sequence[str], rates: Matrix, waits: Matrix, kind: LinkKind) -> list[Link]:
    found = []
    for a in range(len(ends)):
        for b in range(a + 1, len(ends)):
            there = (float(rates[a, b]), float(waits[a, b]))
            back = (float(rates[b, a]), float(waits[b, a]))
            found += _between(ends[a], ends[b], there, back, kind)
    return found


def _around_switch(
    ranks: Sequence[str],
    out: Vector,
    into: Vector,
    waits: Matrix,
    kind: LinkKind,
) -> list[Link]:
    # A message passes two links, so each has half of the latency that a pair shows.
    half = [float(np.median(np.delete(waits[r], r))) / 2 for r in range(len(ranks))]
    ends = [((float(out[r]), half[r]), (float(into[r]), half[r])) for r in range(len(ranks))]
    return [
        link for rank, end in zip(ranks, ends, strict=True) for link in _between(rank, "network", *end, kind)
    ]


def _through_ports(
    ranks: Sequence[str],
    rates: Matrix,
    waits: Matrix,
    out: Vector,
    into: Vector,
    kind: LinkKind,
) -> Iterator[Link]:
    for a, source in enumerate(ranks):
        yield cable(source, f"{source}-out", kind, float(out[a]), 0.0, "one")
        yield cable(f"{source}-in", source, kind, float(into[a]), 0.0, "one")
        for b, target in enumerate(ranks):
            if a != b:
                ends = f"{source}-out", f"{target}-in"
                yield cable(*ends, kind, float(rates[a, b]), float(waits[a, b]), "one")


def _between(
    a: str, b: str, there: tuple[float, float], back: tuple[float, float], kind: LinkKind
) -> list[Link]:
    """One link for both directions where they are alike, else one for each."""
    if abs(there[0] - back[0]) <= _ALIKE * max(there[0], back[0]):
        rate, wait = (there[0] + back[0]) / 2, (there[1] + back[1]) / 2
        return [cable(a, b, kind, rate, wait)]
    return [cable(a, b, kind, *there, "one"), cable(b, a, kind, *back, "one")]
