"""Certificates of plans: what the whole network allows, and what its routes do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.collective.brute_force import all_cuts
from tests.collective_networks import random_network
from wirewise.collective import COLLECTIVES
from wirewise.planners.collective import PLANNERS, CollectiveProblem


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
    limited = max(all_cuts(made.routed, collective, root, tuple(range(ranks))))
    if limited > expected * (1 + 1e-9):
        assert plan.bound_routes_s == pytest.approx(1e6 * limited, rel=1e-12)
    else:
        assert plan.bound_routes_s is None
    assert plan.predicted_s >= (plan.bound_routes_s or plan.bound_s) * (1 - 1e-9)
    plan.check_itself()
