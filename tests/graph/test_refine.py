"""Moves of single nodes that relieve the busiest part."""

import numpy as np
import pytest
from hypothesis import given, settings

from tests.graph.toys import partitioned
from wirewise.graph import BlockModel, block_model, measure, partition
from wirewise.graph.refine import lower_busiest


@pytest.fixture(scope="module")
def block():
    return block_model(BlockModel(nodes=1500, classes=6, features=4, mean_degree=8))


@pytest.fixture(scope="module")
def one_way():
    return block_model(BlockModel(nodes=1500, classes=6, features=4, mean_degree=8, directed=True))


@given(partitioned())
@settings(max_examples=60, deadline=None)
def test_refinement_never_makes_the_busiest_busier(case):
    data, owner = case
    parts = int(owner.max()) + 1
    weight = np.ones(data.num_nodes, np.int64)
    better = lower_busiest(data.in_edges, owner.astype(np.int32), parts, weight, seed=0, max_imbalance=0.5)
    assert set(better) == set(range(parts))
    assert measure(data, better).busiest_rows <= measure(data, owner).busiest_rows
    limit = max(np.bincount(owner).max(), weight.sum() / parts * 1.5)
    assert np.bincount(better).max() <= limit


@pytest.mark.parametrize("directed", [False, True])
def test_refinement_keeps_its_counts_exact(block, one_way, directed):
    from wirewise.graph.refine import _State

    data = one_way if directed else block
    state = _State(data.in_edges, partition(data, 4, "random"), 4, np.ones(1500, np.int64))
    assert state.one_pass(np.arange(1500), 500.0, 0.01) > 0
    quality = measure(data, state.owner)
    assert (
        quality.sent.tolist() == state.send.tolist() and quality.received.tolist() == state.receive.tolist()
    )
    assert np.bincount(state.owner).tolist() == state.load.tolist()
