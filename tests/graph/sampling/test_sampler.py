"""The neighbour sampler: uniform, complete, and the same whoever draws."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch_geometric.nn import SAGEConv

from tests.graph.sampling.drawn import star
from wirewise.errors import InputError
from wirewise.graph import BlockModel, block_model
from wirewise.graph.sampling import SEMANTICS, NeighborSampler
from wirewise.graph.structure import InEdges, in_edges


@pytest.fixture(scope="module")
def graph():
    return block_model(BlockModel(nodes=3000, classes=6, features=8, mean_degree=12)).in_edges


def same(one, other):
    return (
        np.array_equal(one.n_id, other.n_id)
        and len(one.layers) == len(other.layers)
        and all(
            np.array_equal(a.indptr, b.indptr) and np.array_equal(a.sources, b.sources)
            for a, b in zip(one.layers, other.layers, strict=True)
        )
    )


def test_s2_nodes_without_neighbours():
    edges = in_edges(np.array([[1], [0]]), 4)
    batch = NeighborSampler(edges, [2, 2]).sample([3, 0, 2])
    assert batch.n_id.tolist() == [3, 0, 2, 1]
    assert np.diff(batch.layers[-1].indptr).tolist() == [0, 1, 0]


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_s3_any_thread_draws_the_same(graph, semantics):
    rng = np.random.default_rng(0)
    seeds = [rng.choice(3000, 64, replace=False) for _ in range(24)]
    sampler = NeighborSampler(graph, [6, 4, 3], semantics=semantics, seed=5)
    alone = [sampler.sample(s, epoch=2, batch=i) for i, s in enumerate(seeds)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda i: sampler.sample(seeds[i], epoch=2, batch=i), range(24)))
    fresh = NeighborSampler(graph, [6, 4, 3], semantics=semantics, seed=5).sample(seeds[7], epoch=2, batch=7)
    assert all(map(same, alone, together))
    assert same(fresh, alone[7])


def test_s3_a_union_of_batches_draws_what_its_parts_draw(graph):
    """A node's draw with cumulative semantics in a hop does not depend on the other seeds."""
    sampler, parts = NeighborSampler(graph, [4, 3]), [np.arange(0, 40), np.arange(40, 90)]
    whole = sampler.sample(np.concatenate(parts), batch=3)
    edges = []
    for batch in [whole, *(sampler.sample(part, batch=3) for part in parts)]:
        edges.append(
            [set(zip(*batch.n_id[layer.edge_index()].tolist(), strict=True)) for layer in batch.layers]
        )
    assert edges[0] == [a | b for a, b in zip(edges[1], edges[2], strict=True)]


@pytest.mark.parametrize("other", [{"epoch": 1}, {"batch": 1}, {"seed": 1}])
def test_s4_streams_are_independent(other):
    leaves, fanout, rounds = 60, 12, 2000
    hits = np.zeros((2, rounds, leaves))
    for row, knobs in enumerate([{}, other]):
        sampler = NeighborSampler(star(leaves), [fanout], seed=knobs.get("seed", 0))
        for step in range(rounds):
            place = {"epoch": 10 * knobs.get("epoch", 0), "batch": 2 * step + knobs.get("batch", 0)}
            hits[row, step, sampler.sample([0], **place).n_id[1:] - 1] = 1
    correlation = np.corrcoef(hits[0].ravel(), hits[1].ravel())[0, 1]
    assert abs(correlation) < 4 / np.sqrt(rounds * leaves)


def test_s5_what_a_hop_expands():
    edges = in_edges(np.array([[1, 2, 3, 4], [0, 1, 2, 3]]), 5)
    cumulative = NeighborSampler(edges, [-1, -1], semantics="cumulative").sample([0])
    frontier = NeighborSampler(edges, [-1, -1], semantics="frontier").sample([0])
    assert cumulative.n_id.tolist() == frontier.n_id.tolist() == [0, 1, 2]
    star_edges = star(300)
    drawn = [NeighborSampler(star_edges, [10, 10], semantics=s).sample([0]) for s in SEMANTICS]
    # Node 0 is expanded again, or not.
    assert [len(batch.n_id) for batch in drawn] == [pytest.approx(20, abs=3), 11]


def test_any_convolution_of_pyg_runs(graph):
    x = torch.randn(3000, 8)
    batch = NeighborSampler(graph, [5, 4], seed=1).sample(np.arange(32))
    convolutions = [SAGEConv(8, 8), SAGEConv(8, 3)]
    rows = x[torch.from_numpy(batch.n_id)]
    for convolution, layer in zip(convolutions, batch.layers, strict=True):
        rows = convolution((rows, rows[: layer.num_targets]), torch.from_numpy(layer.edge_index()))
    assert rows.shape == (32, 3)


def test_all_neighbours_give_the_rows_of_the_whole_graph(graph):
    x, convolutions = torch.randn(3000, 8), [SAGEConv(8, 8), SAGEConv(8, 3)]
    target = np.repeat(np.arange(3000), np.diff(graph.indptr))
    whole = x
    for convolution in convolutions:
        whole = convolution(whole, torch.from_numpy(np.stack([graph.indices.astype(np.int64), target])))
    for semantics in SEMANTICS:
        batch = NeighborSampler(graph, [-1, -1], semantics=semantics).sample([7, 1500, 2])
        rows = x[torch.from_numpy(batch.n_id)]
        for convolution, layer in zip(convolutions, batch.layers, strict=True):
            rows = convolution((rows, rows[: layer.num_targets]), torch.from_numpy(layer.edge_index()))
        torch.testing.assert_close(rows, whole[[7, 1500, 2]])


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"fanouts": []}, "expected one fanout or more"),
        ({"fanouts": [5, -2]}, "at least 0, or -1"),
        ({"fanouts": [5], "semantics": "both"}, "cumulative, frontier"),
    ],
)
def test_knobs_that_cannot_be_used(graph, knobs, told):
    with pytest.raises(InputError, match=told):
        NeighborSampler(graph, **knobs)


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        ([], "one or more node ids"),
        ([0.5], "integers"),
        ([3000], "seed 3000 is no node; expected 0 to 2999"),
        ([-1], "seed -1"),
        ([4, 7, 4], "seed 4 stands twice"),
    ],
)
def test_seeds_that_cannot_be_used(graph, seeds, told):
    sampler = NeighborSampler(graph, [3])
    with pytest.raises(InputError, match=told):
        sampler.sample(np.array(seeds))
    assert sampler.sample([1]).num_seeds == 1


@pytest.mark.parametrize("data", [{"weight": np.ones(1, np.float32)}, {"edge_data": ("edge_attr",)}])
def test_edges_that_carry_data_are_refused_by_name(data):
    edges = InEdges(np.array([0, 0, 1]), np.array([0], np.int32), None)._replace(**data)
    with pytest.raises(
        InputError, match=r"edges carry edge_(weight|attr), which sampled batches do not hold"
    ):
        NeighborSampler(edges, [1])
    assert NeighborSampler(edges.without_data(), [1]).sample(np.array([1])).num_edges == 1


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("fanouts", [[3], [-1, 2], [100, 4, 3]])
def test_edge_ids_are_the_sampled_edges(graph, semantics, fanouts):
    seeds = np.arange(0, 200, 3)
    plain = NeighborSampler(graph, fanouts, semantics=semantics).sample(seeds, batch=2)
    batch = NeighborSampler(graph, fanouts, semantics=semantics, edge_ids=True).sample(seeds, batch=2)
    assert same(plain, batch)
    assert all(layer.e_id is None for layer in plain.layers)
    for layer in batch.layers:
        source, target = batch.n_id[layer.edge_index()]
        assert np.array_equal(graph.indices[layer.e_id], source)
        assert (graph.indptr[target] <= layer.e_id).all() and (layer.e_id < graph.indptr[target + 1]).all()
        assert len(np.unique(layer.e_id)) == len(layer.e_id)


def test_edge_ids_tell_repeated_edges_apart():
    edges = InEdges(np.array([0, 3, 3]), np.array([1, 1, 1], np.int32), None)
    layer = NeighborSampler(edges, [-1], edge_ids=True).sample([0]).layers[0]
    assert layer.e_id.tolist() == [0, 1, 2]
    assert layer.sources.tolist() == [1, 1, 1]
