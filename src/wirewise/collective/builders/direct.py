"""Algorithms in which every block is sent directly from source to target."""

from __future__ import annotations

from wirewise.collective.builders.draft import Draft, RankGroup
from wirewise.collective.program import Transfer
from wirewise.errors import ProgramError

__all__ = [
    "all_gather_direct",
    "all_reduce_servers",
    "all_to_all_linear",
    "all_to_all_pairwise",
    "all_to_all_shift",
    "reduce_scatter_pairwise",
]


def all_gather_direct(group: RankGroup) -> Draft:
    """All-gather in which every rank sends its block to all others at once."""
    p = group.ranks
    return Draft(p, [Transfer(block, block, t, 0) for block in range(p) for t in range(p) if t != block])


def reduce_scatter_pairwise(group: RankGroup) -> Draft:
    """Reduce-scatter in which every rank sends to the rank k + 1 ahead in step k."""
    p = group.ranks
    moves = [(r, (r + far) % p, far - 1) for far in range(1, p) for r in range(p)]
    return Draft(p, [Transfer(t, s, t, step, True) for s, t, step in moves])


def all_reduce_servers(group: RankGroup) -> Draft:
    """All-reduce by parameter servers among the first ranks: push a part to each, pull the sums (Li et al. 2014).

    Raises:
        ProgramError: The servers are not ranks of the group.
    """
    p, servers = group.ranks, group.servers
    if not 1 <= servers <= p:
        raise ProgramError(f"got {servers} servers for {p} ranks; expected 1 to {p} servers")
    pairs = [(rank, server) for rank in range(p) for server in range(servers) if rank != server]
    pushed = [Transfer(server, rank, server, 0, True) for rank, server in pairs]
    return Draft(servers, pushed + [Transfer(server, server, rank, 1) for rank, server in pairs])


def all_to_all_linear(group: RankGroup) -> Draft:
    """All-to-all in a single step."""
    p = group.ranks
    return Draft(p * p, [Transfer(s * p + t, s, t, 0) for s in range(p) for t in range(p) if s != t])


def all_to_all_shift(group: RankGroup) -> Draft:
    """All-to-all in which each rank sends to the rank k + 1 ahead, and receives from k + 1 behind, in step k."""
    p = group.ranks
    moves = [(r, (r + far) % p, far - 1) for far in range(1, p) for r in range(p)]
    return Draft(p * p, [Transfer(s * p + t, s, t, step) for s, t, step in moves])


def all_to_all_pairwise(group: RankGroup) -> Draft:
    """All-to-all by pairwise exchange, XOR of rank numbers; by shifts if the ranks are no power of two."""
    p = group.ranks
    if p & (p - 1):
        return all_to_all_shift(group)
    moves = [(r, r ^ mask, mask - 1) for mask in range(1, p) for r in range(p)]
    return Draft(p * p, [Transfer(s * p + t, s, t, step) for s, t, step in moves])
