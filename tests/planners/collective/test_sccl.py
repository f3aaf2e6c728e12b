"""Exact search on small networks: known answers, and programs that the checker proves."""

import re
import sys
from dataclasses import replace

import pytest

from tests.planners.collective.networks import ring
from wirewise.collective import check, network
from wirewise.errors import PlanError
from wirewise.planners.collective import PLANNERS, CollectiveProblem
from wirewise.planners.collective.demands import block_bytes
from wirewise.planners.collective.sccl import Point, pareto, propose, solve
from wirewise.planners.collective.sccl.solve import least_rounds, point_of
from wirewise.topology import preset

MOVING = ("broadcast", "scatter", "gather", "all_gather", "all_to_all")
ADDING = ("reduce", "reduce_scatter", "all_reduce")


def dgx1(collective="all_gather", **kwargs):
    mesh = network(preset("dgx-1v"), kinds={"nvlink"})
    return CollectiveProblem(network=mesh, collective=collective, size_bytes=1e9, **kwargs)


@pytest.mark.parametrize("point", [(1, 2, 2), (2, 2, 3), (6, 3, 7)])
def test_all_gathers_of_dgx1_that_exist(point):
    """C1; (6, 3, 7) is bandwidth-optimal: 7/6 rounds a chunk."""
    program = solve(dgx1(), Point(*point))
    check(program)
    assert program.steps == point[1] and program.chunks == 8 * point[0]
    assert_rounds(program, dgx1().network, point[2])


@pytest.mark.parametrize("point", [(2, 2, 2), (3, 2, 4), (1, 1, 5)])
def test_all_gathers_of_dgx1_that_do_not_exist(point):
    """C1."""
    assert solve(dgx1(), Point(*point)) is None


def assert_rounds(program, net, rounds):
    narrowest = min(e.bandwidth_bytes_per_s for e in net.edges)
    needed = 0
    for step in range(program.steps):
        load = {}
        for t in program.transfers:
            if t.step == step:
                load[t.source, t.target] = load.get((t.source, t.target), 0) + 1
        needed += max(-(-n // round(net.rate(*pair) / narrowest)) for pair, n in load.items())
    assert needed <= rounds


@pytest.mark.parametrize("collective", MOVING + ADDING)
def test_every_collective_on_a_ring(collective):
    problem = CollectiveProblem(network=ring(4), collective=collective, size_bytes=1e6, root=0)
    program = propose(problem, time_limit_s=5.0, most_chunks=2).program
    assert program.collective == collective
    check(program)


@pytest.mark.parametrize("size_bytes", [1e3, 4e4, 1e9])
def test_of_the_front_only_what_can_be_quickest_is_looked_for(size_bytes, monkeypatch):
    problem = CollectiveProblem(network=ring(4), collective="all_reduce", size_bytes=size_bytes)
    half = replace(problem, collective="all_gather")

    def predicted_s(point):
        return point.predicted_s(problem.network, block_bytes(half))

    best = min((point for point, _ in pareto(half, time_limit_s=20.0, most_chunks=3)), key=predicted_s)
    tried = list[Point]()

    def counted(moving, point, **limit):
        tried.append(point)
        return solve(moving, point, **limit)

    monkeypatch.setattr(sys.modules[solve.__module__.removesuffix(".solve")], "solve", counted)
    program, notes = propose(problem, time_limit_s=20.0, most_chunks=3)[:2]
    check(program)
    assert (program.steps, program.chunks, notes) == (2 * best.steps, 4 * best.chunks, ())
    # The halves are one search on a network that is the same both ways, and the cut spares what it proves impossible.
    assert len(tried) == len(set(tried))
    assert all(point.rounds / point.chunks >= least_rounds(half) * (1 - 1e-6) for point in tried)
    assert all(predicted_s(point) < predicted_s(best) for point in tried if point.steps > best.steps)


def test_front_goes_from_few_steps_to_few_rounds():
    front = [point for point, _ in pareto(dgx1(), time_limit_s=20.0, most_chunks=2)]
    assert front[0] == Point(2, 2, 3)
    rates = [p.rounds / p.chunks for p in front]
    assert rates == sorted(rates, reverse=True)


def test_small_messages_take_fewer_steps():
    few, many = (
        propose(
            CollectiveProblem(network=ring(6), collective="broadcast", size_bytes=size),
            most_chunks=4,
            time_limit_s=10,
        ).program
        for size in (1.0, 1e9)
    )
    assert few.steps == 3 and many.steps > 3


def test_others_relay_for_a_group():
    problem = CollectiveProblem(
        network=ring(4, both=False), collective="all_gather", size_bytes=1e6, members=(0, 2)
    )
    program = propose(problem, time_limit_s=5.0, most_chunks=1).program
    check(program)
    assert program.steps == 2 and program.chunks == 2


def test_what_is_not_decided_is_told():
    with pytest.raises(PlanError, match="not decided"):
        solve(dgx1(), Point(6, 3, 7), time_limit_s=1e-9)
    with pytest.raises(PlanError, match="raise the steps"):
        propose(dgx1(), point=Point(2, 2, 2))


@pytest.mark.parametrize("collective", MOVING + ADDING)
def test_without_time_there_is_a_program_that_is_not_proved_best(collective):
    program, notes = propose(dgx1(collective, root=3), time_limit_s=1e-9)[:2]
    check(program)
    assert program.collective == collective
    assert notes and all("not proved best" in note and "not decided in time" in note for note in notes)


def test_a_point_without_a_decision_is_told():
    program, (note,) = propose(dgx1(), point=Point(6, 3, 7), time_limit_s=1e-9)[:2]
    check(program)
    assert "Point(chunks=6, steps=3, rounds=7) was not decided" in note


def test_the_plan_says_that_its_program_is_not_proved_best():
    late = PLANNERS["sccl"](dgx1(), time_budget_s=1e-6)
    assert "not proved best" in late.notes[0]
    problem = CollectiveProblem(network=ring(4), collective="all_gather", size_bytes=1e6)
    assert PLANNERS["sccl"](problem, time_budget_s=20.0, most_chunks=2).notes == ()


def test_where_the_front_is_empty_another_program_is_taken():
    problem = CollectiveProblem(network=ring(6, both=False), collective="all_to_all", size_bytes=1e6)
    program, (note,) = propose(problem, slack=0, most_chunks=1, time_limit_s=20.0)[:2]
    check(program)
    assert "no program is within the slack" in note


@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "gather"])
def test_the_gap_holds_the_best_program(collective):
    problem = CollectiveProblem(network=ring(5), collective=collective, size_bytes=1e5)
    late, (note,) = propose(problem, time_limit_s=1e-9)[:2]
    best, told = propose(problem, most_chunks=3, time_limit_s=30.0)[:2]
    assert told == ()
    gap = int(re.search(r"up to (\d+)% less", note)[1]) / 100
    late_s, best_s = (
        point_of(one, problem).predicted_s(problem.network, block_bytes(problem)) for one in (late, best)
    )
    assert best_s <= late_s * (1 + 1e-9)
    assert best_s >= (1 - gap - 0.005) * late_s
