"""Programs made from programs are right, or are refused."""

import pytest

from tests.planners.collective.networks import of_pairs, ring, switch
from wirewise.collective import check
from wirewise.collective.builders import build
from wirewise.errors import PlanError, ProgramError
from wirewise.planners.collective import CollectiveProblem
from wirewise.planners.collective.combine import (
    is_symmetric,
    plan_by_mirroring,
    reduce_then_broadcast,
    reverse_program,
    split_chunks,
)
from wirewise.planners.collective.demands import demands, hops
from wirewise.planners.collective.greedy import synthesize as greedy


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize(
    ("collective", "algorithm", "mirror"),
    [
        ("broadcast", "binomial", "reduce"),
        ("all_gather", "ring", "reduce_scatter"),
        ("scatter", "binomial", "gather"),
        ("gather", "binomial", "scatter"),
    ],
)
def test_backwards(collective, algorithm, mirror, ranks):
    program = build(collective, algorithm, ranks, root=1 if collective != "all_gather" else 0)
    turned = reverse_program(program)
    assert turned.collective == mirror and turned.steps == program.steps
    check(turned)


def test_what_adds_up_is_not_run_backwards():
    with pytest.raises(ProgramError, match="cannot run reduce backwards"):
        reverse_program(build("reduce", "binomial", 4))
    with pytest.raises(ProgramError, match="all_to_all"):
        reverse_program(build("all_to_all", "linear", 3))


def test_refined_programs_have_more_chunks_and_the_same_bytes():
    program = build("all_gather", "ring", 4)
    finer = split_chunks(program, 3)
    check(finer)
    assert finer.chunks == 12
    assert sum(finer.chunk_bytes(1e6)) == pytest.approx(sum(program.chunk_bytes(1e6)))


def test_halves_must_fit():
    halves = build("reduce_scatter", "ring", 4), build("all_gather", "ring", 4)
    check(reduce_then_broadcast(*halves))
    with pytest.raises(ProgramError, match="the same number"):
        reduce_then_broadcast(halves[0], split_chunks(halves[1], 2))
    with pytest.raises(ProgramError, match="expected reduce_scatter, all_gather"):
        reduce_then_broadcast(*halves[::-1])


def test_mirrored_plans_use_links_in_the_direction_they_have():
    """A ring with one slow direction: both halves of an all-reduce go the quick way."""
    rates = {(s, (s + 1) % 4): 1e9 for s in range(4)} | {((s + 1) % 4, s): 1e6 for s in range(4)}
    net = of_pairs("one quick way", 4, rates)
    problem = CollectiveProblem(network=net, collective="all_reduce", size_bytes=1e6)
    program = plan_by_mirroring(problem, lambda half: greedy(half, runs=8))
    check(program)
    quick = sum((t.source + 1) % 4 == t.target for t in program.transfers)
    assert quick > 0.9 * len(program.transfers)


def test_halves_of_different_chunks_are_brought_together():
    counts = iter([2, 3])
    problem = CollectiveProblem(network=ring(3), collective="all_reduce", size_bytes=1e6)
    program = plan_by_mirroring(problem, lambda half: greedy(half, chunks=next(counts), runs=2))
    check(program)
    assert program.chunks == 18


def test_networks_backwards():
    net = of_pairs("one way", 3, {(0, 1): 1e9, (1, 2): 2e9})
    turned = net.reversed
    assert turned.rate(1, 0) == 1e9 and turned.rate(2, 1) == 2e9 and turned.rate(0, 1) == 0
    assert turned.reversed == net
    assert hops(net)[0].tolist() == [0, 1, 2] and hops(net)[2, 0] == 3


def test_a_network_is_the_same_both_ways_or_not():
    rates = {(0, 1): 1e9, (1, 0): 1e9, (1, 2): 2e9, (2, 1): 2e9}
    assert is_symmetric(of_pairs("line", 3, rates)) and is_symmetric(switch(4))
    assert not is_symmetric(of_pairs("slower back", 3, {**rates, (1, 0): 5e8}))
    assert not is_symmetric(ring(3, both=False))


def test_demands_are_of_what_moves():
    found = demands(
        CollectiveProblem(network=ring(4), collective="all_to_all", size_bytes=1.0, members=(1, 3))
    )
    assert [(d.source, d.targets) for d in found] == [(1, ()), (1, (3,)), (3, (1,)), (3, ())]
    with pytest.raises(PlanError, match="adds up"):
        demands(CollectiveProblem(network=ring(4), collective="reduce", size_bytes=1.0))
