"""Small graphs for tests, and the whole-graph results that distributed ones are compared with."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from wirewise.graph import GraphData, Part
from wirewise.graph.part import edge_weights64
from wirewise.graph.structure import in_edges, symmetrize


def toy(edges, nodes=4, directed=True, **changes) -> GraphData:
    """A graph of `nodes` nodes whose feature rows are all different; node 0 trains."""
    values = {
        "edge_index": np.array(edges, dtype=np.int64).reshape(-1, 2).T,
        "x": np.arange(nodes * 3, dtype=np.float32).reshape(nodes, 3) + 1,
        "y": np.arange(nodes, dtype=np.int64) % 2,
        "split": np.array([0, 1, 2] * nodes, dtype=np.uint8)[:nodes],
        "num_classes": 2,
        "directed": True,
    }
    data = GraphData(**(values | changes))
    return data if directed else data.undirected()


@st.composite
def partitioned(draw, max_nodes=14, max_parts=5):
    """A random graph, directed or not, with loops, duplicates, isolated nodes, and an owner of each node."""
    nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=40))
    weight = None
    if draw(st.booleans()):
        weight = np.array([draw(st.integers(1, 9)) for _ in edges], dtype=np.float32)
    data = toy(edges, nodes, directed=draw(st.booleans()), edge_weight=weight)
    parts = draw(st.integers(1, min(max_parts, nodes)))
    rest = draw(st.lists(st.integers(0, parts - 1), min_size=nodes - parts, max_size=nodes - parts))
    owner = np.array(draw(st.permutations(list(range(parts)) + rest)), dtype=np.int64)
    return data, owner


def adjacency(data: GraphData) -> np.ndarray:
    """Dense weights [target, source] without self loops: an independent route to the edges."""
    dense = np.zeros((data.num_nodes, data.num_nodes))
    for number, (source, target) in enumerate(data.edge_index.T):
        if source == target:
            continue
        if data.edge_weight is None:
            dense[target, source] = 1
        else:
            dense[target, source] += data.edge_weight[number]
    return dense


def whole_aggregate(data: GraphData, kind: str, x: np.ndarray) -> np.ndarray:
    """Aggregation over the whole graph by the formulas, with dense matrices."""
    weighted = adjacency(data)
    edge = weighted != 0
    d_in, d_out = edge.sum(axis=1), edge.sum(axis=0)
    if kind == "gcn":
        scale = 1 / np.sqrt((d_in[:, None] + 1) * (d_out[None, :] + 1))
        return (weighted * scale) @ x + x / np.sqrt((d_in + 1) * (d_out + 1))[:, None]
    return (weighted / np.maximum(d_in, 1)[:, None] if kind == "mean" else weighted) @ x


def part_aggregate(part: Part, kind: str, own: np.ndarray, halo: np.ndarray) -> np.ndarray:
    """Aggregation of a part's own rows in float64 from own and halo rows."""
    weight, self_weight = edge_weights64(part, kind)
    rows = np.concatenate([own, halo])
    out = own * self_weight[:, None]
    target = np.repeat(np.arange(part.num_own), np.diff(part.indptr))
    np.add.at(out, target, weight[:, None] * rows[part.indices])
    return out


def undirected(pairs, nodes):
    edges, _ = symmetrize(np.array(pairs, np.int64).reshape(-1, 2).T, nodes)
    return in_edges(edges, nodes)


def path(nodes):
    return undirected([(i, i + 1) for i in range(nodes - 1)], nodes)
