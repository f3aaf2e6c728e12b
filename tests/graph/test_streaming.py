import sys

import numpy as np
import pytest

from tests.graph.toys import toy
from wirewise.errors import GraphError
from wirewise.graph import (
    PARTITIONERS,
    BlockModel,
    block_model,
    choose_method,
    load,
    measure,
    partition,
    streaming,
)
from wirewise.graph import partition as assign
from wirewise.graph.partition import METIS_BYTES_PER_EDGE
from wirewise.graph.streaming import stream


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("name", ["cora", "citeseer", "debian", "debian-directed", "block"])
def test_as_few_rows_cross_as_after_metis(name, parts):
    data = load(name)
    metis, found = (measure(data, partition(data, parts, method)) for method in ("metis", "stream"))
    assert found.halo_rows <= 1.1 * metis.halo_rows
    assert found.imbalance <= 0.051
    assert found.nodes.min() >= 0.949 * found.nodes.mean()


def _preferential(nodes, edges_a_node, seed):
    """Edges to nodes that have many already, half of them to a neighbour of the last one: hubs and triangles."""
    rng = np.random.default_rng(seed)
    ends, edges = list(range(edges_a_node)), []
    for v in range(edges_a_node, nodes):
        for _ in range(edges_a_node):
            u = ends[rng.integers(len(ends))]
            edges.append((v, u))
            ends += [u, v]
    return toy(edges, nodes, directed=False)


@pytest.mark.parametrize("parts", [2, 3, 7, 16])
@pytest.mark.parametrize("few_edges", [0, 1 << 40])
def test_no_part_is_left_over(monkeypatch, few_edges, parts):
    """Every part was filled to its upper bound, so that the last got what was left: a quarter of the others."""
    monkeypatch.setattr(streaming, "_FEW_EDGES", few_edges)
    data = _preferential(1200, 5, seed=parts)
    owned = measure(data, partition(data, parts, "stream")).nodes
    assert owned.min() >= np.floor(0.95 * 1200 / parts) and owned.max() <= np.ceil(1.05 * 1200 / parts)


@pytest.mark.parametrize("nodes, parts", [(9, 2), (5, 5), (7, 3)])
def test_bounds_of_tiny_graphs_leave_room(nodes, parts):
    owner = stream(
        toy([(v, v + 1) for v in range(nodes - 1)], nodes, directed=False).simple_in_edges,
        parts,
        np.ones(nodes, np.int64),
        seed=0,
        max_imbalance=0.05,
    )
    counts = np.bincount(owner, minlength=parts)
    assert counts.min() >= nodes // parts and counts.max() <= -(-nodes // parts)


@pytest.mark.slow
@pytest.mark.parametrize("few_edges", [0, 1 << 40])
@pytest.mark.parametrize("parts", [2, 33])
def test_any_effort_and_number_of_parts(monkeypatch, few_edges, parts):
    monkeypatch.setattr(streaming, "_FEW_EDGES", few_edges)
    data = block_model(BlockModel(nodes=3000, classes=6, features=1, mean_degree=8))
    weight = np.where(np.arange(3000) < 300, 5, 1)
    owner = stream(data.simple_in_edges, parts, weight, seed=1, max_imbalance=0.1)
    again = stream(data.simple_in_edges, parts, weight, seed=1, max_imbalance=0.1)
    assert np.array_equal(owner, again) and set(owner) == set(range(parts))
    assert np.bincount(owner, weight).max() <= weight.sum() / parts * 1.11
    random = measure(data, partition(data, parts, "random"))
    assert measure(data, owner).halo_rows < 0.95 * random.halo_rows


@pytest.mark.slow
def test_a_graph_without_locality_is_placed_without_clusters(monkeypatch):
    placed = []

    def place(*arguments):
        placed.append(len(arguments[3]))
        return np.zeros(placed[-1], np.int32)

    monkeypatch.setattr(streaming, "_FEW_EDGES", 0)
    monkeypatch.setattr(streaming, "place", place)
    side = 60
    grid = [(v, v + 1) for v in range(side * side) if (v + 1) % side]
    grid += [(v, v + side) for v in range(side * (side - 1))]
    partition(block_model(BlockModel(nodes=4000, features=1)), 2, "stream")
    assert placed == [4000]
    placed.clear()
    partition(toy(grid, side * side), 2, "stream")
    assert len(placed) > 1 and max(placed) < 400


@pytest.mark.slow
def test_rows_are_counted_as_they_cross():
    """A hub that more nodes need than a count holds, and edges of one direction."""
    edges = [(0, v) for v in range(1, 700)] + [(v, v + 1) for v in range(1, 698)]
    data = toy(edges, 700)
    assert measure(data, partition(data, 2, "stream")).halo_rows <= 10


@pytest.fixture
def free(monkeypatch):
    def set_to(size_bytes):
        # The package has a function of the module's name.
        module = sys.modules["wirewise.graph.partition"]
        monkeypatch.setattr(module, "available_bytes", lambda: size_bytes)
        monkeypatch.setattr(module, "_BASE_BYTES", 0)

    return set_to


def test_the_method_follows_the_memory(free, monkeypatch):
    data = block_model(BlockModel(nodes=1000, classes=4, features=1, mean_degree=20))
    metis = METIS_BYTES_PER_EDGE * len(data.simple_in_edges.indices)
    free(metis)
    choice = choose_method(data)
    assert choice.method == "metis-balanced" and choice.needed_bytes == metis
    free(metis - 1)
    choice = choose_method(data)
    assert choice.method == "stream" and "METIS needs about 0.00312 GB" in choice.note
    monkeypatch.setitem(PARTITIONERS, "stream", lambda *_: np.arange(1000, dtype=np.int32) % 3)
    assert assign(data, 3, "auto").tolist()[:4] == [0, 1, 2, 0]
    with pytest.raises(GraphError, match="are free; expected room for it: choose stream or auto"):
        assign(data, 3, "metis")
    free(100)
    with pytest.raises(
        GraphError, match=r"stream at most .* GB, and 1e-07 GB of memory are free; expected room for one"
    ):
        assign(data, 3, "auto")
    assert assign(data, 3, "random").max() == 2
