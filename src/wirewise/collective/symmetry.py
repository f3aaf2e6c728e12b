"""Ranks that are equivalent in a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from wirewise.collective.network import Edge, Network
from wirewise.errors import TopologyError

__all__ = ["rank_classes", "refine_colours", "rotated_edges"]


def rank_classes(network: Network) -> tuple[int, ...]:
    """Classes of ranks with equal links to equivalent neighbours, by colour refinement.

    Ranks that an automorphism of the network maps to each other are in one class (Weisfeiler and Leman 1968); in
    regular networks a class can be larger.

    Args:
        network: Graph of the ranks.

    Returns:
        Class of each rank; classes are numbered in the order of their first rank.
    """
    colours = [0 if vertex < network.ranks else 1 for vertex in range(len(network.vertices))]
    return tuple(refine_colours(network.edges, colours)[: network.ranks])


def refine_colours(edges: Sequence[Edge], colours: list[int]) -> list[int]:
    """Refine vertex colours until stable, numbered in the order of their first vertex.

    Args:
        edges: Edges; different attributes distinguish them.
        colours: Initial colours of the vertices.
    """
    while True:
        around: list[list[tuple[int, float, float, int]]] = [[] for _ in colours]
        for edge in edges:
            rate = edge.bandwidth_bytes_per_s, edge.latency_s
            around[edge.source].append((0, *rate, colours[edge.target]))
            around[edge.target].append((1, *rate, colours[edge.source]))
        known: dict[tuple[object, ...], int] = {}
        refined = [
            known.setdefault((colour, *sorted(ends)), len(known))
            for colour, ends in zip(colours, around, strict=True)
        ]
        if len(known) == len(set(colours)):
            return refined
        colours = refined


def rotated_edges(network: Network, by: int) -> list[int]:
    """Image of each edge under the rotation of all ranks by `by`.

    Switches and hosts follow their neighbours.

    Args:
        network: Graph of the ranks.
        by: Number of ranks to rotate by, such as the ranks of a host.

    Raises:
        TopologyError: The network is not invariant under the rotation; the message names a link.
    """
    ranks, count = range(network.ranks), len(network.vertices)
    others = [-1] * (count - len(ranks))
    # The network beside itself, as vertices and their images must get the same colours.
    beside = [edge._replace(source=edge.source + count, target=edge.target + count) for edge in network.edges]
    first = [*ranks, *others, *((rank - by) % len(ranks) for rank in ranks), *others]
    colours = refine_colours([*network.edges, *beside], first)
    images: dict[int, list[int]] = defaultdict(list)
    for vertex in reversed(range(count)):
        images[colours[count + vertex]].append(vertex)
    goes_to = [images[colour].pop() if images[colour] else -1 for colour in colours[:count]]
    known: dict[Edge, list[int]] = defaultdict(list)
    for number, edge in enumerate(network.edges):
        known[edge].append(number)
    turned = []
    for edge in network.edges:
        image = edge._replace(source=goes_to[edge.source], target=goes_to[edge.target])
        if not known.get(image):
            ends = (network.vertices[edge.source], network.vertices[edge.target])
            raise TopologyError(
                f"network {network.name!r} does not look the same from {by} ranks on: the link from {ends[0]!r} to "
                f"{ends[1]!r} has no counterpart; expected hosts of {by} ranks that are alike"
            )
        turned.append(known[image].pop(0))
    return turned
