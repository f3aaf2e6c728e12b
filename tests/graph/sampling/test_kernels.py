"""Draws of the compiled kernels: fair, and none twice."""

import numpy as np
import pytest
from scipy import stats

from tests.graph.sampling.drawn import star
from wirewise.graph import BlockModel, block_model
from wirewise.graph.sampling import SEMANTICS, NeighborSampler

DRAWS = 20_000


@pytest.fixture(scope="module")
def graph():
    return block_model(BlockModel(nodes=3000, classes=6, features=8, mean_degree=12)).in_edges


def neighbours(edges, node):
    return set(edges.indices[edges.indptr[node] : edges.indptr[node + 1]].tolist())


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(("leaves", "fanout"), [(40, 1), (40, 5), (40, 15), (200, 15), (200, 100)])
def test_s1_every_neighbour_is_drawn_equally_often(leaves, fanout):
    sampler = NeighborSampler(star(leaves), [fanout])
    counts = np.zeros(leaves + 1)
    for batch in range(DRAWS):
        counts[sampler.sample([0], batch=batch).n_id[1:]] += 1
    share, hits = fanout / leaves, counts[1:]
    assert hits.sum() == DRAWS * fanout
    assert np.abs(hits - DRAWS * share).max() < 4 * np.sqrt(DRAWS * share * (1 - share))
    # Draws without replacement vary less than those of a multinomial distribution.
    spread = ((hits - DRAWS * share) ** 2).sum() / (DRAWS * share * (1 - share)) * (leaves - 1) / leaves
    assert stats.chi2.sf(spread, leaves - 1) > 1e-4
    assert stats.chi2.cdf(spread, leaves - 1) > 1e-4


def test_s1_every_pair_is_drawn_equally_often():
    sampler, counts = NeighborSampler(star(6), [3]), np.zeros((7, 7))
    for batch in range(DRAWS):
        drawn = sampler.sample([0], batch=batch).n_id[1:]
        counts[np.ix_(drawn, drawn)] += 1
    pairs = counts[1:, 1:][np.triu_indices(6, 1)]
    share = 3 * 2 / (6 * 5)
    assert np.abs(pairs - DRAWS * share).max() < 4 * np.sqrt(DRAWS * share * (1 - share))


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("fanouts", [[0], [3], [-1], [100], [5, 3], [4, -1, 2], [0, 4]])
def test_s2_no_neighbour_twice_and_none_missing(graph, semantics, fanouts):
    batch = NeighborSampler(graph, fanouts, semantics=semantics).sample([5, 9, 700, 2999])
    assert len(set(batch.n_id.tolist())) == len(batch.n_id)
    assert batch.n_id[:4].tolist() == [5, 9, 700, 2999]
    assert batch.layers[0].num_sources == len(batch.n_id)
    assert batch.layers[-1].num_targets == batch.num_seeds == 4
    for hop, (layer, fanout) in enumerate(zip(reversed(batch.layers), fanouts, strict=True)):
        for target in range(layer.num_targets):
            found = batch.n_id[layer.sources[layer.indptr[target] : layer.indptr[target + 1]]].tolist()
            known = neighbours(graph, batch.n_id[target])
            assert len(found) == len(set(found))
            assert set(found) <= known
            if semantics == "cumulative" or hop == 0:
                assert len(found) == (len(known) if fanout < 0 else min(fanout, len(known)))
