import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings

from tests.graph.toys import adjacency, partitioned, toy
from tests.harness.tiers import keep
from wirewise.errors import GraphError
from wirewise.graph import PARTITIONERS, BlockModel, block_model, load, measure, partition

METHODS = keep(PARTITIONERS.keys() - {"stream"}, PARTITIONERS)
"""All methods; kernels of one of them take seconds to compile."""


@pytest.fixture(scope="module")
def block():
    return block_model(BlockModel(nodes=1500, classes=6, features=4, mean_degree=8))


@pytest.fixture(scope="module")
def one_way():
    return block_model(BlockModel(nodes=1500, classes=6, features=4, mean_degree=8, directed=True))


@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_methods_balance_and_repeat(block, method, parts):
    owner = partition(block, parts, method, seed=3)
    assert owner.dtype == np.int32 and set(owner) == set(range(parts))
    assert measure(block, owner).imbalance <= 0.06
    assert np.array_equal(owner, partition(block, parts, method, seed=3))


@pytest.mark.parametrize("method", ["metis", "metis-volume", "metis-balanced"])
def test_directed_graphs_are_partitioned_well(one_way, method):
    random = measure(one_way, partition(one_way, 4, "random"))
    assert measure(one_way, partition(one_way, 4, method)).halo_rows < random.halo_rows


def test_node_weights_are_balanced(block):
    weight = np.where(np.arange(1500) < 300, 9, 1)
    for method in PARTITIONERS.keys() - {"stream"}:
        owner = partition(block, 3, method, node_weight=weight)
        assert np.bincount(owner, weight).max() <= weight.sum() / 3 * 1.06, method
    with pytest.raises(GraphError, match="node_weight is float64"):
        partition(block, 3, node_weight=np.ones(1500))


@pytest.mark.parametrize("method", METHODS)
def test_no_part_is_empty_even_on_tiny_graphs(method):
    for parts in (2, 3, 4):
        assert set(partition(toy([(0, 1), (1, 2), (0, 2)]), parts, method)) == set(range(parts))


@pytest.mark.parametrize(
    ("parts", "method", "message"),
    [
        (5, "metis", "5 parts were asked for and the graph has 4 nodes; expected 1 to 4 parts"),
        (0, "metis", "0 parts were asked for"),
        (2, "spectral", "'spectral' is unknown; expected metis-balanced, metis"),
        (2, np.array([0, 1, 0]), r"the assignment is int64 \[3\]; expected integers \[4\]"),
        (2, np.array([0.0, 1, 0, 1]), "the assignment is float64"),
        (2, np.array([0, 1, 2, 0]), "node 2 is assigned to part 2; expected 0 to 1"),
        (2, np.array([0, 1, -1, 0]), "node 2 is assigned to part -1"),
        (3, np.array([0, 2, 0, 2]), "part 1 of 3 owns no node"),
    ],
)
def test_what_does_not_fit_is_named(parts, method, message):
    with pytest.raises(GraphError, match=message):
        partition(toy([(0, 1)]), parts, method)


def test_an_own_assignment_is_taken_as_it_is():
    assert partition(toy([(0, 1)]), 2, np.array([1, 0, 0, 1])).tolist() == [1, 0, 0, 1]


@given(partitioned())
@settings(max_examples=100, deadline=None)
def test_measured_rows_are_counted_right(case):
    data, owner = case
    quality, edge = measure(data, owner), adjacency(data) != 0
    parts = owner.max() + 1
    sent, received = np.zeros(parts, int), np.zeros(parts, int)
    for u in range(data.num_nodes):
        for q in {owner[v] for v in np.flatnonzero(edge[:, u])} - {owner[u]}:
            sent[owner[u]] += 1
            received[q] += 1
    assert quality.sent.tolist() == sent.tolist() and quality.received.tolist() == received.tolist()
    assert quality.halo_rows == sent.sum() and quality.busiest_rows == max(sent.max(), received.max())
    assert quality.cut_edges == (edge & (owner[:, None] != owner[None, :])).sum()


@pytest.mark.slow
def test_the_default_relieves_the_busiest_host_on_real_data():
    data = load("debian")
    metis, balanced = (measure(data, partition(data, 4, m)) for m in ("metis", "metis-balanced"))
    assert balanced.busiest_rows <= 0.9 * metis.busiest_rows
    assert balanced.imbalance <= 0.051


def test_a_graph_without_edges_has_no_halo():
    data = dataclasses.replace(toy([]), directed=False)
    quality = measure(data, partition(data, 2))
    assert quality.busiest_rows == 0 and quality.central.sum() == 4


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_that_no_method_takes_are_named(seed):
    with pytest.raises(GraphError, match=f"seed is {seed}; expected 0 to 9223372036854775807"):
        partition(toy([(0, 1)]), 2, seed=seed)


_SIGNALLED = """
import os, signal, sys, threading
from wirewise.errors import GraphError
from wirewise.graph import BlockModel, block_model, partition

signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
graph = block_model(BlockModel(nodes=60_000, classes=6, features=4, mean_degree=8))
if sys.argv[1] == "during":
    threading.Timer(float(sys.argv[2]), os.kill, [os.getpid(), signal.SIGTERM]).start()
    try:
        owner = partition(graph, 4, "metis")
    except GraphError as error:
        sys.exit(8 if "SIGTERM" in str(error) else 9)
else:
    partition(graph, 4, "metis")
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
threading.Event().wait(20)
"""


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("when", "seconds"), [("after", 0), ("during", 0.02), ("during", 0.1), ("during", 0.2)]
)
def test_a_signal_ends_the_process_during_and_after_metis(when, seconds):
    done = subprocess.run([sys.executable, "-c", _SIGNALLED, when, str(seconds)], timeout=60)
    assert done.returncode in ({7} if when == "after" else {7, 8})
