from __future__ import annotations

import itertools
from fractions import Fraction

import networkx
import numpy as np
import pytest

from tests.collective_networks import random_network
from wirewise.collective import Network
from wirewise.collective.maxflow import FlowGraph, capacities
from wirewise.collective.network import Edge


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(30))
def test_flows_agree_with_networkx(seed: int) -> None:
    made = random_network(seed, 12, 4)
    found = capacities(made)
    graph = networkx.DiGraph()
    for edge in made.edges:
        graph.add_edge(edge.source, edge.target, capacity=int(edge.bandwidth_bytes_per_s))
    ours = FlowGraph(found.vertices, found.sources, found.targets)
    for sink in range(1, 16):
        value, inside = ours.cut(found.amounts, 0, sink)
        assert value * found.unit_bytes_per_s == networkx.maximum_flow_value(graph, 0, sink)
        assert found.leaving(inside) == value and inside[0] and not inside[sink]
        assert ours.flow(found.amounts, 0, sink, 1) >= min(value, 1)


def test_uneven_rates_are_rounded_by_less_than_any_use_of_them() -> None:
    rates = np.random.default_rng(1).uniform(1e6, 1e12, 12).tolist()
    pairs = itertools.permutations(range(4), 2)
    made = Network(
        name="n",
        ranks=4,
        vertices=tuple("abcd"),
        edges=tuple(Edge(a, b, rate, 0.0) for (a, b), rate in zip(pairs, rates, strict=True)),
    )
    found = capacities(made)
    for amount, rate in zip(found.amounts.tolist(), rates, strict=True):
        exact = Fraction(amount) * found.unit_bytes_per_s
        assert 0 <= exact - Fraction(rate) < Fraction(rate) / 10**9
