"""Distributed neighbour sampling, with in-edges of own nodes only on each machine; owners are queried hop by hop.

Owners sample with the keys of `NeighborSampler`, so that batches equal those of a replicated graph. A hop takes four
exchanges: number of queried nodes, their ids, number of sampled neighbours of each, and their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.graph.mapped import map_of
from wirewise.graph.sampling import Batch, Layer
from wirewise.graph.sampling.kernels import draw, edge_room, number
from wirewise.graph.sampling.sampler import Table, check_edges, check_hops, check_seeds, empty_batch
from wirewise.graph.structure import InEdges
from wirewise.rng import stream_key
from wirewise.runtime.mini_batch.all_to_all import AllToAll
from wirewise.runtime.transport import Transport

__all__ = ["PartitionedSampler", "own_edges"]


def own_edges(edges: InEdges, first: int, end: int) -> InEdges:
    """In-edges of the nodes `first` to `end` of a graph, with global source ids.

    They are copied, so that the graph can be freed, unless they are memory-mapped.
    """
    begin, stop = edges.indptr[first], edges.indptr[end]
    indices, weight = edges.indices[begin:stop], None if edges.weight is None else edges.weight[begin:stop]
    indptr = edges.indptr[first : end + 1] - begin
    if map_of(indices) is None:
        indices, weight = indices.copy(), None if weight is None else weight.copy()
    return InEdges(indptr, indices, weight, edges.edge_data)


class _Asked(NamedTuple):
    """Requests of machines to this one in a hop."""

    rows: NDArray[np.int32]
    counts: NDArray[np.int64]
    draws: NDArray[np.int64]
    """Number of the batch that each machine draws for."""


class PartitionedSampler(AllToAll):
    """Distributed sampler of the batches of `NeighborSampler`; all machines sample equally many, in the same order.

    It is for one thread, with a separate group. A machine without seeds samples an empty batch, because others may
    query its nodes.

    Args:
        own: In-edges of this machine's nodes, with global source ids, from `own_edges`.
        offsets: First id of each machine, then N; [K + 1].
        transport: Transport between the machines.
        fanouts: Neighbours per node in each hop, the seeds' own first; -1 for all. [L]
        semantics: One of `graph.sampling.SEMANTICS`.
        seed: Seed of the sampling.

    Raises:
        InputError: The edges are not this machine's, there are no hops, a fanout is below -1, the semantics are
            unknown, or edges carry data.
    """

    collective = True
    """Whether machines sample together."""

    def __init__(
        self,
        own: InEdges,
        offsets: NDArray[np.int64],
        transport: Transport,
        fanouts: Sequence[int],
        *,
        semantics: str = "cumulative",
        seed: int = 0,
    ) -> None:
        super().__init__(transport)
        check_hops(fanouts, semantics)
        check_edges(own)
        self.first, end = int(offsets[transport.rank]), int(offsets[transport.rank + 1])
        if len(own.indptr) - 1 != end - self.first:
            raise InputError(
                f"machine {transport.rank} was given in-edges of {len(own.indptr) - 1} nodes; expected those of its "
                f"{end - self.first} nodes"
            )
        self.own, self.offsets, self.semantics, self.seed = own, offsets, semantics, seed
        self.fanouts = tuple(int(fanout) for fanout in fanouts)
        self._table = Table(self.num_nodes)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph."""
        return int(self.offsets[-1])

    def empty_batch(self) -> Batch:
        """Batch without seeds; other machines are not queried."""
        return empty_batch(len(self.fanouts))

    def sample(self, seeds: NDArray[Any], *, epoch: int = 0, batch: int = 0) -> Batch:
        """Sample the neighbourhood of some nodes, possibly none; arguments as in `NeighborSampler.sample`.

        Raises:
            InputError: A seed is not a node, or occurs twice.
            PeerError: A machine is gone.
        """
        nodes = check_seeds(seeds, self.num_nodes)
        tag, layers = self._table.begin(nodes), []
        begin, degrees, sources = 0, np.empty(0, np.int64), np.empty(0, np.int32)
        for hop, fanout in enumerate(self.fanouts):
            if self.semantics == "cumulative":
                begin, degrees, sources = 0, degrees[:0], sources[:0]
            drawn, neighbours = self._ask(nodes[begin:], hop, fanout, epoch, batch)
            begin, (nodes, local) = len(nodes), self._numbered(nodes, neighbours, tag)
            degrees, sources = np.concatenate([degrees, drawn]), np.concatenate([sources, local])
            layers.append(Layer(np.concatenate([[0], np.cumsum(degrees)]), sources, len(nodes)))
        return Batch(nodes, tuple(reversed(layers)), len(seeds))

    def _numbered(
        self, nodes: NDArray[np.int64], neighbours: NDArray[np.int32], tag: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The nodes with those that are new, and local numbers of the neighbours."""
        room = np.empty(min(len(nodes) + len(neighbours), self.num_nodes), np.int64)
        room[: len(nodes)] = nodes
        local = np.empty(len(neighbours), np.int32)
        count = number(neighbours, room, len(nodes), self._table.entries, tag, local)
        return room[:count], local

    def _ask(
        self, targets: NDArray[np.int64], hop: int, fanout: int, epoch: int, batch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """How many neighbours each target draws, and which, in the order of the targets."""
        what, machines = f"the exchange of neighbours in hop {hop}", self.transport.world_size
        owner = np.searchsorted(self.offsets, targets, side="right") - 1
        order = np.argsort(owner, kind="stable")
        rows = (targets[order] - self.offsets[owner[order]]).astype(np.int32)
        counts = np.bincount(owner, minlength=machines)
        asked = self._tell(what, rows, counts, batch)
        drawn, found, sizes = self._drawn(asked, hop, fanout, epoch)
        degrees = torch.empty(len(targets), dtype=torch.int32)
        self.exchange(what, torch.from_numpy(drawn), degrees, asked.counts, counts)
        ends = np.concatenate([[0], np.cumsum(degrees.numpy(), dtype=np.int64)])
        receives = np.diff(ends[np.concatenate([[0], np.cumsum(counts)])])
        came = torch.empty(int(ends[-1]), dtype=torch.int32)
        self.exchange(what, torch.from_numpy(found), came, sizes, receives)
        return _in_order(order, degrees.numpy().astype(np.int64), ends, came.numpy())

    def _tell(self, label: str, rows: NDArray[np.int32], counts: NDArray[np.int64], batch: int) -> _Asked:
        """Exchange the numbers and the rows of targets."""
        heads = np.stack([counts, np.full(len(counts), batch)], axis=1)
        came = torch.empty(2 * len(counts), dtype=torch.int64)
        self.exchange(label, torch.from_numpy(heads.ravel()), came)
        asked, draws = came.view(-1, 2).numpy().T
        into = torch.empty(int(asked.sum()), dtype=torch.int32)
        self.exchange(label, torch.from_numpy(rows), into, counts, asked)
        return _Asked(into.numpy(), asked, draws)

    def _drawn(
        self, asked: _Asked, hop: int, fanout: int, epoch: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Neighbours that each asked node drew, how many, and how many for each machine."""
        parts = np.split(asked.rows, np.cumsum(asked.counts)[:-1])
        degrees, found = np.empty(len(asked.rows), np.int32), []
        start = 0
        for rows, number_of_batch in zip(parts, asked.draws.tolist(), strict=True):
            sources = np.empty(edge_room(self.own.indptr, rows.astype(np.int64), fanout), np.int32)
            key = stream_key(self.seed, epoch, number_of_batch, hop)
            here = degrees[start : start + len(rows)]
            draw(self.own.indptr, self.own.indices, rows, self.first, fanout, key, here, sources)
            found.append(sources)
            start += len(rows)
        return degrees, np.concatenate(found), np.array([len(one) for one in found])


def _in_order(
    order: NDArray[np.int64],
    degrees: NDArray[np.int64],
    ends: NDArray[np.int64],
    received: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Degrees and neighbours by target; they came by owner, target `order[i]` as number i."""
    by_target, starts = np.empty_like(degrees), np.empty_like(degrees)
    by_target[order], starts[order] = degrees, ends[:-1]
    before = np.cumsum(by_target) - by_target
    places = np.repeat(starts - before, by_target) + np.arange(len(received))
    return by_target, received[places]
