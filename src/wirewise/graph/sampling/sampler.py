"""Batches of sampled neighbourhoods that depend only on seeds, epoch and batch, not on the sampling process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.graph.sampling.kernels import edge_room, enter, expand
from wirewise.graph.structure import InEdges
from wirewise.rng import stream_key

__all__ = [
    "SEMANTICS",
    "Batch",
    "Layer",
    "NeighborSampler",
    "Table",
    "check_edges",
    "check_hops",
    "check_seeds",
    "check_used_hops",
    "empty_batch",
    "seed_batches",
]

SEMANTICS = ("cumulative", "frontier")
"""Nodes that a hop expands: every node seen so far, each time anew (DGL, SALIENT, PyG's NeighborSampler), or only
nodes that the hop before saw first (PyG's NeighborLoader)."""
_TAGS = 1 << 31


class Layer(NamedTuple):
    """Bipartite layer: the first `num_targets` of its `num_sources` nodes are targets, which aggregate from sources."""

    indptr: NDArray[np.int64]
    """Start of each target's edges, [targets + 1]: those of target t are `indptr[t]` to `indptr[t + 1]`."""
    sources: NDArray[np.int32]
    """Local number of each edge's source, [edges]."""
    num_sources: int
    e_id: NDArray[np.int64] | None = None
    """Position of each edge, [edges], in the `indices` of the graph's edges. None unless the sampler has `edge_ids`."""

    @property
    def num_targets(self) -> int:
        """Number of target nodes."""
        return len(self.indptr) - 1

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of sources and targets, as PyG convolutions expect."""
        return self.num_sources, self.num_targets

    def edge_index(self) -> NDArray[np.int64]:
        """Source and target of each edge in local numbers, int64 [2, edges], with ascending targets."""
        found = np.empty((2, len(self.sources)), np.int64)
        found[0] = self.sources
        found[1] = np.repeat(np.arange(self.num_targets), np.diff(self.indptr))
        return found


class Batch(NamedTuple):
    """Seeds with their sampled neighbourhood of L hops."""

    n_id: NDArray[np.int64]
    """Global ids by local number, [nodes]; the seeds come first, in their order."""
    layers: tuple[Layer, ...]
    """Layers in the order in which a model uses them, [L]: from all nodes inwards to the seeds."""
    num_seeds: int

    @property
    def num_edges(self) -> int:
        """Edges of all layers."""
        return sum(len(layer.sources) for layer in self.layers)


class Table:
    """Local numbers by global id for one batch at a time; tags make clearing unnecessary."""

    def __init__(self, nodes: int) -> None:
        self.entries = np.zeros(nodes, np.int64)
        self.tag = 0

    def begin(self, seeds: NDArray[np.int64]) -> int:
        """Start a new batch and number its seeds; returns its tag.

        Raises:
            InputError: A seed occurs twice.
        """
        self.tag += 1
        if self.tag == _TAGS:
            self.entries[:] = 0
            self.tag = 1
        twice = enter(seeds, self.entries, self.tag)
        if twice >= 0:
            raise InputError(f"seed {seeds[twice]} stands twice; expected every seed of a batch once")
        return self.tag


def check_hops(fanouts: Sequence[int], semantics: str) -> None:
    """Raise InputError unless fanouts and semantics are valid for a sampler."""
    if not len(fanouts) or min(fanouts) < -1 or semantics not in SEMANTICS:
        raise InputError(
            f"got fanouts {list(fanouts)} and semantics {semantics!r}; expected one fanout or more, each of at "
            f"least 0, or -1 for all neighbours, and one of {', '.join(SEMANTICS)}"
        )


def check_used_hops(fanouts: Sequence[int], option: str) -> None:
    """Raise InputError if a hop samples no neighbours, which is valid for a sampler but useless for training."""
    if 0 in fanouts:
        raise InputError(
            f"{option} is {','.join(map(str, fanouts))}; expected at least 1 neighbour in each hop, or -1 for all: a "
            "hop of 0 would train a network without neighbours, leave it out"
        )


def check_edges(edges: InEdges) -> None:
    """Raise InputError if edges carry data, which batches do not support."""
    names = [*(["edge_weight"] if edges.weight is not None else []), *edges.edge_data]
    if names:
        raise InputError(
            f"edges carry {', '.join(dict.fromkeys(names))}, which sampled batches do not hold; expected edges without "
            "data: train on the whole graph, or sample its structure alone by in_edges.without_data()"
        )


def check_seeds(seeds: NDArray[Any], num_nodes: int) -> NDArray[np.int64]:
    """Convert the seeds to int64 [n]; InputError if one is not a node."""
    nodes = np.asarray(seeds)
    if nodes.ndim != 1 or not np.issubdtype(nodes.dtype, np.integer):
        raise InputError(
            f"seeds are {nodes.dtype} {list(nodes.shape)}; expected one or more node ids, integers of shape [n]"
        )
    wrong = np.flatnonzero((nodes < 0) | (nodes >= num_nodes))
    if len(wrong):
        raise InputError(f"seed {nodes[wrong[0]]} is no node; expected 0 to {num_nodes - 1}")
    return nodes.astype(np.int64)


def empty_batch(hops: int) -> Batch:
    """Batch without seeds."""
    empty = Layer(np.zeros(1, np.int64), np.empty(0, np.int32), 0)
    return Batch(np.empty(0, np.int64), (empty,) * hops, 0)


class NeighborSampler:
    """Sampler of neighbourhoods of seeds: in each hop at most `fanout` in-neighbours per node, without replacement.

    The sample of node v in hop h depends on (seed, epoch, batch, h, v) only: batches are the same for any number of
    threads and processes and any cache. A sampler is thread-safe.

    A model uses the layers in their order:

        for convolution, layer in zip(convolutions, batch.layers):
            x = convolution((x, x[: layer.num_targets]), edge_index_of(layer))

    Args:
        edges: In-neighbours of each node, `GraphData.in_edges`.
        fanouts: Neighbours per node in each hop, the seeds' own first; -1 for all. [L]
        semantics: One of `SEMANTICS`.
        seed: Seed of the sampling.
        edge_ids: Whether layers have `e_id`, by which rows of edge data are found.

    Raises:
        InputError: There are no hops, a fanout is below -1, the semantics are unknown, or edges carry data.
    """

    collective = False
    """Whether machines sample together."""

    def __init__(
        self,
        edges: InEdges,
        fanouts: Sequence[int],
        *,
        semantics: str = "cumulative",
        seed: int = 0,
        edge_ids: bool = False,
    ) -> None:
        check_hops(fanouts, semantics)
        check_edges(edges)
        self.edges, self.semantics, self.seed, self.edge_ids = edges, semantics, seed, edge_ids
        self.fanouts = tuple(int(fanout) for fanout in fanouts)
        self._tables: deque[Table] = deque()

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return len(self.edges.indptr) - 1

    def sample(self, seeds: NDArray[Any], *, epoch: int = 0, batch: int = 0) -> Batch:
        """Sample the neighbourhood of some nodes.

        Args:
            seeds: Global ids without duplicates, [n].
            epoch: Epoch; samples differ between epochs.
            batch: Index of the batch in the epoch; pass different values on ranks for independent samples.

        Raises:
            InputError: There are no seeds, one is not a node, or one occurs twice.
        """
        nodes = check_seeds(seeds, self.num_nodes)
        if not len(nodes):
            raise InputError("there are no seeds; expected one or more node ids")
        try:
            table = self._tables.pop()
        except IndexError:
            table = Table(self.num_nodes)
        try:
            return self._sample(nodes, table, (epoch, batch))
        finally:
            self._tables.append(table)

    def empty_batch(self) -> Batch:
        """Batch without seeds."""
        return empty_batch(len(self.fanouts))

    def _sample(self, nodes: NDArray[np.int64], table: Table, place: tuple[int, int]) -> Batch:
        seeds, tag = len(nodes), table.begin(nodes)
        if self.semantics == "cumulative":
            return self._cumulative(nodes, seeds, table.entries, tag, place)
        return self._frontier(nodes, seeds, table.entries, tag, place)

    def _cumulative(
        self, nodes: NDArray[np.int64], seeds: int, table: NDArray[np.int64], tag: int, place: tuple[int, int]
    ) -> Batch:
        layers = []
        count = seeds
        for hop, fanout in enumerate(self.fanouts):
            targets = count
            empty = np.empty(0, np.int32), np.empty(0, np.int64)
            nodes, sources, e_id = self._room(nodes, 0, count, fanout, *empty)
            sums = np.zeros(targets + 1, np.int64)
            count = self._expand(nodes, 0, count, hop, place, table, tag, sums, sources, e_id)
            layers.append(Layer(sums, sources, count, e_id if self.edge_ids else None))
        return Batch(nodes[:count], tuple(reversed(layers)), seeds)

    def _frontier(
        self, nodes: NDArray[np.int64], seeds: int, table: NDArray[np.int64], tag: int, place: tuple[int, int]
    ) -> Batch:
        begin, count = 0, seeds
        sums, sources, e_id = np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)
        ends = [seeds]
        for hop, fanout in enumerate(self.fanouts):
            nodes, sources, e_id = self._room(nodes, begin, count, fanout, sources, e_id)
            sums = np.concatenate([sums, np.zeros(count - begin, np.int64)])
            begin, count = (
                count,
                self._expand(nodes, begin, count, hop, place, table, tag, sums, sources, e_id),
            )
            ends.append(count)
        layers = [
            Layer(
                sums[: targets + 1],
                sources[: sums[targets]],
                nodes_after,
                e_id[: sums[targets]] if self.edge_ids else None,
            )
            for targets, nodes_after in pairwise(ends)
        ]
        return Batch(nodes[:count], tuple(reversed(layers)), seeds)

    def _room(
        self,
        nodes: NDArray[np.int64],
        begin: int,
        count: int,
        fanout: int,
        sources: NDArray[np.int32],
        e_id: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """The arrays with space for the edges of a hop; `e_id` stays empty unless it is asked for."""
        room = edge_room(self.edges.indptr, nodes[begin:count], fanout)
        longer = np.empty(min(count + room, self.num_nodes), np.int64)
        longer[:count] = nodes[:count]
        held = np.empty(len(sources) + room, np.int32)
        held[: len(sources)] = sources
        if self.edge_ids:
            e_id = np.concatenate([e_id, np.empty(room, np.int64)])
        return longer, held, e_id

    def _expand(
        self,
        nodes: NDArray[np.int64],
        begin: int,
        count: int,
        hop: int,
        place: tuple[int, int],
        table: NDArray[np.int64],
        tag: int,
        sums: NDArray[np.int64],
        sources: NDArray[np.int32],
        e_id: NDArray[np.int64],
    ) -> int:
        key, known = stream_key(self.seed, *place, hop), (self.edges.indptr, self.edges.indices)
        fanout = self.fanouts[hop]
        return expand(*known, nodes, begin, count, count, fanout, key, table, tag, sums, sources, e_id)


def seed_batches(
    train: NDArray[Any], batch_size: int, *, epoch: int = 0, seed: int = 0, batches: int | None = None
) -> list[NDArray[np.int64]]:
    """Shuffle the training nodes, depending on (seed, epoch) only, and split them into batches.

    Args:
        train: Training nodes of a machine, [T].
        batch_size: Batch size of all batches but the last.
        epoch: Epoch; orders differ between epochs.
        seed: Seed of the order.
        batches: Exact number of batches, of nearly equal size, some possibly empty. Defaults to as many as
            `batch_size` needs.
    """
    order = np.random.default_rng(stream_key(seed, epoch)).permutation(np.asarray(train, dtype=np.int64))
    if batches is not None:
        return np.array_split(order, batches)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
