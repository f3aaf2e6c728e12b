"""Logical topology: rank pairs that an algorithm may use, chunk costs on them, and resources that they share.

TACCL (NSDI 2023), section 4: a sketch reduces the physical topology to it. Times are integers of one unit.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from wirewise.errors import InputError
from wirewise.planners.collective.taccl.sketch import Matrix, Profile, Sketch

__all__ = [
    "Logical",
    "LogicalLink",
    "Pair",
    "Port",
    "apply_sketch",
    "logical",
]

Pair = tuple[int, int]
"""Source and target."""


class LogicalLink(NamedTuple):
    """Cost of sending from one rank to another."""

    alpha: int
    beta: int
    links: int = 1
    """Parallel links."""
    remote: bool = False
    """Whether it leads to another host."""

    @property
    def cost(self) -> int:
        """Time of one chunk, in units of the topology."""
        return self.alpha + self.beta

    def time(self, chunks: int) -> int:
        """Time of `chunks` merged chunks, in units of the topology."""
        return self.alpha + chunks * self.beta


class Port(NamedTuple):
    """Resource shared by several pairs: one side of a rank's switch or NIC, or an edge of a network."""

    name: str
    pairs: frozenset[Pair]
    cost: int
    """Time that a chunk occupies it."""
    links: int = 1


@dataclass(frozen=True)
class Logical:
    """Pairs, ports, relays and symmetries that constrain the algorithm."""

    name: str
    ranks: int
    node_size: int
    """Ranks per host; ranks of a host are consecutive."""
    hops: dict[Pair, LogicalLink]
    ports: tuple[Port, ...] = ()
    senders: tuple[tuple[int, ...], ...] = ()
    """Ranks of the same host that may send a rank's chunks to other hosts, by rank."""
    own_first: bool = False
    """Whether a sender sends its own chunks to other hosts before those of others."""
    rotations: tuple[tuple[int, int], ...] = ()
    """Offset and group size of each symmetry."""
    connections: int = 0
    """Whether to prefer few connections (1), many (-1), or neither (0)."""
    spread: int = 0
    """Whether the most used link of a host should be used little (1), the least used one much (-1), or neither (0)."""
    alpha_occupies: bool = True
    """Whether a link is occupied during the latency too, as in TACCL, or only during the transmission."""
    detours: bool = False
    """Whether chunks may take the routes of least time, in addition to those of fewest hops."""
    unit_s: float = field(default=1e-6, compare=False)

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return self.ranks // self.node_size

    def node(self, rank: int) -> int:
        """Host of a rank."""
        return rank // self.node_size

    @cached_property
    def leaving(self) -> tuple[tuple[int, ...], ...]:
        """Targets of each rank."""
        return tuple(tuple(t for t in range(self.ranks) if (s, t) in self.hops) for s in range(self.ranks))

    @cached_property
    def ports_of(self) -> dict[Pair, tuple[int, ...]]:
        """Indices of the ports that a pair uses."""
        found: dict[Pair, list[int]] = {pair: [] for pair in self.hops}
        for number, port in enumerate(self.ports):
            for pair in port.pairs:
                found[pair].append(number)
        return {pair: tuple(numbers) for pair, numbers in found.items()}

    def occupies(self, pair: Pair, chunks: int = 1) -> int:
        """Time for which merged chunks occupy a link, in units of the topology."""
        hop = self.hops[pair]
        return hop.time(chunks) if self.alpha_occupies else chunks * hop.beta


def logical(profile: Profile, sketch: Sketch, unit_s: float = 1e-6) -> Logical:
    """Build the logical topology of a sketch, with the rounding of the published implementation.

    Identical switches multiply links and divide beta; senders that share NICs divide their bandwidth; costs are
    truncated to integers.

    Args:
        profile: Link costs of a chunk.
        sketch: Hosts, relays, switches, symmetries.
        unit_s: Length of the profile's time unit, in seconds.

    Raises:
        InputError: The machine of the profile lacks a switch or relay.
    """
    gpus = profile.gpus_per_node
    planes = _planes(profile, sketch)
    hops = {
        (node * gpus + s, node * gpus + t): hop
        for node in range(sketch.nnodes)
        for (s, t), hop in _local_hops(profile, planes).items()
    }
    hops |= _remote_hops(profile, sketch)
    plain = Logical(
        name=f"{profile.name}x{sketch.nnodes}",
        ranks=gpus * sketch.nnodes,
        node_size=gpus,
        hops=hops,
        ports=(*_switch_ports(sketch, gpus, hops), *_nic_ports(sketch, gpus, hops)),
        unit_s=unit_s,
    )
    return apply_sketch(plain, sketch)


def apply_sketch(plain: Logical, sketch: Sketch) -> Logical:
    """Apply a sketch's senders, ordering, symmetries and use of links to a topology."""
    inside, between, size = sketch.intranode_sketch, sketch.internode_sketch, plain.node_size
    local, few = sketch.senders(size), inside.switch_hyperedge_strategy
    return replace(
        plain,
        senders=tuple(tuple(node * size + s for s in own) for node in range(sketch.nnodes) for own in local),
        own_first=bool(between and between.enforce_ordering),
        rotations=sketch.symmetry_offsets,
        connections=1 if "uc-min" in few else -1 if "uc-max" in few else 0,
        spread={"minmax": 1, "maxmin": -1}.get(inside.strategy, 0),
    )


def _planes(profile: Profile, sketch: Sketch) -> dict[Pair, int]:
    """How many identical switches join a pair of GPUs."""
    count = Counter[Pair]()
    for switch in sketch.intranode_sketch.switches:
        if len(switch) < 2 or not set(switch) <= set(range(profile.gpus_per_node)):
            raise InputError(
                f"sketch: got the switch {switch}; expected two or more GPUs from 0 to {profile.gpus_per_node - 1}"
            )
        count.update(itertools.permutations(switch, 2))
    return count


def _local_hops(profile: Profile, planes: dict[Pair, int]) -> dict[Pair, LogicalLink]:
    found = {}
    matrices: tuple[Matrix, Matrix, Matrix] = profile.matrices()
    links, betas, invbws = matrices
    for t in range(profile.gpus_per_node):
        for s in range(profile.gpus_per_node):
            if s == t or links[t][s] <= 0:
                continue
            split, cost, beta = planes.get((s, t), 1), int(invbws[t][s]), int(betas[t][s])
            if planes:
                beta, cost = int(betas[t][s] / split), int(profile.alpha + betas[t][s] / split)
            _need_time(profile, cost)
            found[s, t] = LogicalLink(max(cost - beta, 0), min(beta, cost), int(links[t][s]) * split)
    return found


def _remote_hops(profile: Profile, sketch: Sketch) -> dict[Pair, LogicalLink]:
    gpus, connections = profile.gpus_per_node, sketch.connections(profile.gpus_per_node)
    if not connections:
        return {}
    if profile.nics_per_node < 1:
        raise InputError(f"profile {profile.name!r} has no NICs; {sketch.nnodes} nodes need nics_per_node")
    used = sum(map(len, connections.values()))
    beta = int(profile.remote_beta * used / profile.nics_per_node)
    cost = int(profile.remote_alpha + beta)
    _need_time(profile, cost)
    hop = LogicalLink(cost - beta, beta, remote=True)
    return {
        (i * gpus + s, j * gpus + t): hop
        for i in range(sketch.nnodes)
        for j in range(sketch.nnodes)
        if i != j
        for s, targets in connections.items()
        for t in targets
    }


def _need_time(profile: Profile, cost: int) -> None:
    if cost < 1:
        raise InputError(
            f"profile {profile.name!r}: a link costs less than one unit of time, which truncation makes 0; multiply "
            "all values of the profile by a common factor"
        )


def _switch_ports(sketch: Sketch, gpus: int, hops: dict[Pair, LogicalLink]) -> Iterator[Port]:
    switches = sketch.intranode_sketch.switches
    for switch in sorted({tuple(sorted(s)) for s in switches}):
        planes = sum(set(s) == set(switch) for s in switches)
        for node in range(sketch.nnodes):
            members = [node * gpus + g for g in switch]
            for g in members:
                others = [o for o in members if o != g]
                cost = hops[g, others[0]].cost
                yield Port(f"switch out of {g}", frozenset((g, o) for o in others), cost, planes)
                yield Port(f"switch in to {g}", frozenset((o, g) for o in others), cost, planes)


def _nic_ports(sketch: Sketch, gpus: int, hops: dict[Pair, LogicalLink]) -> Iterator[Port]:
    """Ports of NICs: each is shared by all other hosts where there are more than two; with two its link is the NIC."""
    if sketch.nnodes < 3:
        return
    remote = {pair for pair, hop in hops.items() if hop.remote}
    cost = next(iter(hops[pair].cost for pair in remote))
    for g in range(sketch.nnodes * gpus):
        out, into = (frozenset(p for p in remote if p[side] == g) for side in (0, 1))
        if out:
            yield Port(f"NIC out of {g}", out, cost)
        if into:
            yield Port(f"NIC in to {g}", into, cost)
