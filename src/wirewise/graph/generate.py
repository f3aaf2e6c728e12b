"""Random graphs with classes: a degree-skewed block model of any size, with features to match."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.graph.data import TEST, TRAIN, VALIDATION, GraphData
from wirewise.graph.structure import symmetrized

__all__ = ["BlockModel", "block_model"]

_PARETO_SHAPE = 2.0
_MAX_ROUNDS = 30


@dataclass(frozen=True, kw_only=True)
class BlockModel:
    """Knobs of a generated graph. A 3-layer GCN reaches 70 to 90 % test accuracy with the defaults."""

    nodes: int = 20_000
    classes: int = 12
    features: int = 64
    mean_degree: float = 16.0
    """Edges per node: in-degree of a directed graph, degree of an undirected one."""
    p_in: float = 0.45
    """Share of edges drawn inside a class; the rest goes to any node. More of it makes more nodes central."""
    noise: float = 4.0
    """Standard deviation of a feature around its class mean; the means have standard deviation one."""
    norm_sigma: float = 1.0
    """Log-standard-deviation of the factor of each feature row: what adaptive bit widths can exploit."""
    label_noise: float = 0.05
    """Share of nodes with a random label."""
    train: float = 0.1
    """Share of nodes in the training split; the rest is one third validation and two thirds test."""
    directed: bool = False
    seed: int = 0

    def check(self) -> None:
        """Raise GraphError unless every knob is in range."""
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
    """Draw a degree-corrected stochastic block model with noisy class-mean features.

    Node weights are Pareto with shape 2, so degrees are skewed as in real graphs. Each edge takes both ends
    by weight, the second inside the class of the first with probability `p_in`. O(edges log nodes).

    Raises:
        GraphError: A knob is out of range.
    """
    knobs = knobs or BlockModel()
    knobs.check()
    rng = np.random.Generator(np.random.Philox(knobs.seed))
    block = rng.permutation(np.arange(knobs.nodes) % knobs.classes)
    edges = _draw_edges(rng, knobs, block)
    if not knobs.directed:
        edges, _ = symmetrized(edges, knobs.nodes)
    y = block.astype(np.int64)
    relabelled = rng.random(knobs.nodes) < knobs.label_noise
    y[relabelled] = rng.integers(0, knobs.classes, int(relabelled.sum()))
    return GraphData(
        edge_index=edges,
        x=_draw_features(rng, knobs, block),
        y=y,
        split=_draw_split(rng, knobs),
        num_classes=knobs.classes,
        directed=knobs.directed,
        name="block",
    )


def _draw_edges(rng: np.random.Generator, knobs: BlockModel, block: NDArray[np.int64]) -> NDArray[np.int32]:
    nodes, wanted = knobs.nodes, round(knobs.nodes * knobs.mean_degree * (1 if knobs.directed else 0.5))
    # Nodes sorted by class: the weight of a class is then one interval of the cumulative weight of all.
    order = np.argsort(block, kind="stable")
    cumulative = np.concatenate([[0.0], np.cumsum(rng.pareto(_PARETO_SHAPE, nodes) + 1)])
    bounds = cumulative[np.concatenate([[0], np.cumsum(np.bincount(block, minlength=knobs.classes))])]
    keys = np.empty(0, dtype=np.int64)
    for _ in range(_MAX_ROUNDS):
        missing = wanted - len(keys)
        if missing <= 0:
            break
        drawn = _draw_pairs(rng, knobs, block[order], cumulative, bounds, int(missing * 1.1) + 16)
        keys = np.unique(np.concatenate([keys, drawn]))
    if len(keys) > wanted:
        keys = np.sort(rng.choice(keys, wanted, replace=False))
    return order[np.stack([keys // nodes, keys % nodes])].astype(np.int32)


def _draw_pairs(
    rng: np.random.Generator,
    knobs: BlockModel,
    block: NDArray[np.int64],
    cumulative: NDArray[np.float64],
    bounds: NDArray[np.float64],
    count: int,
) -> NDArray[np.int64]:
    """Distinct pairs (source * nodes + target) of sorted nodes, no self loops; undirected ones ordered."""
    source = _pick(cumulative, rng.random(count) * cumulative[-1])
    inside = rng.random(count) < knobs.p_in
    low = np.where(inside, bounds[block[source]], 0.0)
    high = np.where(inside, bounds[block[source] + 1], cumulative[-1])
    target = _pick(cumulative, low + rng.random(count) * (high - low))
    if not knobs.directed:
        source, target = np.minimum(source, target), np.maximum(source, target)
    keep = source != target
    pairs: NDArray[np.int64] = source[keep] * np.int64(knobs.nodes) + target[keep]
    return pairs


def _pick(cumulative: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.int64]:
    # Sorted look-ups walk through memory in order, several times faster than random ones on large graphs.
    order = np.argsort(at)
    found = np.empty(len(at), dtype=np.int64)
    found[order] = np.searchsorted(cumulative, at[order], side="right") - 1
    return np.clip(found, 0, len(cumulative) - 2)


def _draw_features(
    rng: np.random.Generator, knobs: BlockModel, block: NDArray[np.int64]
) -> NDArray[np.float32]:
    means = rng.standard_normal((knobs.classes, knobs.features), dtype=np.float32)
    x = rng.standard_normal((knobs.nodes, knobs.features), dtype=np.float32)
    x *= np.float32(knobs.noise)
    x += means[block]
    x *= rng.lognormal(0.0, knobs.norm_sigma, (knobs.nodes, 1)).astype(np.float32)
    return x


def _draw_split(rng: np.random.Generator, knobs: BlockModel) -> NDArray[np.uint8]:
    train = max(1, round(knobs.nodes * knobs.train))
    validation = train + (knobs.nodes - train) // 3
    split = np.full(knobs.nodes, TEST, dtype=np.uint8)
    order = rng.permutation(knobs.nodes)
    split[order[:train]] = TRAIN
    split[order[train:validation]] = VALIDATION
    return split
