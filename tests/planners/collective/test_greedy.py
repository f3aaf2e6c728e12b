"""Greedy programs: right for every collective, near the bound, on networks of all kinds."""

import msgspec
import pytest

from tests.planners.collective.networks import four_unequal, groups, ring, switch, torus
from wirewise.collective import COLLECTIVES, check
from wirewise.collective.bounds import bound
from wirewise.errors import PlanError
from wirewise.planners.collective import CollectiveProblem
from wirewise.planners.collective.greedy import propose, synthesize
from wirewise.sim.programs import simulate

NETWORKS = {
    "torus": torus(3, 4),
    "one-way ring": ring(5, both=False),
    "unequal": four_unequal(),
    "switch": switch(6),
    "groups": groups([3, 4], 1e9, 2e8),
}


def problem(network, collective, size_bytes=1e6, **kwargs):
    return CollectiveProblem(network=network, collective=collective, size_bytes=size_bytes, **kwargs)


def slots(program, network, capacity=1):
    """Rounds of equal length that a program takes where every edge carries one chunk in a round."""
    assert all(capacity == 1 for _ in network.edges)
    came, busy, last = {}, {}, 0
    for t in sorted(program.transfers, key=lambda t: t.step):
        start = max(came.get((t.chunk, t.source), 0), busy.get((t.source, t.target), 0))
        came[t.chunk, t.target] = busy[t.source, t.target] = start + 1
        last = max(last, start + 1)
    return last


@pytest.mark.sweep
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_collective_everywhere(name, collective):
    program = synthesize(problem(NETWORKS[name], collective, root=0), runs=4, time_limit_s=5.0)
    assert program.collective == collective
    check(program)


@pytest.mark.sweep
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["torus", "one-way ring", "groups"])
def test_others_relay_for_a_group(name, collective):
    program = synthesize(problem(NETWORKS[name], collective, root=1, members=(1, 3, 4)), runs=3)
    assert program.group == (1, 3, 4)
    check(program)


def test_torus_of_128_ranks_is_near_its_bound():
    """C8: at most 1.25 of the bound; a rank gets 127 blocks over four edges."""
    net = torus(8, 16)
    program = synthesize(problem(net, "all_gather", 128e6), chunks=1, runs=4)
    assert slots(program, net) <= 1.25 * 127 / 4
    check(program, fifo=None)


def test_more_runs_are_never_worse():
    net = torus(4, 4)
    takes = [slots(synthesize(problem(net, "all_gather"), chunks=1, runs=runs), net) for runs in (1, 8, 32)]
    assert takes == sorted(takes, reverse=True)


def test_same_seed_same_program():
    one, other = (synthesize(problem(torus(3, 3), "all_to_all"), seed=5, runs=3) for _ in range(2))
    assert one == other


def test_what_cannot_be_reached_is_told():
    cut = torus(2, 2)
    kept = tuple(e for e in cut.edges if e.target != 3)
    net = type(cut)(name="cut", ranks=4, vertices=cut.vertices, edges=kept)
    with pytest.raises(PlanError, match="joined in both directions"):
        synthesize(problem(net, "all_gather"), runs=2)


def test_a_new_plan_avoids_a_link_that_became_slow():
    net = four_unequal()
    edges = tuple(e._replace(bandwidth_bytes_per_s=5e6) if e[:2] == (0, 2) else e for e in net.edges)
    slower = msgspec.structs.replace(net, edges=edges)
    old, new = (
        synthesize(CollectiveProblem(network=n, collective="all_gather", size_bytes=16e6), runs=30)
        for n in (net, slower)
    )
    old_s, new_s = (simulate(program, slower, 16e6).finish_s for program in (old, new))
    assert new_s < 0.8 * old_s
    assert new_s <= 1.2 * bound(slower, "all_gather", 16e6).seconds


def test_runs_that_the_time_limit_left_out_are_told():
    wanted = CollectiveProblem(network=torus(4, 4), collective="all_to_all", size_bytes=16e6)
    found = propose(wanted, time_limit_s=1e-9, runs=20)
    assert found.cut_short and found.notes == ("its time ended after 1 of 20 runs",)
    assert not propose(wanted, runs=3).notes
    both = propose(CollectiveProblem(network=torus(2, 2), collective="all_reduce", size_bytes=4e6), runs=4)
    assert not both.cut_short
