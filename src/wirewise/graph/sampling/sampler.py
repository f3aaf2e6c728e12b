"""Batches of sampled neighbourhoods that depend on what they are for, never on who draws them."""

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
    "nothing",
    "seed_batches",
]

SEMANTICS = ("cumulative", "frontier")
"""What a hop expands: every node seen so far, each time anew (DGL, SALIENT, PyG's NeighborSampler), or only nodes that
the hop before saw first (PyG's NeighborLoader)."""
_TAGS = 1 << 31


class Layer(NamedTuple):
    """A bipartite graph: targets are the first `num_targets` of its `num_sources` nodes, and aggregate from them."""

    indptr: NDArray[np.int64]
    """[targets + 1]: the edges of target t are `indptr[t]` to `indptr[t + 1]`."""
    sources: NDArray[np.int32]
    """[edges]: local number of each edge's source."""
    num_sources: int

    @property
    def num_targets(self) -> int:
        """Nodes that get a row."""
        return len(self.indptr) - 1

    @property
    def size(self) -> tuple[int, int]:
        """Sources and targets, as convolutions of PyG take it."""
        return self.num_sources, self.num_targets

    def edge_index(self) -> NDArray[np.int64]:
        """Source and target of each edge by local number, int64 [2, edges], targets ascending."""
        found = np.empty((2, len(self.sources)), np.int64)
        found[0] = self.sources
        found[1] = np.repeat(np.arange(self.num_targets), np.diff(self.indptr))
        return found


class Batch(NamedTuple):
    """Seeds with their sampled neighbourhood; L hops."""

    n_id: NDArray[np.int64]
    """[nodes]: global ids by local number; the seeds come first, in their order."""
    layers: tuple[Layer, ...]
    """[L], in the order in which a model uses them: from all nodes inwards to the seeds."""
    num_seeds: int

    @property
    def num_edges(self) -> int:
        """Edges of all layers."""
        return sum(len(layer.sources) for layer in self.layers)


class Table:
    """Local numbers by global id for one batch at a time; a tag saves clearing it."""

    def __init__(self, nodes: int) -> None:
        self.entries = np.zeros(nodes, np.int64)
        self.tag = 0

    def begin(self, seeds: NDArray[np.int64]) -> int:
        """Number the seeds of another batch; returns its tag.

        Raises:
            InputError: A seed stands twice.
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
    """Raise InputError unless a sampler can be made."""
    if not len(fanouts) or min(fanouts) < -1 or semantics not in SEMANTICS:
        raise InputError(
            f"got fanouts {list(fanouts)} and semantics {semantics!r}; expected one fanout or more, each of at "
            f"least 0, or -1 for all neighbours, and one of {', '.join(SEMANTICS)}"
        )


def check_used_hops(fanouts: Sequence[int], option: str) -> None:
    """Raise InputError where a hop draws no neighbours: a sampler can do it, a network cannot learn from it."""
    if 0 in fanouts:
        raise InputError(
            f"{option} is {','.join(map(str, fanouts))}; expected at least 1 neighbour in each hop, or -1 for all: a "
            "hop of 0 would train a network without neighbours, leave it out"
        )


def check_edges(edges: InEdges) -> None:
    """Raise InputError where edges carry data, which batches do not hold."""
    names = [*(["edge_weight"] if edges.weight is not None else []), *edges.edge_data]
    if names:
        raise InputError(
            f"edges carry {', '.join(dict.fromkeys(names))}, which sampled batches do not hold; expected edges without "
            "data: train on the whole graph, or sample its structure alone by in_edges.without_data()"
        )


def check_seeds(seeds: NDArray[Any], num_nodes: int) -> NDArray[np.int64]:
    """The seeds as int64 [n]; raises InputError where they are no nodes."""
    nodes = np.asarray(seeds)
    if nodes.ndim != 1 or not np.issubdtype(nodes.dtype, np.integer):
        raise InputError(
            f"seeds are {nodes.dtype} {list(nodes.shape)}; expected one or more node ids, integers of shape [n]"
        )
    wrong = np.flatnonzero((nodes < 0) | (nodes >= num_nodes))
    if len(wrong):
        raise InputError(f"seed {nodes[wrong[0]]} is no node; expected 0 to {num_nodes - 1}")
    return nodes.astype(np.int64)


def nothing(hops: int) -> Batch:
    """The batch of no seeds."""
    empty = Layer(np.zeros(1, np.int64), np.empty(0, np.int32), 0)
    return Batch(np.empty(0, np.int64), (empty,) * hops, 0)


class NeighborSampler:
    """Draws neighbourhoods of seeds: for every hop at most a fanout of in-neighbours of each node, without replacement.

    What node v draws in hop h depends on (seed, epoch, batch, h, v) only: batches are the same for any number of
    threads and processes and any cache. One sampler may serve several threads.

    A model uses the layers in their order:

        for convolution, layer in zip(convolutions, batch.layers):
            x = convolution((x, x[: layer.num_targets]), edge_index_of(layer))

    Args:
        edges: In-neighbours of each node, `GraphData.in_edges`.
        fanouts: Neighbours of a node in each hop, the seeds' own first; -1: all. [L]
        semantics: One of `SEMANTICS`.
        seed: Seed of the draws.

    Raises:
        InputError: No hops, a fanout below -1, unknown semantics, or edges that carry data.
    """

    collective = False
    """Whether machines sample together."""

    def __init__(
        self, edges: InEdges, fanouts: Sequence[int], *, semantics: str = "cumulative", seed: int = 0
    ) -> None:
        check_hops(fanouts, semantics)
        check_edges(edges)
        self.edges, self.semantics, self.seed = edges, semantics, seed
        self.fanouts = tuple(int(fanout) for fanout in fanouts)
        self._tables: deque[Table] = deque()

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return len(self.edges.indptr) - 1

    def sample(self, seeds: NDArray[Any], *, epoch: int = 0, batch: int = 0) -> Batch:
        """The neighbourhood of some nodes.

        Args:
            seeds: Global ids, each once, [n].
            epoch: Draws differ between epochs.
            batch: Number of the batch in the epoch; ranks whose draws shall be independent give different ones.

        Raises:
            InputError: No seeds, one that is no node, or one that stands twice.
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

    def nothing(self) -> Batch:
        """The batch of no seeds."""
        return nothing(len(self.fanouts))

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
            nodes, sources = self._room(nodes, 0, count, fanout, np.empty(0, np.int32))
            sums = np.zeros(targets + 1, np.int64)
            count = self._expand(nodes, 0, count, hop, place, table, tag, sums, sources)
            layers.append(Layer(sums, sources, count))
        return Batch(nodes[:count], tuple(reversed(layers)), seeds)

    def _frontier(
        self, nodes: NDArray[np.int64], seeds: int, table: NDArray[np.int64], tag: int, place: tuple[int, int]
    ) -> Batch:
        begin, count = 0, seeds
        sums, sources = np.zeros(1, np.int64), np.empty(0, np.int32)
        ends = [seeds]
        for hop, fanout in enumerate(self.fanouts):
            nodes, sources = self._room(nodes, begin, count, fanout, sources)
            sums = np.concatenate([sums, np.zeros(count - begin, np.int64)])
            begin, count = count, self._expand(nodes, begin, count, hop, place, table, tag, sums, sources)
            ends.append(count)
        layers = [
            Layer(sums[: targets + 1], sources[: sums[targets]], nodes_after)
            for targets, nodes_after in pairwise(ends)
        ]
        return Batch(nodes[:count], tuple(reversed(layers)), seeds)

    def _room(
        self, nodes: NDArray[np.int64], begin: int, count: int, fanout: int, sources: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Both arrays with space for the edges of a hop."""
        room = edge_room(self.edges.indptr, nodes[begin:count], fanout)
        longer = np.empty(min(count + room, self.num_nodes), np.int64)
        longer[:count] = nodes[:count]
        held = np.empty(len(sources) + room, np.int32)
        held[: len(sources)] = sources
        return longer, held

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
    ) -> int:
        key, known = stream_key(self.seed, *place, hop), (self.edges.indptr, self.edges.indices)
        fanout = self.fanouts[hop]
        return expand(*known, nodes, begin, count, count, fanout, key, table, tag, sums, sources)


def seed_batches(
    train: NDArray[Any], batch_size: int, *, epoch: int = 0, seed: int = 0, batches: int | None = None
) -> list[NDArray[np.int64]]:
    """The training nodes in a random order that depends on (seed, epoch) only, cut into batches.

    Args:
        train: Training nodes of a machine, [T].
        batch_size: Batch size of all batches but the last.
        epoch: Orders differ between epochs.
        seed: Seed of the order.
        batches: Cut into exactly so many, nearly equal; some are empty where there are fewer nodes.
    """
    order = np.random.default_rng(stream_key(seed, epoch)).permutation(np.asarray(train, dtype=np.int64))
    if batches is not None:
        return np.array_split(order, batches)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
