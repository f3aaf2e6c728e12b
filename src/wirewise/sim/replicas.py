"""Equivalent replicas of a pipeline on equal interfaces: one of each class is simulated for all.

Replicas and interfaces are two sides of a graph, and a transfer's use of an interface is an edge. If stable colour
refinement puts two replicas in one class, each use of one has a counterpart of the other on an interface that the same
classes use equally. Max-min sharing then gives both the same speeds throughout, so that they do the same at the same
time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.network import Edge
from wirewise.collective.symmetry import refine_colours
from wirewise.sim.timeline import rank_classes

__all__ = ["FoldedReplicas", "MessageLoad", "fold_replicas"]

_DIGITS = 12
"""Figures that agree in so many digits are the same; the rest is rounding."""


class MessageLoad(NamedTuple):
    """Load of equal messages of one kind."""

    duration_s: float
    """Seconds before bytes flow."""
    work: float
    """Bytes of the largest flow; 0 if the time is `duration_s` alone."""
    interface: tuple[int, ...]
    """Indices of the used interfaces."""
    weight: tuple[float, ...]
    """Bytes on each of these per byte of the largest flow."""


class FoldedReplicas(NamedTuple):
    """Transfers of one replica of each class, with the load of the whole class."""

    classes: tuple[tuple[int, ...], ...]
    """Replicas that do the same."""
    own: dict[tuple[int, int], dict[int, MessageLoad]]
    """Transfers by kind, and by the first replica of a class."""
    joint: dict[int, MessageLoad]
    """Transfers of all replicas together, by position."""


def fold_replicas(
    own: Mapping[tuple[int, int], Sequence[MessageLoad]],
    joint: Mapping[int, MessageLoad],
    capacity: NDArray[np.float64],
    keys: Sequence[Hashable],
) -> FoldedReplicas:
    """Find classes of replicas, and the transfers of one of each with the load of all.

    Args:
        own: Transfers of each replica, [replicas], by kind.
        joint: Transfers of all replicas together, by position.
        capacity: Bandwidth of each interface, in bytes per second.
        keys: Properties that distinguish replicas besides their transfers, [replicas].
    """
    uses = [
        (replica, kind, interface, weight)
        for kind, transfers in enumerate(own.values())
        for replica, one in enumerate(transfers)
        for interface, weight in zip(one.interface, one.weight, strict=True)
    ]
    at_replica = [
        (what, *(_same(t[replica].duration_s, t[replica].work) for t in own.values()))
        for replica, what in enumerate(keys)
    ]
    at_interface: list[tuple[Hashable, ...]] = [(_same(rate),) for rate in capacity.tolist()]
    for position, one in joint.items():
        for interface, weight in zip(one.interface, one.weight, strict=True):
            at_interface[interface] += ((position, _same(weight)),)
    count, known = len(keys), dict[Hashable, int]()
    colours = [known.setdefault(colour, len(known)) for colour in (*at_replica, *at_interface)]
    edges = [
        Edge(replica, count + interface, float(kind), *_same(weight))
        for replica, kind, interface, weight in uses
    ]
    colours = refine_colours(edges, colours)
    classes = rank_classes(colours[:count])
    first_of = {replica: members[0] for members in classes for replica in members}
    kept = {members[0] for members in rank_classes(colours[count:])}
    load: dict[tuple[int, int], dict[int, float]] = {}
    for replica, kind, interface, weight in uses:
        if interface in kept:
            on = load.setdefault((kind, first_of[replica]), {})
            on[interface] = on.get(interface, 0.0) + weight
    return FoldedReplicas(
        classes,
        {
            pair: {
                members[0]: _on(transfers[members[0]], load.get((kind, members[0]), {}))
                for members in classes
            }
            for kind, (pair, transfers) in enumerate(own.items())
        },
        {
            position: _on(one, {i: w for i, w in zip(one.interface, one.weight, strict=True) if i in kept})
            for position, one in joint.items()
        },
    )


def _on(one: MessageLoad, load: Mapping[int, float]) -> MessageLoad:
    return one._replace(interface=tuple(load), weight=tuple(load.values()))


def _same(*figures: float) -> tuple[float, ...]:
    return tuple(float(f"{figure:.{_DIGITS}g}") for figure in figures)
