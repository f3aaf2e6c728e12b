"""Scatter and gather as one flow, over other ranks' ports where the root's own is narrow."""

from __future__ import annotations

import numpy as np
import pytest

from tests.collective_networks import random_network
from wirewise.collective import check, network
from wirewise.collective.bounds import bound, busiest_edge_s
from wirewise.errors import PlanError
from wirewise.planners.collective import PLANNERS, CollectiveProblem
from wirewise.planners.collective.forest import synthesize
from wirewise.topology import preset


@pytest.mark.parametrize("collective", ["scatter", "gather"])
@pytest.mark.parametrize(
    "name", ["dgx-a100x2", "dgx-2x2", "dgx-h100x4", "mi250x2", "hostx8@fat-tree-2", "h4"]
)
def test_all_ports_of_the_roots_host_are_used(collective, name):
    made = network(preset(name))
    problem = CollectiveProblem(network=made, collective=collective, size_bytes=256e6, root=3)
    plan = PLANNERS["forest"](problem)
    assert busiest_edge_s(plan.program, made, 256e6) <= 1.01 * bound(made, collective, 256e6, root=3).seconds
    assert plan.predicted_s <= (1.35 if name == "mi250x2" else 1.15) * plan.bound_s


@pytest.mark.parametrize("seed", range(40))
def test_flows_of_random_networks_reach_the_bound_of_their_routes(seed):
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(3, 7))
    made = random_network(seed, ranks, switches=int(rng.integers(0, 4)))
    members = tuple(sorted(rng.choice(ranks, int(rng.integers(2, ranks + 1)), replace=False).tolist()))
    for collective in ("scatter", "gather"):
        problem = CollectiveProblem(
            network=made, collective=collective, size_bytes=1e6, root=members[0], members=members
        )
        program = synthesize(problem)
        check(program)
        least = bound(made, collective, 1e6, root=members[0], members=members).seconds
        own_s = busiest_edge_s(program, made, 1e6)
        assert own_s >= least * (1 - 1e-9)
        if not made.spreads:
            # Where every pair has one path, rank to rank, only switches that routes share cost more than the cut.
            direct = len(made.vertices) == made.ranks
            assert own_s <= least * 1.02 or not direct


def test_one_member_has_nothing_to_send():
    problem = CollectiveProblem(
        network=network(preset("h4")), collective="scatter", size_bytes=8.0, root=1, members=(1,)
    )
    assert not synthesize(problem).transfers


def test_other_collectives_are_refused_by_name():
    problem = CollectiveProblem(network=network(preset("h4")), collective="all_to_all", size_bytes=1e6)
    with pytest.raises(PlanError, match="got all_to_all, which trees do not serve"):
        synthesize(problem)
