"""All-reduce between servers in three phases: up the trees of each server, across once, and down again.

Blink (Wang et al., MLSys 2020) for several servers: the data is divided into partitions, each with a root in each
server. (1) Each server reduces a partition up its trees to its root. (2) The roots of one partition send their sums
to the server that owns it, and receive the total. (3) The trees broadcast it. Owners alternate, so that a server
sends 2 (n - 1) / n of the data to the others, however many ranks it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

from wirewise.collective import Network, Program, Transfer
from wirewise.errors import PlanError
from wirewise.planners.collective.trees import Tree, reroot

__all__ = ["three_phases"]

Packing = Callable[[Sequence[int]], list[Tree]]
"""Function that packs undirected trees among the ranks of a server; any of these ranks may become the root."""


def three_phases(network: Network, servers: Sequence[Sequence[int]], packing: Packing) -> Program:
    """Build the program of the three phases.

    Args:
        network: Network to run on.
        servers: Ranks of each server; the same number in all.
        packing: Function that finds the trees within a server.

    Raises:
        PlanError: Servers differ in size, ranks are missing or repeated, or no ranks have routes between servers.
    """
    _check(network, servers)
    local = [packing(ranks) for ranks in servers]
    cuts = sorted({end for trees in local for end in _ends(trees)})
    chunks: list[tuple[Fraction, list[Tree], int]] = []
    heads = _heads(network, servers)
    for roots in heads:
        for owner in range(len(servers)):
            for start, end in zip([Fraction(0), *cuts], cuts, strict=False):
                trees = [
                    next(t for t, to in zip(found, _ends(found), strict=True) if start < to)
                    for found in local
                ]
                turned = [reroot(tree, root) for tree, root in zip(trees, roots, strict=True)]
                chunks.append((end - start, turned, owner))
    height = max(tree.height for _, trees, _ in chunks for tree in trees)
    transfers = [
        t for number, (_, trees, owner) in enumerate(chunks) for t in _phases(number, trees, owner, height)
    ]
    return Program(
        name="blink-three-phases",
        collective="all_reduce",
        ranks=network.ranks,
        chunks=len(chunks),
        transfers=tuple(sorted(transfers, key=lambda t: (t.step, t.source, t.target, t.chunk))),
        shares=tuple(float(share) for share, _, _ in chunks),
    )


def _phases(chunk: int, trees: Sequence[Tree], owner: int, height: int) -> list[Transfer]:
    roots, home, found = [tree.root for tree in trees], trees[owner].root, []
    for tree in trees:
        for (source, target), step in zip(tree.edges, tree.steps, strict=True):
            found.append(Transfer(chunk, target, source, height - 1 - step, True))
            found.append(Transfer(chunk, source, target, height + 2 + step))
    for root in roots:
        if root != home:
            found += [Transfer(chunk, root, home, height, True), Transfer(chunk, home, root, height + 1)]
    return found


def _heads(network: Network, servers: Sequence[Sequence[int]]) -> list[list[int]]:
    """A root in each server for each partition: ranks at the same place that have routes to each other."""
    places = [
        list(roots)
        for roots in zip(*servers, strict=True)
        if all(network.route(a, b) is not None for a in roots for b in roots if a != b)
    ]
    if not places:
        raise PlanError(
            "no rank of each server at the same place has a route to the others; expected network ports, or order the "
            "ranks of the servers so that those with ports stand at the same place"
        )
    return places


def _ends(trees: Sequence[Tree]) -> list[Fraction]:
    """Where the share of each tree ends, between 0 and 1."""
    total = sum((tree.weight for tree in trees), Fraction(0))
    return [end / total for end in accumulate(tree.weight for tree in trees)]


def _check(network: Network, servers: Sequence[Sequence[int]]) -> None:
    listed = sorted(rank for ranks in servers for rank in ranks)
    if listed != list(range(network.ranks)) or len(set(map(len, servers))) != 1 or len(servers) < 2:
        raise PlanError(
            f"got the servers {[list(ranks) for ranks in servers]}; expected at least two of equal size, with each of "
            f"the ranks 0 to {network.ranks - 1} once"
        )
