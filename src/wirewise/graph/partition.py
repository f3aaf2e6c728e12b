"""Assign every node of a graph to one part.

Methods: "metis" (fewest cut edges) and "metis-volume" (fewest halo rows), both by METIS; "metis-balanced", the
default, which lowers the halo rows of METIS' busiest part (`graph.refine`); "stream", in a tenth of METIS' memory
(`graph.streaming`); "auto", which is "metis-balanced" where the free memory holds it and "stream" otherwise;
"random"; or the user's own array. METIS needs undirected graphs, so directed ones are symmetrised.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.extras import import_extra
from wirewise.graph import halo
from wirewise.graph.data import GraphData
from wirewise.graph.structure import in_edges, symmetrize
from wirewise.memory import available_bytes

__all__ = [
    "AUTO",
    "METIS_BYTES_PER_EDGE",
    "PARTITIONERS",
    "MethodChoice",
    "PartitionQuality",
    "check_assignment",
    "choose_method",
    "measure",
    "partition",
]

AUTO = "auto"
"""The method that depends on the free memory: `choose_method`."""
METIS_BYTES_PER_EDGE = 156
"""Bytes of memory that METIS needs for each stored edge, measured on graphs of 3 and 16 million edges."""
STREAM_BYTES_PER_EDGE, STREAM_BYTES_PER_NODE = 16, 64
"""Most that "stream" takes beside the graph for each stored edge and each node."""
_BASE_BYTES = 64 << 20
"""Memory that any graph may take: below it nothing is refused."""

_MAX_IMBALANCE = 0.05
_SMALL = 100
"""Nodes; METIS may leave a part of fewer without any."""
_OBJECTIVE_CUT, _OBJECTIVE_VOLUME = 0, 1


@dataclass(frozen=True, kw_only=True)
class PartitionQuality:
    """Quality of a partition into P parts; a row is sent once for each part that needs it."""

    nodes: NDArray[np.int64]
    """Number of nodes of each part, [P]."""
    sent: NDArray[np.int64]
    """Number of halo rows that each part sends in one exchange, [P]."""
    received: NDArray[np.int64]
    """Number of halo rows that each part receives in one exchange, [P]."""
    cut_edges: int
    """Edges between parts."""
    central: NDArray[np.int64]
    """Number of nodes of each part without an in-neighbour elsewhere, [P]."""

    @property
    def halo_rows(self) -> int:
        """Total halo rows of all parts."""
        return int(self.sent.sum())

    @property
    def busiest_rows(self) -> int:
        """Most rows sent or received by any part; links are per host, so this sets the exchange time."""
        return int(max(self.sent.max(), self.received.max()))

    @property
    def imbalance(self) -> float:
        """Nodes of the largest part over the mean, minus one."""
        return float(self.nodes.max() / self.nodes.mean() - 1)


class MethodChoice(NamedTuple):
    """Partitioning method, and the reason for it."""

    method: str
    needed_bytes: int
    """Memory that it needs in addition to the graph."""
    free_bytes: int
    note: str


def choose_method(data: GraphData, method: str = AUTO) -> MethodChoice:
    """Choose a partitioning method: the requested one, if it fits into the free memory.

    Args:
        data: Graph that is valid.
        method: A name in `PARTITIONERS`, or "auto" for "metis-balanced" if it fits, else "stream".

    Raises:
        GraphError: The method does not fit into memory; for "auto", neither of the two does.
    """
    edges = len(data.simple_in_edges.indices) * (2 if data.directed else 1)
    needs = dict.fromkeys(("metis-balanced", "metis", "metis-volume"), METIS_BYTES_PER_EDGE * edges)
    needs["stream"] = STREAM_BYTES_PER_EDGE * edges + STREAM_BYTES_PER_NODE * data.num_nodes
    free = available_bytes()
    metis = f"METIS needs about {_gigabytes(needs['metis'])} ({METIS_BYTES_PER_EDGE} bytes a stored edge)"
    stream = f"stream at most {_gigabytes(needs['stream'])}"
    chosen = method
    if method == AUTO:
        chosen = "metis-balanced" if needs["metis"] <= max(free, _BASE_BYTES) else "stream"
    if chosen in needs and needs[chosen] > max(free, _BASE_BYTES):
        raise GraphError(
            f"{metis}, {stream}, and {_gigabytes(free)} of memory are free; expected room for "
            + (
                "one of them, free memory"
                if chosen == "stream"
                else "it: choose stream or auto, or free memory"
            )
        )
    return MethodChoice(
        chosen, needs.get(chosen, 0), free, f"{metis}, {stream}; {_gigabytes(free)} are free: {chosen}"
    )


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.3g} GB"


def measure(data: GraphData, assignment: NDArray[Any]) -> PartitionQuality:
    """Compute the rows that each part sends and receives, the edge cut and the balance."""
    assignment = np.asarray(assignment)
    parts = int(assignment.max()) + 1
    needed, marginal, cut_edges = halo.needs(data.simple_in_edges, assignment, parts)
    volume = halo.halo_volume(needed, assignment)
    return PartitionQuality(
        nodes=np.bincount(assignment, minlength=parts),
        sent=volume.sum(axis=1),
        received=volume.sum(axis=0),
        cut_edges=cut_edges,
        central=np.bincount(assignment[~marginal], minlength=parts),
    )


def partition(
    data: GraphData,
    num_parts: int,
    method: str | NDArray[Any] = "metis-balanced",
    *,
    seed: int = 0,
    node_weight: NDArray[Any] | None = None,
) -> NDArray[np.int32]:
    """Partition a graph; returns the owner of each node, int32 [nodes], with no part empty.

    Args:
        data: Graph that is valid.
        num_parts: Number of parts, at least one and at most the number of nodes.
        method: A name in `PARTITIONERS`, "auto" (see `choose_method`), or the user's own assignment, int [nodes].
        seed: Seed of the partitioner.
        node_weight: Positive weight of each node, int [nodes], balanced over parts. Defaults to one.

    Raises:
        GraphError: There are more parts than nodes, the method is unknown, the seed is negative, the assignment does
            not fit, or the method does not fit into memory.
    """
    nodes = data.num_nodes
    if not 1 <= num_parts <= nodes:
        raise GraphError(
            f"{num_parts} parts were asked for and the graph has {nodes} nodes; expected 1 to {nodes} parts"
        )
    if not 0 <= seed < 2**63:
        raise GraphError(f"seed is {seed}; expected 0 to {2**63 - 1}")
    if not isinstance(method, str):
        return check_assignment(method, nodes, num_parts)
    if method not in PARTITIONERS and method != AUTO:
        raise GraphError(
            f"partition method {method!r} is unknown; expected {', '.join(PARTITIONERS)}, {AUTO} or an array"
        )
    weight = np.ones(nodes, np.int64) if node_weight is None else _check_weight(node_weight, nodes)
    if num_parts == 1:
        return np.zeros(nodes, dtype=np.int32)
    method = choose_method(data, method).method
    return _fill_empty(PARTITIONERS[method](data, num_parts, seed, weight), num_parts)


def check_assignment(
    assignment: NDArray[Any], num_nodes: int, num_parts: int | None = None
) -> NDArray[np.int32]:
    """Convert a user's own assignment to int32; GraphError if it does not fit or leaves a part empty."""
    owner = np.asarray(assignment)
    if owner.shape != (num_nodes,) or owner.dtype.kind not in "iu":
        raise GraphError(
            f"the assignment is {owner.dtype} {list(owner.shape)}; expected integers [{num_nodes}]"
        )
    parts = num_parts if num_parts is not None else int(owner.max()) + 1
    wrong = np.flatnonzero((owner < 0) | (owner >= parts))
    if len(wrong):
        raise GraphError(f"node {wrong[0]} is assigned to part {owner[wrong[0]]}; expected 0 to {parts - 1}")
    empty = np.flatnonzero(np.bincount(owner, minlength=parts) == 0)
    if len(empty):
        raise GraphError(
            f"part {', '.join(map(str, empty))} of {parts} owns no node; give it one or use fewer parts"
        )
    return owner.astype(np.int32)


def _check_weight(weight: NDArray[Any], nodes: int) -> NDArray[np.int64]:
    weight = np.asarray(weight)
    if weight.shape != (nodes,) or weight.dtype.kind not in "iu" or bool((weight < 1).any()):
        raise GraphError(
            f"node_weight is {weight.dtype} {list(weight.shape)}; expected {nodes} integers of at least one"
        )
    return weight.astype(np.int64)


def _random(data: GraphData, num_parts: int, seed: int, weight: NDArray[np.int64]) -> NDArray[np.int32]:
    """A random order of the nodes, cut where the weight is shared equally."""
    order = np.random.Generator(np.random.Philox(seed)).permutation(data.num_nodes)
    before = np.cumsum(weight[order]) - weight[order]
    owner = np.empty(data.num_nodes, dtype=np.int32)
    owner[order] = before * num_parts // int(weight.sum())
    return owner


def _stream(data: GraphData, num_parts: int, seed: int, weight: NDArray[np.int64]) -> NDArray[np.int32]:
    # Imported here: loading its kernels takes longer than the other methods run.
    from wirewise.graph.streaming import stream

    edges = data.simple_in_edges
    return stream(edges, num_parts, weight, seed=seed, max_imbalance=_MAX_IMBALANCE, directed=data.directed)


def _metis_balanced(
    data: GraphData, num_parts: int, seed: int, weight: NDArray[np.int64]
) -> NDArray[np.int32]:
    # Imported here: compiling or loading its kernels takes longer than the other methods run.
    from wirewise.graph.refine import lower_busiest

    start = _fill_empty(_metis(data, num_parts, seed, weight), num_parts)
    return lower_busiest(
        data.simple_in_edges, start, num_parts, weight, seed=seed, max_imbalance=_MAX_IMBALANCE
    )


def _metis(
    data: GraphData, num_parts: int, seed: int, weight: NDArray[np.int64], objective: int = _OBJECTIVE_CUT
) -> NDArray[np.int32]:
    pymetis = import_extra("pymetis", "gnn", "a partition by METIS")
    edges = data.simple_in_edges
    if data.directed:
        pairs, _ = symmetrize(data.edge_index, data.num_nodes)
        edges = in_edges(pairs, data.num_nodes)
    try:
        # Recursive bisection, METIS' other scheme, knows no volume objective.
        _, owner = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(edges.indptr, edges.indices.astype(np.int64)),
            vweights=weight,
            recursive=False,
            options=pymetis.Options(seed=seed, objtype=objective),
        )
    except RuntimeError as error:
        raise _stopped() from error
    finally:
        # METIS catches SIGTERM while it runs, and leaves it such that system calls go on after it: a wait of
        # this process would then never see the signal.
        signal.siginterrupt(signal.SIGTERM, True)
    if min(num_parts, len(weight) // _SMALL) > 1 and not any(owner):
        raise _stopped()  # METIS takes the signal for a failure of its first cut, and reports none.
    return np.asarray(owner, dtype=np.int32)


def _stopped() -> GraphError:
    return GraphError("METIS ended without a partition; expected one, unless SIGTERM came or memory ran out")


def _fill_empty(owner: NDArray[np.int32], num_parts: int) -> NDArray[np.int32]:
    """Give each empty part a node of the largest one; METIS leaves parts empty on tiny graphs."""
    owner, counts = owner.copy(), np.bincount(owner, minlength=num_parts)
    for part in np.flatnonzero(counts == 0):
        largest = counts.argmax()
        owner[np.flatnonzero(owner == largest)[-1]] = part
        counts[largest] -= 1
        counts[part] += 1
    return owner


PARTITIONERS: dict[str, Callable[[GraphData, int, int, NDArray[np.int64]], NDArray[np.int32]]] = {
    "metis-balanced": _metis_balanced,
    "metis": _metis,
    "metis-volume": partial(_metis, objective=_OBJECTIVE_VOLUME),
    "stream": _stream,
    "random": _random,
}
