"""Random graphs with classes: a degree-skewed block model of any size, with features to match."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.graph.data import TEST, TRAIN, VALIDATION, GraphData
from wirewise.graph.structure import symmetrize

__all__ = ["BlockModel", "block_model", "write_block_model"]

_PARETO_SHAPE = 2.0
_MAX_ROUNDS = 30
_CHUNK = 1 << 18
"""Edges, or values of features, that are drawn together."""


@dataclass(frozen=True, kw_only=True)
class BlockModel:
    """Parameters of a generated graph; a 3-layer GCN reaches 70 to 90 % test accuracy with the defaults."""

    nodes: int = 20_000
    classes: int = 12
    features: int = 64
    mean_degree: float = 16.0
    """Edges per node: in-degree of a directed graph, degree of an undirected one."""
    p_in: float = 0.45
    """Fraction of edges sampled inside a class; the rest goes to any node. The higher, the more nodes are central."""
    noise: float = 4.0
    """Standard deviation of a feature around its class mean; the means have standard deviation one."""
    norm_sigma: float = 1.0
    """Log standard deviation of the scale of each feature row, which adaptive bit widths exploit."""
    label_noise: float = 0.05
    """Fraction of nodes with a random label."""
    train: float = 0.1
    """Fraction of nodes in the training split; the rest is one third validation and two thirds test."""
    directed: bool = False
    seed: int = 0

    def check(self) -> None:
        """Raise GraphError unless every parameter is in range."""
        ranges = {
            "nodes": (self.classes, 2**31 - 1),
            "classes": (2, 2**15),
            "features": (1, 2**20),
            "mean_degree": (0, max(0.0, (self.nodes - 1) / 2)),
            "p_in": (0, 1),
            "noise": (0, 1e6),
            "norm_sigma": (0, 10),
            "label_noise": (0, 1),
            "train": (1e-9, 1),
            "seed": (0, 2**64 - 1),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise GraphError(f"{name} of the generated graph is {value}; expected {low:g} to {high:g}")


def block_model(knobs: BlockModel | None = None) -> GraphData:
    """Sample a degree-corrected stochastic block model with noisy class-mean features.

    Node weights are Pareto with shape 2, so degrees are skewed as in real graphs. Both ends of an edge are sampled by
    weight, the second within the class of the first with probability `p_in`. O(edges log nodes).

    Raises:
        GraphError: A parameter is out of range.
    """
    drawn = _Drawn(knobs or BlockModel())
    knobs = drawn.knobs
    edges = np.concatenate([np.empty((2, 0), np.int32), *map(np.stack, drawn.pairs())], axis=1)
    if not knobs.directed:
        edges, _ = symmetrize(edges, knobs.nodes)
    y = drawn.labels()
    x = np.empty((knobs.nodes, knobs.features), np.float32)
    drawn.fill_features(x)
    return GraphData(
        edge_index=edges,
        x=x,
        y=y,
        split=drawn.split(),
        num_classes=knobs.classes,
        directed=knobs.directed,
        name="block",
    )


def write_block_model(knobs: BlockModel | None, folder: str | os.PathLike[str]) -> GraphData:
    """Sample the graph of `block_model` into a mapped folder, without holding all features in memory.

    Args:
        knobs: Parameters of the graph. Defaults to `BlockModel()`.
        folder: Folder for the output.

    Raises:
        GraphError: A parameter is out of range, or the folder is not writable.
    """
    from wirewise.graph.ingest import ArraySlot, GraphSource, write_source

    drawn = _Drawn(knobs or BlockModel())
    knobs = drawn.knobs
    y, count = drawn.labels(), len(drawn.keys)

    def pairs() -> Iterator[tuple[NDArray[Any], NDArray[Any], None]]:
        for u, v in drawn.pairs():
            yield u, v, None
        drawn.keys = np.empty(0, np.int64)

    source = GraphSource(
        name="block",
        num_edges=count,
        pairs=pairs,
        weighted=False,
        features={"x": ArraySlot(np.float32, (knobs.nodes, knobs.features), drawn.fill_features)},
        nodes=lambda: {"y": y, "split": drawn.split()},
        both=not knobs.directed,
        directed=knobs.directed,
        num_classes=knobs.classes,
        notes=(),
    )
    return write_source(source, folder)


class _Drawn:
    """Random draws of a seed: edges first, then labels, features and the split, each drawn once and in this order."""

    def __init__(self, knobs: BlockModel) -> None:
        knobs.check()
        self.knobs = knobs
        self._rng = np.random.Generator(np.random.Philox(knobs.seed))
        self.block = self._rng.permutation(np.arange(knobs.nodes) % knobs.classes)
        # Nodes sorted by class: the weight of a class is then one interval of the cumulative weight of all.
        self._order = np.argsort(self.block, kind="stable")
        self.keys = _draw_keys(self._rng, knobs, self.block[self._order])

    def pairs(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Sources and targets of the edges in blocks."""
        for begin in range(0, len(self.keys), _CHUNK):
            source, target = np.divmod(self.keys[begin : begin + _CHUNK], self.knobs.nodes)
            yield self._order[source].astype(np.int32), self._order[target].astype(np.int32)

    def labels(self) -> NDArray[np.int64]:
        """Class of each node."""
        y = self.block.astype(np.int64)
        relabelled = self._rng.random(self.knobs.nodes) < self.knobs.label_noise
        y[relabelled] = self._rng.integers(0, self.knobs.classes, int(relabelled.sum()))
        return y

    def fill_features(self, x: NDArray[np.float32]) -> None:
        """Write the features, [N, F]."""
        rng, knobs = self._rng, self.knobs
        means = rng.standard_normal((knobs.classes, knobs.features), dtype=np.float32)
        step = max(_CHUNK // knobs.features, 1)
        for begin in range(0, knobs.nodes, step):
            rows = x[begin : begin + step]
            rng.standard_normal(dtype=np.float32, out=rows)
            rows *= np.float32(knobs.noise)
            rows += means[self.block[begin : begin + step]]
        for begin in range(0, knobs.nodes, step):
            rows = x[begin : begin + step]
            rows *= rng.lognormal(0.0, knobs.norm_sigma, (len(rows), 1)).astype(np.float32)

    def split(self) -> NDArray[np.uint8]:
        """Split of each node."""
        knobs = self.knobs
        train = max(1, round(knobs.nodes * knobs.train))
        validation = train + (knobs.nodes - train) // 3
        split = np.full(knobs.nodes, TEST, dtype=np.uint8)
        order = self._rng.permutation(knobs.nodes)
        split[order[:train]] = TRAIN
        split[order[train:validation]] = VALIDATION
        return split


def _draw_keys(rng: np.random.Generator, knobs: BlockModel, block: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct pairs (source * nodes + target) of nodes that are sorted by class, ascending."""
    from wirewise.graph.kernels import drop_repeated

    nodes, wanted = knobs.nodes, round(knobs.nodes * knobs.mean_degree * (1 if knobs.directed else 0.5))
    cumulative = np.concatenate([[0.0], np.cumsum(rng.pareto(_PARETO_SHAPE, nodes) + 1)])
    bounds = cumulative[np.concatenate([[0], np.cumsum(np.bincount(block, minlength=knobs.classes))])]
    keys = np.empty(0, dtype=np.int64)
    for _ in range(_MAX_ROUNDS):
        missing = wanted - len(keys)
        if missing <= 0:
            break
        drawn = _draw_pairs(rng, knobs, block, cumulative, bounds, int(missing * 1.1) + 16)
        keys = drawn if not len(keys) else np.concatenate([keys, drawn])
        del drawn
        keys.sort()
        keys = keys[: drop_repeated(keys)]
    if len(keys) > wanted:
        keys = keys[rng.choice(len(keys), wanted, replace=False, shuffle=True)]
        keys.sort()
    return keys


def _draw_pairs(
    rng: np.random.Generator,
    knobs: BlockModel,
    block: NDArray[np.int64],
    cumulative: NDArray[np.float64],
    bounds: NDArray[np.float64],
    count: int,
) -> NDArray[np.int64]:
    """Pairs of sorted nodes as `_draw_keys` gives them, some repeated, without self loops; undirected ones ordered.

    Three numbers a pair come from three generators, each where one that draws all the first numbers of `count` pairs,
    then all the second ones, and so on, would be: blocks give what one draw gives.
    """
    streams = [copy.deepcopy(rng)]
    for _ in range(2):
        streams.append(_skipped(streams[-1], count))
    last = _skipped(streams[-1], count)
    rng.bit_generator.state = last.bit_generator.state
    keys, end = np.empty(count, np.int64), 0
    for begin in range(0, count, _CHUNK):
        size = min(_CHUNK, count - begin)
        at, chance, other = (stream.random(size) for stream in streams)
        source = _pick(cumulative, at * cumulative[-1])
        inside = chance < knobs.p_in
        low = np.where(inside, bounds[block[source]], 0.0)
        high = np.where(inside, bounds[block[source] + 1], cumulative[-1])
        target = _pick(cumulative, low + other * (high - low))
        if not knobs.directed:
            source, target = np.minimum(source, target), np.maximum(source, target)
        keep = source != target
        found = source[keep] * np.int64(knobs.nodes) + target[keep]
        keys[end : end + len(found)] = found
        end += len(found)
    return keys[:end]


def _skipped(rng: np.random.Generator, count: int) -> np.random.Generator:
    """Generator that is `count` numbers further than another."""
    later = copy.deepcopy(rng)
    for begin in range(0, count, _CHUNK):
        later.random(min(_CHUNK, count - begin))
    return later


def _pick(cumulative: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.int64]:
    # Sorted look-ups walk through memory in order, several times faster than random ones on large graphs.
    order = np.argsort(at)
    found = np.empty(len(at), dtype=np.int64)
    found[order] = np.searchsorted(cumulative, at[order], side="right") - 1
    return np.clip(found, 0, len(cumulative) - 2)
