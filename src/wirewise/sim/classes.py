"""Routes of a regular program between link classes: all links of a class do the same at the same time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.dependences import Dependences
from wirewise.collective.network import Network, RouteTable, Use
from wirewise.collective.regular import RegularProgram
from wirewise.collective.symmetry import rotated_edges
from wirewise.errors import ProgramError

__all__ = ["classes_of_routes"]


def classes_of_routes(
    program: RegularProgram, network: Network, dependences: Dependences
) -> tuple[RouteTable, NDArray[np.int64]]:
    """Routes of the first period's messages, by one edge of each class, and the class of each edge.

    Args:
        program: Program whose period is a symmetry of the network, too.
        network: Network with its ranks.
        dependences: Messages of the program, one per class.

    Raises:
        ProgramError: Messages of one class share an edge.
        TopologyError: The network is not invariant under a rotation by the period.
    """
    each, turns = _classes(rotated_edges(network, program.period)), program.ranks // program.period
    size = np.bincount(each, minlength=len(each))
    pairs = np.unique(dependences.source * network.ranks + dependences.target)
    known: dict[int, dict[int, tuple[Use, ...]]] = {}
    routes, joined = [], []
    for pair in pairs.tolist():
        source, target = divmod(pair, network.ranks)
        if source not in known:
            known[source] = network.routes_from(source)
        route = known[source]
        if target not in route:
            continue
        own = each[[edge for edge, _ in route[target]]]
        shared = (size[own] < turns) | (np.bincount(own)[own] > 1)
        if shared.any():
            edge = network.edges[route[target][int(np.argmax(shared))].edge]
            ends = f"{network.vertices[edge.source]!r} to {network.vertices[edge.target]!r}"
            raise ProgramError(
                f"regular program {program.name!r} sends over the link from {ends} from more than one host at once, so "
                "that their turns differ; simulate what its expand() returns"
            )
        routes.append(
            [Use(edge, use.fraction) for edge, use in zip(own.tolist(), route[target], strict=True)]
        )
        joined.append(pair)
    return network.table_of(np.array(joined, np.int64), routes), each


def _classes(turned: list[int]) -> NDArray[np.int64]:
    """First edge of each edge's class: of those that turns bring it to."""
    each = np.full(len(turned), -1, np.int64)
    for first in range(len(turned)):
        edge = first
        while each[edge] < 0:
            each[edge] = first
            edge = turned[edge]
    return each
