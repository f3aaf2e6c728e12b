"""Programs for the known algorithms of each collective."""

from __future__ import annotations

from collections.abc import Sequence

from wirewise.collective.builders import bruck, direct, hierarchical, hypercube, rings, trees
from wirewise.collective.builders.draft import Builder, Draft, RankGroup
from wirewise.collective.builders.draft import waves as in_waves
from wirewise.collective.program import Program, Transfer
from wirewise.collective.relations import COLLECTIVES, ROOTED, Collective
from wirewise.errors import ProgramError

__all__ = ["BUILDERS", "PLAIN", "Builder", "Draft", "RankGroup", "algorithms", "build"]

BUILDERS: dict[tuple[Collective, str], Builder] = {
    ("broadcast", "flat"): trees.broadcast_flat,
    ("broadcast", "binomial"): trees.broadcast_binomial,
    ("broadcast", "chain"): trees.broadcast_chain,
    ("broadcast", "double_tree"): trees.broadcast_double_tree,
    ("broadcast", "scatter_all_gather"): rings.broadcast_scatter_ring,
    ("reduce", "flat"): trees.reverse_to_root(trees.broadcast_flat, reduces=True),
    ("reduce", "binomial"): trees.reverse_to_root(trees.broadcast_binomial, reduces=True),
    ("reduce", "chain"): trees.reverse_to_root(trees.broadcast_chain, reduces=True),
    ("reduce", "double_tree"): trees.reverse_to_root(trees.broadcast_double_tree, reduces=True),
    ("reduce", "reduce_scatter_gather"): rings.reduce_ring_gather,
    ("reduce", "rabenseifner"): hypercube.reduce_halving_gather,
    ("scatter", "flat"): trees.scatter_flat,
    ("scatter", "binomial"): trees.binomial_scatter,
    ("gather", "flat"): trees.reverse_to_root(trees.scatter_flat, reduces=False),
    ("gather", "binomial"): trees.reverse_to_root(trees.binomial_scatter, reduces=False),
    ("all_gather", "ring"): rings.all_gather_ring,
    ("all_gather", "neighbour_exchange"): rings.all_gather_neighbours,
    ("all_gather", "recursive_doubling"): hypercube.all_gather_doubling,
    ("all_gather", "bruck"): bruck.all_gather_bruck,
    ("all_gather", "pat"): bruck.all_gather_pat,
    ("all_gather", "gather_broadcast"): trees.gather_broadcast,
    ("reduce_scatter", "ring"): rings.reduce_scatter_ring,
    ("reduce_scatter", "pairwise"): direct.reduce_scatter_pairwise,
    ("reduce_scatter", "recursive_halving"): hypercube.reduce_scatter_halving,
    ("reduce_scatter", "bruck"): bruck.reduce_scatter_bruck,
    ("reduce_scatter", "pat"): bruck.reduce_scatter_pat,
    ("reduce_scatter", "reduce_then_scatter"): trees.reduce_then_scatter,
    ("all_reduce", "ring"): rings.all_reduce_ring,
    ("all_reduce", "recursive_doubling"): hypercube.all_reduce_doubling,
    ("all_reduce", "rabenseifner"): hypercube.all_reduce_halving_doubling,
    ("all_reduce", "reduce_broadcast"): trees.reduce_broadcast(trees.broadcast_binomial),
    ("all_reduce", "double_tree"): trees.reduce_broadcast(trees.broadcast_double_tree),
    ("all_to_all", "linear"): direct.all_to_all_linear,
    ("all_to_all", "pairwise"): direct.all_to_all_pairwise,
    ("all_to_all", "shift"): direct.all_to_all_shift,
    ("all_to_all", "ring"): rings.all_to_all_ring,
    ("all_to_all", "bruck"): bruck.all_to_all_bruck,
    ("all_to_all", "hypercube"): hypercube.all_to_all_hypercube,
    ("broadcast", "hierarchical"): hierarchical.broadcast,
    ("reduce", "hierarchical"): trees.reverse_to_root(hierarchical.broadcast, reduces=True),
    ("scatter", "hierarchical"): hierarchical.scatter,
    ("gather", "hierarchical"): trees.reverse_to_root(hierarchical.scatter, reduces=False),
    ("all_gather", "hierarchical"): hierarchical.all_gather,
    ("reduce_scatter", "hierarchical"): hierarchical.reduce_scatter,
    ("all_reduce", "hierarchical"): hierarchical.all_reduce,
    ("all_to_all", "hierarchical"): hierarchical.all_to_all,
    ("all_gather", "hierarchical_bruck"): hierarchical.all_gather_bruck,
    ("reduce_scatter", "hierarchical_bruck"): trees.reverse_to_root(
        hierarchical.all_gather_bruck, reduces=True
    ),
    ("all_reduce", "hierarchical_bruck"): trees.reduce_broadcast(hierarchical.all_gather_bruck),
    ("all_gather", "host_ring"): hierarchical.all_gather_host_ring,
    ("reduce_scatter", "host_ring"): trees.reverse_to_root(hierarchical.all_gather_host_ring, reduces=True),
    ("all_reduce", "host_ring"): trees.reduce_broadcast(hierarchical.all_gather_host_ring),
}
"""Builders by collective and name of the algorithm."""

PLAIN: dict[tuple[Collective, str], Builder] = {
    ("broadcast", "binary"): trees.broadcast_binary,
    ("all_reduce", "binary"): trees.reduce_broadcast(trees.broadcast_binary),
    ("all_reduce", "leaders"): hierarchical.all_reduce_leaders,
    ("all_reduce", "servers"): direct.all_reduce_servers,
    ("all_gather", "direct"): direct.all_gather_direct,
    ("all_reduce", "direct"): trees.reduce_broadcast(direct.all_gather_direct),
}
"""Algorithms that training libraries run as well (`collective.named`), and all ranks of a small mesh at once;
planners do not try
them."""


def algorithms(collective: Collective) -> list[str]:
    """Names of a collective's algorithms that planners try."""
    return [name for of, name in BUILDERS if of == collective]


def build(
    collective: Collective,
    algorithm: str,
    ranks: int,
    *,
    root: int = 0,
    segments: int = 1,
    hosts: Sequence[Sequence[int]] | None = None,
    servers: int = 1,
    chunks: int | None = None,
    waves: int = 1,
) -> Program:
    """Build the program of a known algorithm.

    Args:
        collective: Name of the collective.
        algorithm: One of `BUILDERS` or `PLAIN` for the collective.
        ranks: Number of ranks.
        root: Rank of a rooted collective; ignored by others.
        segments: Pipelined parts of each chunk.
        hosts: Ranks of each host, for the hierarchical algorithms and for "leaders".
        servers: Number of first ranks that each reduce a part, for "servers".
        chunks: A multiple of the chunks that the algorithm needs. Defaults to that number.
        waves: Parts of each chunk, each one step behind the previous (`draft.waves`).

    Raises:
        ProgramError: The algorithm does not exist, or does not work for these ranks, hosts or chunks.
    """
    builder = BUILDERS.get((collective, algorithm)) or PLAIN.get((collective, algorithm))
    if builder is None:
        known = (
            ", ".join(name for of, name in (*BUILDERS, *PLAIN) if of == collective)
            or f"a collective of {', '.join(COLLECTIVES)}"
        )
        raise ProgramError(f"got the algorithm {algorithm!r} of {collective}; expected {known}")
    top = root if collective in ROOTED else 0
    if ranks < 1 or not 0 <= top < ranks:
        raise ProgramError(
            f"got {ranks} ranks with root {root}; expected at least 1 rank and a root among them"
        )
    group = RankGroup(ranks, top, tuple(map(tuple, hosts or ())), servers)
    draft = in_waves(_split(builder(group), chunks), waves)
    return Program(
        name=algorithm,
        collective=collective,
        ranks=ranks,
        chunks=draft.chunks,
        transfers=tuple(draft.transfers),
        root=top,
        segments=segments,
    )


def _split(draft: Draft, chunks: int | None) -> Draft:
    """Draft with each chunk cut into several."""
    if chunks is None or chunks == draft.chunks:
        return draft
    parts, rest = divmod(chunks, draft.chunks)
    if parts < 1 or rest:
        raise ProgramError(f"got {chunks} chunks; expected a multiple of the {draft.chunks} of the algorithm")
    found = [
        Transfer(t.chunk * parts + part, t.source, t.target, t.step, t.reduces)
        for t in draft.transfers
        for part in range(parts)
    ]
    return Draft(chunks, found)
