"""Algorithms for hosts with fast links inside and slow links between: each byte enters a host once.

The first ranks of each host, as many as the smallest host has, each own a lane. Lanes split the traffic between
hosts, so that all outgoing links of a host work at once. Inside a host, lane owners collect first and spread last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from wirewise.collective.builders.bruck import all_gather_bruck as bruck
from wirewise.collective.builders.draft import Draft, RankGroup, concatenate, mirror
from wirewise.collective.builders.rings import all_gather_ring, all_reduce_ring
from wirewise.collective.builders.trees import broadcast_binomial
from wirewise.collective.program import Transfer
from wirewise.errors import ProgramError

__all__ = [
    "all_gather",
    "all_gather_bruck",
    "all_gather_host_ring",
    "all_reduce",
    "all_reduce_leaders",
    "all_to_all",
    "broadcast",
    "reduce_scatter",
    "scatter",
]


class _Hosts:
    """Ranks by host, the root's host first."""

    def __init__(self, group: RankGroup) -> None:
        if sorted(r for host in group.hosts for r in host) != list(range(group.ranks)) or () in group.hosts:
            raise ProgramError(
                f"got the hosts {group.hosts}; expected hosts=... with each of {group.ranks} ranks in one, "
                "such as [[0, 1], [2, 3]]"
            )
        self.hosts = sorted(group.hosts, key=lambda host: group.root not in host)
        self.lanes = min(map(len, self.hosts))
        self.sources = self.hosts[: 1 if group.repeats else None]
        self.among = RankGroup(len(self.hosts), repeats=min(group.repeats, 1))
        self.host = {r: h for h, host in enumerate(self.hosts) for r in host}
        self.index = {r: i for host in self.hosts for i, r in enumerate(host)}

    def owner(self, host: int, rank: int) -> int:
        """Rank that handles at a host what concerns a rank."""
        return self.hosts[host][self.index[rank] % self.lanes]

    def near(self, source: int, target: int) -> int:
        """A step for each pair of one host, so that all get from different ranks in it."""
        size = len(self.hosts[self.host[source]])
        return (self.index[target] - self.index[source]) % size - 1

    def pairs(self) -> Iterator[tuple[int, int, int]]:
        """Lane, its owner and another rank, of each host."""
        for host in self.sources:
            for lane, owner in enumerate(host[: self.lanes]):
                yield from ((lane, owner, other) for other in host if other != owner)

    def across(self, lane: int, draft: Draft, first_chunk: int = 0, apart: int = 1) -> list[Transfer]:
        """An algorithm among hosts, executed by the owners of a lane, its chunks some numbers apart."""
        at = [host[lane] for host in self.hosts]
        return [
            Transfer(first_chunk + t.chunk * apart, at[t.source], at[t.target], t.step, t.reduces)
            for t in draft.transfers
        ]


def broadcast(group: RankGroup) -> Draft:
    """Broadcast one part per lane: to the lane owner, between hosts by a binomial tree, then to all ranks of a host."""
    of = _Hosts(group)
    owners = of.hosts[0][: of.lanes]
    out = [Transfer(lane, group.root, o, lane) for lane, o in enumerate(owners) if o != group.root]
    tree = broadcast_binomial(RankGroup(len(of.hosts)))
    between = [t for lane in range(of.lanes) for t in of.across(lane, tree, lane)]
    inside = [Transfer(lane, s, t, of.near(s, t)) for lane, s, t in of.pairs() if t != group.root]
    return concatenate(*(Draft(of.lanes, part) for part in (out, between, inside)))


def scatter(group: RankGroup) -> Draft:
    """Scatter in which blocks for another host are sent together to its lane owners."""
    of = _Hosts(group)
    out, inside = list[Transfer](), list[Transfer]()
    for rank in range(group.ranks):
        host = of.host[rank]
        first = of.owner(host, rank) if host else rank
        if rank != group.root:
            step = of.index[first] + sum(map(len, of.hosts[:host]))
            out.append(Transfer(rank, group.root, first, step))
        if first != rank:
            inside.append(Transfer(rank, first, rank, of.index[rank] // of.lanes - 1))
    return concatenate(Draft(group.ranks, out), Draft(group.ranks, inside))


def all_gather(group: RankGroup) -> Draft:
    """All-gather with blocks to lane owners, round the hosts in one ring per lane, then to all ranks of each host."""
    of, p = _Hosts(group), group.ranks
    joined, between = _to_all_hosts(of, p, all_gather_ring(of.among))
    inside = [Transfer(b, owner, other, of.near(owner, other)) for b, owner, other in _to_all_inside(of, p)]
    return concatenate(Draft(p, joined), Draft(p, between), Draft(p, inside))


def all_gather_bruck(group: RankGroup) -> Draft:
    """All-gather with blocks to lane owners, between hosts by doubling steps, then to all ranks of each host.

    The last of these steps brings half of all blocks; each host spreads the others meanwhile. Messages are few and
    short chains suffice for many hosts, if the network between hosts is uniform.
    """
    of, p = _Hosts(group), group.ranks
    joined, between = _to_all_hosts(of, p, among := bruck(of.among))
    last, hosts = max((t.step for t in between), default=0), len(of.hosts)
    late = {(t.target - t.chunk) % hosts for t in among.transfers if t.step == last}
    after = max((1 + of.near(owner, other) for _, owner, other in of.pairs()), default=0)
    inside = [
        Transfer(b, s, t, last + of.near(s, t) + ((of.host[s] - of.host[b]) % hosts in late) * after)
        for b, s, t in _to_all_inside(of, p)
    ]
    return concatenate(Draft(p, joined), Draft(p, between + inside))


def all_gather_host_ring(group: RankGroup) -> Draft:
    """All-gather round the ring of each host and, from its last rank, along the ranks of all other hosts.

    A ring of all ranks takes p - 1 blocks into each host. Here only blocks of other hosts enter: on machines whose PCIe
    is hardly wider than their card (4 x 4 GPUs, 16 and 12.5 GB/s), each rank sends 15 blocks and each card 12.
    """
    of = _Hosts(group)
    found = list[Transfer]()
    for number, host in enumerate(of.hosts):
        others = [rank for other in of.hosts[number + 1 :] + of.hosts[:number] for rank in other]
        for index, block in enumerate(host):
            ring = host[index:] + host[:index]
            onward = [host[-1], *others]
            found += [Transfer(block, s, t, step) for step, (s, t) in enumerate(pairwise(ring))]
            after = len(host) - 1 - index
            found += [Transfer(block, s, t, step) for step, (s, t) in enumerate(pairwise(onward), after)]
    return Draft(group.ranks, found)


def _to_all_hosts(of: _Hosts, ranks: int, among: Draft) -> tuple[list[Transfer], list[Transfer]]:
    """Blocks to owners of their host, and by an all-gather among hosts to one owner of each."""
    joined, between, carried = list[Transfer](), list[Transfer](), defaultdict[int, list[Transfer]](list)
    for t in among.transfers:
        carried[t.chunk].append(t)
    for rank in range(ranks):
        owner = of.owner(of.host[rank], rank)
        if owner != rank:
            joined.append(Transfer(rank, rank, owner, of.index[rank] // of.lanes - 1))
        between += [
            Transfer(rank, of.owner(t.source, rank), of.owner(t.target, rank), t.step)
            for t in carried[of.host[rank]]
        ]
    return joined, between


def _to_all_inside(of: _Hosts, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Block, its owner in a host and another rank of it that needs the block."""
    for lane, owner, other in of.pairs():
        yield from ((b, owner, other) for b in range(ranks) if of.index[b] % of.lanes == lane and b != other)


def reduce_scatter(group: RankGroup) -> Draft:
    """Build the reduce-scatter that reverses `all_gather`."""
    return mirror(all_gather(group), reduces=True)


def all_reduce(group: RankGroup) -> Draft:
    """Reduce to the lane owners of each host, all-reduce round the hosts in each lane, then spread in each host."""
    of = _Hosts(group)
    hosts = len(of.hosts)
    chunks = of.lanes * hosts
    inside = [
        Transfer(part * of.lanes + lane, owner, other, of.near(owner, other))
        for lane, owner, other in of.pairs()
        for part in range(hosts)
    ]
    ring = all_reduce_ring(of.among)
    between = [t for lane in range(of.lanes) for t in of.across(lane, ring, lane, of.lanes)]
    down = Draft(chunks, inside)
    return concatenate(mirror(down, reduces=True), Draft(chunks, between), down)


def all_reduce_leaders(group: RankGroup) -> Draft:
    """Reduce to the first rank of each host, all-reduce round the ring of these, then broadcast in each host."""
    of = _Hosts(group)
    chunks = len(of.hosts)
    inside = [
        Transfer(c, leader, other, 0) for leader, *rest in of.hosts for other in rest for c in range(chunks)
    ]
    down = Draft(chunks, inside)
    between = Draft(chunks, of.across(0, all_reduce_ring(RankGroup(chunks))))
    return concatenate(mirror(down, reduces=True), between, down)


def all_to_all(group: RankGroup) -> Draft:
    """All-to-all in which chunks go to the lane of their target, then to its host, batched per host pair and lane."""
    of, p = _Hosts(group), group.ranks
    first, between, last = list[Transfer](), list[Transfer](), list[Transfer]()
    for chunk in range(p * p):
        source, target = divmod(chunk, p)
        here, there = of.host[source], of.host[target]
        lane_here, lane_there = of.owner(here, target), of.owner(there, target)
        if here == there:
            lane_here = lane_there = target
        if source != lane_here:
            first.append(Transfer(chunk, source, lane_here, of.near(source, lane_here)))
        if here != there:
            between.append(Transfer(chunk, lane_here, lane_there, (there - here) % len(of.hosts) - 1))
        if lane_there != target:
            last.append(Transfer(chunk, lane_there, target, of.index[target] // of.lanes - 1))
    return concatenate(Draft(p * p, first), Draft(p * p, between), Draft(p * p, last))
