"""Certificates of plans: what the whole network allows, and what its routes do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.collective.brute_force import all_cuts
from tests.collective_networks import random_network
from wirewise.collective import COLLECTIVES, Edge, Network, network
from wirewise.collective.bounds import busiest_edge_s
from wirewise.planners.collective import PLANNERS, CollectiveProblem
from wirewise.planners.collective.auto import choose
from wirewise.planners.collective.segments import hashed_s
from wirewise.topology import preset


@pytest.mark.parametrize("seed", range(60))
def test_bound_of_a_plan_is_the_tightest_cut_of_the_whole_network(seed):
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(3, 6))
    made = random_network(seed, ranks, switches=int(rng.integers(3, 9 - ranks)))
    collective, root = COLLECTIVES[seed % len(COLLECTIVES)], int(rng.integers(ranks))
    problem = CollectiveProblem(network=made, collective=collective, size_bytes=1e6, root=root)
    plan = PLANNERS["greedy"](problem, runs=2)
    expected = max(all_cuts(made, collective, root, tuple(range(ranks))))
    assert plan.bound_s == pytest.approx(1e6 * expected, rel=1e-12)
    limited = max(all_cuts(made.routed_network, collective, root, tuple(range(ranks))))
    if limited > expected * (1 + 1e-9):
        assert plan.bound_routes_s == pytest.approx(1e6 * limited, rel=1e-12)
    else:
        assert plan.bound_routes_s is None
    assert plan.predicted_s >= (plan.bound_routes_s or plan.bound_s) * (1 - 1e-9)
    plan.check_itself()


PATHS = {"hostx8@fat-tree-2": 1 / 25e9, "hostx16@fat-tree-4/2": 1 / 25e9, "dual-nicx4": 1 / 50e9}
"""Presets whose pairs of ranks have several paths, with the seconds a byte that a rank takes."""


@pytest.mark.parametrize("name", PATHS)
def test_pairs_with_several_paths_are_planned_and_predicted_on_all_of_them(name):
    made = network(preset(name))
    least = (made.ranks - 1) / made.ranks * 1e9 * PATHS[name]
    for collective in ("all_gather", "reduce_scatter"):
        problem = CollectiveProblem(network=made, collective=collective, size_bytes=1e9)
        plan = PLANNERS["forest"](problem, time_budget_s=30.0)
        assert plan.bound_s == pytest.approx(least) and plan.bound_routes_s is None
        assert busiest_edge_s(plan.program, made, 1e9) == pytest.approx(least)
        assert (plan.hashed_s is None) == (name == "dual-nicx4")
        assert plan.hashed_s is None or plan.hashed_s >= plan.predicted_s * (1 - 1e-9)
        assert choose(problem, {}).seconds <= 1.02 * least


def test_two_spines_serve_twice_the_pairs_of_one():
    """Four leaves of two hosts, 200 Gbit/s everywhere: 60 ms over one spine, 35 where hosts are what limits."""
    ends = [(host, 8 + host // 2) for host in range(8)]
    ends += [(8 + leaf, 12 + spine) for leaf in range(4) for spine in range(2)]
    edges = tuple(Edge(*way, 25e9, 1e-6) for a, b in ends for way in ((a, b), (b, a)))
    made = Network(
        name="spines",
        ranks=8,
        vertices=tuple(f"v{n}" for n in range(14)),
        edges=edges,
        fabric=(*range(8, 14),),
    )
    problem = CollectiveProblem(network=made, collective="all_to_all", size_bytes=1e9)
    choice = choose(problem, {})
    assert choice.bounds.network.seconds == pytest.approx(0.035) and choice.bounds.routes is None
    assert choice.seconds <= 1.02 * 0.035
    assert hashed_s(choice.program, made, 1e9) > 1.2 * choice.seconds
