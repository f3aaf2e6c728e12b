"""Bounds of collectives by trying every cut and every partition, for small networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from wirewise.collective import Collective, Network
from wirewise.collective.network import Edge

__all__ = ["all_cuts", "leaving", "must_leave"]


def leaving(made: Network, inside: set[int]) -> float:
    return sum(e.bandwidth_bytes_per_s for e in made.edges if e.source in inside and e.target not in inside)


def must_leave(collective: Collective, inside: set[int], root: int, members: tuple[int, ...]) -> float:
    """Bytes that must leave a group of vertices, of a collective of one byte."""
    within = len(inside & set(members))
    outside, block = len(members) - within, 1 / len(members)
    if collective in ("all_gather", "reduce_scatter"):
        many = within if collective == "all_gather" else outside
        return many * block if within and outside else 0.0
    if collective == "all_to_all":
        return within * outside * block
    if collective == "all_reduce":
        return 1.0 if within and outside else 0.0
    if collective in ("broadcast", "scatter"):
        blocks = 1.0 if collective == "broadcast" else outside * block
        return blocks if root in inside and outside else 0.0
    blocks = 1.0 if collective == "reduce" else within * block
    return blocks if root not in inside and within else 0.0


def all_cuts(made: Network, collective: Collective, root: int, members: tuple[int, ...]) -> Iterator[float]:
    for bits in itertools.product((False, True), repeat=len(made.vertices)):
        inside = {v for v, chosen in enumerate(bits) if chosen}
        must = must_leave(collective, inside, root, members)
        if must:
            yield must / leaving(made, inside)
    if collective == "all_reduce":
        yield from _partitions(made, members)


def _partitions(made: Network, members: tuple[int, ...]) -> Iterator[float]:
    """Times from what parts of the ranks take in, or let out."""
    if len(members) < made.ranks:
        yield (
            2 * (len(members) - 1) / sum(e.bandwidth_bytes_per_s for e in made.edges if e.target < made.ranks)
        )
        return
    edges = tuple(Edge(e.target, e.source, e.bandwidth_bytes_per_s, 0.0) for e in made.edges)
    for way in (made, msgspec.structs.replace(made, edges=edges)):
        out = {
            ranks: min(leaving(way, set(ranks) | set(switches)) for switches in _subsets(way))
            for size in range(1, made.ranks)
            for ranks in itertools.combinations(range(made.ranks), size)
        }
        for labels in itertools.product(range(made.ranks), repeat=made.ranks):
            # Each partition once: labels in the order of first use.
            parts = len(set(labels))
            if parts > 1 and list(dict.fromkeys(labels)) == list(range(parts)):
                each = [tuple(r for r, label in enumerate(labels) if label == n) for n in range(parts)]
                yield 2 * (parts - 1) / sum(out[part] for part in each)


def _subsets(made: Network) -> Iterator[tuple[int, ...]]:
    switches = range(made.ranks, len(made.vertices))
    return itertools.chain.from_iterable(
        itertools.combinations(switches, n) for n in range(len(switches) + 1)
    )
