"""Trees on which a slice is sent to all receivers, one function per strategy.

With t the time of the slice on an interface, A hosts that receive and D ranks on each: p2p takes A D t, local
all-gather A t, global all-gather about 2 t, a ring t and the filling of its chain (AlpaComm, Y. Zhuang et al., MLSys
2023, section 3.1). Here the parts of both all-gathers are passed on chunk by chunk too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from wirewise.collective import Network
from wirewise.collective.network import Edge
from wirewise.cost.links import Links
from wirewise.plans.reshard import MulticastTree, Strategy
from wirewise.sim.chains import chain_edges

__all__ = ["TREES", "has_unequal_receivers", "trees_of"]

_MOST_TREES = 8
"""Trees of a slice at most."""
_ALIKE = 1.01
"""Rates that differ by less are alike."""


def trees_of(
    strategy: Strategy,
    size_bytes: int,
    sender: int,
    receivers: Sequence[int],
    links: Links,
    *,
    start: int = 0,
) -> tuple[MulticastTree, ...]:
    """Build the trees that send bytes of a slice to all receivers.

    Args:
        strategy: Kind of trees, a key of `TREES`.
        size_bytes: Bytes to send.
        sender: Rank that holds them; not among the receivers.
        receivers: Ranks that need them.
        links: Links between all ranks.
        start: Offset of the bytes in the slice.
    """
    found = TREES[strategy](size_bytes, sender, list(receivers), links)
    return tuple(
        MulticastTree(start=start + begin, stop=start + end, sender=sender, edges=tuple(edges))
        for begin, end, edges in found
        if end > begin
    )


_Edges = list[tuple[int, int]]
_Parts = list[tuple[int, int, _Edges]]
"""First byte, the byte after the last one, edges."""


def _p2p(size: int, sender: int, receivers: list[int], links: Links) -> _Parts:
    return [(0, size, [(sender, receiver)]) for receiver in receivers]


def _local_all_gather(size: int, sender: int, receivers: list[int], links: Links) -> _Parts:
    """Each rank of a host gets its share from the sender, and gives it to the others there."""
    found = []
    for host, ranks in _by_host(receivers, links).items():
        if host == links.host_of_rank[sender]:
            found += _p2p(size, sender, ranks, links)
            continue
        for number, first in enumerate(ranks):
            begin, end = size * number // len(ranks), size * (number + 1) // len(ranks)
            others = [(first, rank) for rank in ranks if rank != first]
            found.append((begin, end, [(sender, first), *others]))
    return found


def _global_all_gather(size: int, sender: int, receivers: list[int], links: Links) -> _Parts:
    """Each receiver gets its share from the sender, and all shares go round."""
    ranks = [rank for own in _by_host(receivers, links).values() for rank in own]
    found = []
    for number in range(len(ranks)):
        begin, end = size * number // len(ranks), size * (number + 1) // len(ranks)
        chain = ranks[number:] + ranks[:number]
        found.append((begin, end, list(zip([sender, *chain], chain, strict=False))))
    return found


def _ring(size: int, sender: int, receivers: list[int], links: Links) -> _Parts:
    return [(0, size, chain_edges(sender, receivers, links))]


def _trees(size: int, sender: int, receivers: list[int], links: Links) -> _Parts:
    """Packed trees of the largest rate that the hosts' interfaces allow (ForestColl), each with its share of bytes."""
    hosts = _by_host(receivers, links)
    here = int(links.host_of_rank[sender])
    own = hosts.pop(here, [])
    group = [here, *hosts]
    leader = dict(enumerate([sender, *(ranks[0] for ranks in hosts.values())]))
    inside = list(zip([sender, *own], own, strict=False))
    for ranks in hosts.values():
        inside += itertools.pairwise(ranks)
    if len(group) < 3:
        return _ring(size, sender, receivers, links)
    hub = len(group)
    edges = [
        Edge(*ends, float(rate[host]), 0.0)
        for number, host in enumerate(group)
        for ends, rate in (
            ((number, hub), links.bandwidth_out_bytes_per_s),
            ((hub, number), links.bandwidth_in_bytes_per_s),
        )
    ]
    names = (*(f"host{host}" for host in group), "switch")
    network = Network(name="hosts", ranks=hub, vertices=names, edges=tuple(edges))
    # Ranks that move tensors load this module too, but not the planners of collectives.
    from wirewise.planners.collective.forest import forest

    packed = forest(network, {0: 1}, tuple(range(hub)), most_trees=_MOST_TREES).trees
    ends = [round(size * float(sum(tree.weight for tree in packed[:n]))) for n in range(len(packed) + 1)]
    return [
        (begin, end, [*((leader[a], leader[b]) for a, b in tree.edges), *inside])
        for tree, begin, end in zip(packed, ends, ends[1:], strict=False)
    ]


TREES: dict[Strategy, Callable[[int, int, list[int], Links], _Parts]] = {
    "p2p": _p2p,
    "local_all_gather": _local_all_gather,
    "global_all_gather": _global_all_gather,
    "ring": _ring,
    "trees": _trees,
}
"""Strategies by name."""


def has_unequal_receivers(sender: int, receivers: Sequence[int], links: Links) -> bool:
    """Whether the slice goes to hosts with unequal interfaces, so that a single chain may be suboptimal."""
    hosts = sorted({int(links.host_of_rank[rank]) for rank in (sender, *receivers)})
    rates = np.concatenate([links.bandwidth_out_bytes_per_s[hosts], links.bandwidth_in_bytes_per_s[hosts]])
    return len(hosts) > 2 and bool(rates.max() > _ALIKE * rates.min())


def _by_host(ranks: Sequence[int], links: Links) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        found.setdefault(int(links.host_of_rank[rank]), []).append(rank)
    return found
