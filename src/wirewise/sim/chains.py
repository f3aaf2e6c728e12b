"""Chains of hosts along which slices are forwarded from one stage's ranks to another's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from wirewise.cost.links import Links
from wirewise.plans.reshard import MulticastTree
from wirewise.plans.sharding import LaidOutTensor, Sharding, movements

__all__ = ["ChainFlow", "chain_edges", "chunk_of", "flows_between", "last_chunk_s"]

_LEAST_CHUNK, _MOST_CHUNK = 1 << 16, 1 << 22
_CHUNKS = 128
"""Chunks of a part at least, where chunks are not smaller than the least then."""


class ChainFlow(NamedTuple):
    """Slice forwarded along a chain of ranks."""

    share: float
    """Fraction of the whole tensor's bytes."""
    sender: int
    """Rank that holds the slice, or reduces it."""
    edges: tuple[tuple[int, int], ...]
    """Pairs of sender and receiver; each leaves the sender or a rank that an earlier edge reaches."""
    addends: tuple[tuple[int, int], ...] = ()
    """Edges to the sender, from the ranks that hold the other partial sums, which come first."""


def chunk_of(size_bytes: int) -> int:
    """Chunk size for parts of up to this size, in bytes."""
    wanted = -(-size_bytes // _CHUNKS)
    return min(max(1 << max(wanted - 1, 0).bit_length(), _LEAST_CHUNK), _MOST_CHUNK)


def chain_edges(sender: int, receivers: Sequence[int], links: Links) -> list[tuple[int, int]]:
    """Chain over hosts in descending order of send bandwidth, and one inside each host from its first rank.

    Args:
        sender: Rank that holds the slice.
        receivers: Ranks that need it.
        links: Links between all ranks.
    """
    hosts: dict[int, list[int]] = {}
    for rank in sorted(receivers):
        hosts.setdefault(int(links.host_of_rank[rank]), []).append(rank)
    own = hosts.pop(int(links.host_of_rank[sender]), [])
    edges = list(zip([sender, *own], own, strict=False))
    rate = links.bandwidth_out_bytes_per_s
    last = sender
    for _, ranks in sorted(hosts.items(), key=lambda item: -rate[item[0]]):
        edges.append((last, ranks[0]))
        last = ranks[0]
    for ranks in hosts.values():
        edges += itertools.pairwise(ranks)
    return edges


def flows_between(source: Sharding, target: Sharding, links: Links) -> list[ChainFlow]:
    """Slices of a tensor sent from the ranks of one stage to those of another, each along one chain.

    If several hosts hold a slice, they alternate as senders. A reshard planner may find a faster plan.

    Args:
        source: Layout on the ranks that hold the tensor.
        target: Layout on the ranks that need it, disjoint from the others.
        links: Links between all ranks.
    """
    # A shape of which every part is as large as any other.
    shape = (len(source.ranks) * len(target.ranks),) * len(source.dims)
    tensor = LaidOutTensor(name="", shape=shape, dtype="uint8", source=source, target=target)
    whole = 1
    for size in shape:
        whole *= size
    found = []
    for number, one in enumerate(movements((tensor,))):
        share = sum(cut.elements for cut in one.slices) / whole
        hosts = {int(links.host_of_rank[rank]): rank for rank in reversed(one.holders[0])}
        sender = list(dict(sorted(hosts.items())).values())[number % len(hosts)]
        addends = tuple((own[0], sender) for own in one.holders[1:])
        found.append(ChainFlow(share, sender, tuple(chain_edges(sender, one.receivers, links)), addends))
    return found


def last_chunk_s(tree: MulticastTree, chunk_bytes: int, links: Links) -> float:
    """Seconds from the end of sending until the last rank has everything.

    A chunk forwarded over several edges takes its time on each; that on the slowest is already in the rate.

    Args:
        tree: Edges of the part.
        chunk_bytes: Bytes forwarded at a time.
        links: Links between all ranks.
    """
    if len(tree.edges) == 1:
        return 0.0
    chunk = min(chunk_bytes, tree.size_bytes)
    way: dict[int, tuple[float, float, float]] = {tree.sender: (0.0, 0.0, 0.0)}
    for here, there in tree.edges:
        late, sum_s, most_s = way[here]
        hop_s = chunk * _slope(links, here, there)
        late += float(links.pairs.latency_s[here, there]) if here != tree.sender else 0.0
        way[there] = (late, sum_s + hop_s, max(most_s, hop_s))
    return max(late + sum_s - most_s for late, sum_s, most_s in way.values())


def _slope(links: Links, here: int, there: int) -> float:
    a, b = links.host_of_rank[here], links.host_of_rank[there]
    own = float(links.pairs.s_per_byte[here, there])
    if a == b:
        return own
    return max(
        own, float(1 / links.bandwidth_out_bytes_per_s[a]), float(1 / links.bandwidth_in_bytes_per_s[b])
    )
