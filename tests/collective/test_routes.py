"""Pairs of ranks with several equal paths: how their bytes spread, and what that makes of the network."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from tests.collective_networks import random_network
from wirewise.collective import Network, network
from wirewise.collective.network import Edge, Hashing
from wirewise.topology import preset

SPREADING = ("hostx8@fat-tree-2", "hostx16@fat-tree-4/2", "dual-nicx4", "dgx-a100x2@rails-2")


def best_label(made: Network, source: int, target: int) -> tuple[float, float, int] | None:
    """Width, latency and vertices of the best simple path, by trying all of them."""
    found = []

    def extend(path: list[int], width: float, latency: float) -> None:
        here = path[-1]
        if here == target:
            found.append((-width, round(latency, 12), len(path)))
            return
        if here < made.ranks and here != source:
            return
        for number in made.leaving[here]:
            edge = made.edges[number]
            if edge.target not in path:
                rate = edge.bandwidth_bytes_per_s
                extend([*path, edge.target], min(width, rate), latency + edge.latency_s)

    extend([source], float("inf"), 0.0)
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_are_kept_at_every_vertex_and_paths_are_the_widest(seed: int) -> None:
    made = random_network(seed, 3, switches=4, most=3)
    for source, target in itertools.permutations(range(made.ranks), 2):
        route, best = made.route(source, target), best_label(made, source, target)
        assert (route is None) == (best is None)
        if route is None or best is None:
            continue
        left, expected = np.zeros(len(made.vertices)), np.zeros(len(made.vertices))
        expected[[source, target]] = -1, 1
        for edge, fraction in route:
            assert 0 < fraction <= 1
            left[made.edges[edge].source] -= fraction
            left[made.edges[edge].target] += fraction
            assert made.edges[edge].bandwidth_bytes_per_s >= -best[0]
            assert made.edges[edge].source in (source, *range(made.ranks, len(made.vertices)))
        assert left == pytest.approx(expected)
        rates = [made.edges[edge].bandwidth_bytes_per_s / fraction for edge, fraction in route]
        assert made.rate(source, target) == pytest.approx(min(rates))


def test_routes_of_a_mirror_are_turned_round() -> None:
    for name in (*SPREADING, "dgx-1v"):
        made = network(preset(name))
        turned = made.reversed
        assert turned.reversed == made
        for pair in itertools.permutations(range(made.ranks), 2):
            assert turned.route(*pair) == (made.route(*pair[::-1]) or ())[::-1]
            assert turned.routes_from(pair[0])[pair[1]] == turned.route(*pair)
            assert turned.rate(*pair) == made.rate(*pair[::-1])


@pytest.mark.parametrize("name", SPREADING)
def test_presets_with_several_paths_use_all_of_them(name: str) -> None:
    made = network(preset(name))
    assert made.spreads and made.routed_network is made
    assert made.has_choice == (name != "dual-nicx4")


def test_a_host_with_two_cards_sends_over_both() -> None:
    made = network(preset("dual-nicx4"))
    assert made.rate(0, 1) == 50e9
    assert [fraction for _, fraction in made.route(0, 1) or ()] == [0.5] * 4


@pytest.mark.parametrize(("rate", "latency_s"), [(0.5, 1.0), (1.0, 1.5)])
def test_a_narrow_or_slow_path_is_not_one_of_the_equal_ones(rate: float, latency_s: float) -> None:
    edges = (Edge(0, 2, 1.0, 1.0), Edge(2, 1, 1.0, 1.0), Edge(0, 3, rate, latency_s), Edge(3, 1, 1.0, 1.0))
    made = Network(name="two ways", ranks=2, vertices=tuple("abcd"), edges=edges)
    assert [use.edge for use in made.route(0, 1) or ()] == [0, 1]


def test_hashing_puts_a_connection_on_one_path_through_switches() -> None:
    made = network(preset("hostx16@fat-tree-4/2"))
    one, four = (msgspec.structs.replace(made, hashing=Hashing(3, n)) for n in (1, 4))
    routes = [one.route(0, target) or () for target in range(4, 16)]
    assert all(len(route) == 4 and route[1].fraction == 1 for route in routes)
    assert len({route[1].edge for route in routes}) > 1
    for target in range(4, 16):
        up = [f for edge, f in four.route(0, target) or () if made.edges[edge].target >= 20]
        assert sum(up) == pytest.approx(1) and all(f * 4 == round(f * 4) for f in up)
    assert one.route(0, 1) == made.route(0, 1)
