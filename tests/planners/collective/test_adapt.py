"""Trees over the levels of a machine: groups, shapes, segments, and their gain where levels differ."""

import numpy as np
import pytest

from tests.planners.collective.networks import four_unequal, groups, of_pairs, ring, switch, torus
from wirewise.collective import Network, check
from wirewise.errors import PlanError
from wirewise.planners.collective import CollectiveProblem
from wirewise.planners.collective.adapt import (
    COLLECTIVES,
    SHAPES,
    cluster_ranks,
    distances,
    pipeline_segments,
    program_of,
    synthesize,
    tree,
)
from wirewise.planners.collective.segments import with_best_segments
from wirewise.sim.programs import simulate

MB = 1_000_000


def problem(network, collective="broadcast", size_bytes=4 * MB, **kwargs):
    return CollectiveProblem(network=network, collective=collective, size_bytes=size_bytes, **kwargs)


def shuffled(network, order):
    """Network with its ranks renumbered: rank r of the result is `order[r]` of the given one."""
    place = {old: new for new, old in enumerate(order)} | {
        v: v for v in range(network.ranks, len(network.vertices))
    }
    edges = tuple(e._replace(source=place[e.source], target=place[e.target]) for e in network.edges)
    return Network(name=network.name, ranks=network.ranks, vertices=network.vertices, edges=edges)


TWO_LEVELS = groups([5, 5, 5], 1e9, 1e8)
MIXED = shuffled(TWO_LEVELS, [0, 5, 10, 1, 6, 11, 2, 7, 12, 3, 8, 13, 4, 9, 14])
"""Ranks dealt out to the groups in turns."""


def test_ranks_are_grouped_by_how_near_they_are():
    assert cluster_ranks(distances(TWO_LEVELS), range(15)) == (
        tuple(range(5)),
        tuple(range(5, 10)),
        tuple(range(10, 15)),
    )
    assert set(map(frozenset, cluster_ranks(distances(MIXED), range(15)))) == {
        frozenset(range(start, 15, 3)) for start in range(3)
    }
    assert cluster_ranks(distances(switch(6)), range(6)) == tuple(range(6))
    assert cluster_ranks(distances(four_unequal()), range(4)) == ((0, 1), (2, 3))


def test_three_levels():
    distance = np.full((8, 8), 100.0)
    for a in range(8):
        for b in range(8):
            distance[a, b] = 1.0 if a // 2 == b // 2 else 10.0 if a // 4 == b // 4 else 100.0
    assert cluster_ranks(distance, range(8)) == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert cluster_ranks(distance, range(8), most_levels=1) == tuple(range(8))


def between(program, group_of):
    return sum(group_of(t.source) != group_of(t.target) for t in program.transfers)


@pytest.mark.sweep
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "network", [switch(5), TWO_LEVELS, MIXED, four_unequal(), torus(3, 3), ring(4)], ids=lambda n: n.name
)
def test_every_tree_is_right(network, collective):
    program = synthesize(problem(network, collective, root=2))
    assert program.collective == collective
    check(program)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_groups_of_ranks(collective):
    program = synthesize(problem(MIXED, collective, root=4, members=(1, 3, 4, 9, 11)))
    assert {t.source for t in program.transfers} | {t.target for t in program.transfers} == {1, 3, 4, 9, 11}
    check(program)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_group_is_entered_once(shape):
    """G5: edges between groups = groups - 1."""
    for root in (0, 7):
        program = synthesize(problem(MIXED, root=root), shapes=(shape,))
        assert between(program, lambda rank: rank % 3) == 2


@pytest.mark.parametrize("network", [TWO_LEVELS, MIXED], ids=["in order", "dealt out"])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_gain_over_the_tree_in_rank_order(network, collective):
    """G5: 1.5 times as fast as a binomial tree of the ranks, both with their best number of segments."""
    wanted = problem(network, collective)
    rank_order = program_of(wanted, tree(distances(network), range(15), 0, ("binomial",)))
    _, plain_s = with_best_segments(rank_order, network, 4 * MB)
    planned = synthesize(wanted)
    assert plain_s >= 1.5 * simulate(planned, network, 4 * MB).finish_s


def test_slowest_child_is_served_first():
    program = synthesize(problem(TWO_LEVELS), shapes=("flat", "binomial"))
    served = [t.target for t in sorted(program.transfers, key=lambda t: t.step) if t.source == 0]
    assert {t // 5 for t in served[:2]} == {1, 2}
    assert {t // 5 for t in served[2:]} == {0}


def test_segments_of_the_pipeline_model():
    size, alpha, beta, depth = 4 * MB, 1e-4, 1e-8, 5
    count = pipeline_segments(size, alpha, beta, depth)

    def time_s(n):
        return (depth + n - 1) * (alpha + size / n * beta)

    assert count == min(range(1, 100), key=time_s)
    assert pipeline_segments(size, alpha, beta, 1) == 1
    assert pipeline_segments(100, alpha, beta, 5) == 1


def test_what_is_no_tree_is_told():
    with pytest.raises(PlanError, match="ADAPT plans trees"):
        synthesize(problem(switch(3), "all_gather"))
    with pytest.raises(PlanError, match="expected some of chain"):
        tree(distances(switch(3)), (0, 1, 2), 0, ("star",))
    with pytest.raises(PlanError, match="greedy"):
        synthesize(problem(ring(6), members=(0, 2, 4)))


def one_way(*rates):
    """A directed ring of ranks with one chord: most pairs of neighbours are joined in one direction only."""
    n = len(rates)
    ends = [(r, (r + 1) % n, rate) for r, rate in enumerate(rates)] + [(0, n // 2, 2e9)]
    return of_pairs("one-way", n, {(s, t): rate for s, t, rate in ends})


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_way_links_are_taken_in_their_direction(collective):
    wanted = problem(one_way(7e9, 3e9, 5e9, 3e9, 5e9, 3e9, 3e9), collective, root=3)
    made = synthesize(wanted)
    check(made)
    assert simulate(made, wanted.network, MB).finish_s > 0


def test_sums_take_the_fast_direction_of_each_link():
    """Ranks reach the root quickly over a chain that is slow the other way."""
    pairs = {(r, r + 1): 1e9 for r in range(4)} | {(r + 1, r): 1e7 for r in range(4)}
    pairs |= {(4, r): 1e8 for r in range(4)} | {(r, 4): 1e8 for r in range(3)}
    wanted = problem(of_pairs("fast one way", 5, pairs), "reduce", root=4)
    seconds = simulate(synthesize(wanted), wanted.network, wanted.size_bytes).finish_s
    assert seconds < 1.5 * wanted.size_bytes / 1e9
