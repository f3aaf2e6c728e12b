import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirewise.errors import GraphError
from wirewise.graph import BlockModel, block_model


@given(
    nodes=st.integers(8, 200),
    degree=st.floats(0, 3),
    p_in=st.floats(0, 1),
    directed=st.booleans(),
    seed=st.integers(0, 2**63),
)
@settings(max_examples=60, deadline=None)
def test_every_graph_is_valid_and_repeats(nodes, degree, p_in, directed, seed):
    knobs = BlockModel(
        nodes=nodes, classes=4, features=3, mean_degree=degree, p_in=p_in, directed=directed, seed=seed
    )
    data = block_model(knobs).validate()
    assert data.num_nodes == nodes and data.directed == directed
    assert data.num_edges == len(data.in_edges.indices), "no self loops, no duplicates"
    assert data.fingerprint == block_model(knobs).fingerprint


@pytest.mark.parametrize("directed", [False, True])
def test_size_homophily_and_skew(directed):
    data = block_model(BlockModel(nodes=20_000, mean_degree=10, p_in=0.8, label_noise=0, directed=directed))
    assert data.num_edges == 200_000
    source, target = data.edge_index
    inside = (data.y[source] == data.y[target]).mean()
    assert inside == pytest.approx(0.8 + 0.2 / 12, abs=0.03)
    degree = np.bincount(target, minlength=20_000)
    assert degree.max() > 10 * degree.mean() and np.bincount(data.y).min() == 20_000 // 12


def test_features_tell_classes_and_differ_in_norm():
    quiet = block_model(BlockModel(nodes=2000, classes=5, noise=0, norm_sigma=0, label_noise=0))
    for label in range(5):
        assert len(np.unique(quiet.x[quiet.y == label], axis=0)) == 1
    norms = np.linalg.norm(block_model(BlockModel(nodes=4000, norm_sigma=1.5)).x, axis=1)
    assert np.log(norms).std() == pytest.approx(1.5, rel=0.1)


def test_labels_and_split_follow_their_knobs():
    clean, noisy = (block_model(BlockModel(nodes=5000, label_noise=share)) for share in (0, 0.3))
    assert (clean.y != noisy.y).mean() == pytest.approx(0.3 * 11 / 12, abs=0.03)
    counts = np.bincount(block_model(BlockModel(nodes=1000, train=0.4)).split)
    assert counts.tolist() == [400, 200, 400]
    assert np.bincount(block_model(BlockModel(nodes=100, train=0.0101)).split)[0] == 1


@pytest.mark.parametrize(
    "knobs", [{"nodes": 3}, {"classes": 1}, {"mean_degree": -1}, {"noise": -1}, {"train": 0}, {"features": 0}]
)
def test_knobs_out_of_range_are_named(knobs):
    with pytest.raises(GraphError, match=f"{next(iter(knobs))} of the generated graph is .*; expected"):
        block_model(BlockModel(**({"nodes": 100} | knobs)))
