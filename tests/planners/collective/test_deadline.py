"""Planners keep to their time limit, and what they give then is still a program that the checker proves."""

from __future__ import annotations

import itertools
import sys
import time

import numpy as np
import pytest
from benchmarks.taccl.machines import machine_network as sketched_network
from msgspec.structs import replace

from tests.collective_networks import machine_network
from tests.planners.collective.networks import groups, ring, switch, torus
from wirewise import work
from wirewise.collective import COLLECTIVES, check, network
from wirewise.collective.builders import build
from wirewise.collective.maxflow import capacities
from wirewise.errors import PlanError
from wirewise.planners.collective import PLANNERS, CollectiveProblem, deadline
from wirewise.planners.collective.auto import choose
from wirewise.planners.collective.deadline import Deadline, DeadlineReached
from wirewise.planners.collective.forest import forest, synthesize
from wirewise.planners.collective.forest.packing import grow
from wirewise.planners.collective.forest.rates import exact_rate
from wirewise.planners.collective.forest.splitting import direct_paths
from wirewise.planners.collective.segments import with_best_segments
from wirewise.planners.collective.taccl import PROFILES, SKETCHES
from wirewise.planners.collective.taccl import synthesize as taccl
from wirewise.planners.collective.taccl.derive import derive_topology
from wirewise.planners.collective.taccl.instance import instance
from wirewise.planners.collective.taccl.solver import matchings, solve
from wirewise.planners.collective.trees import shortest_path_trees
from wirewise.topology import preset

NO_TIME_S = 1e-9


class Clock:
    """Work that grows by one second whenever somebody looks."""

    def __init__(self, each_s=1.0):
        self.now_s, self.each_s, self.looks = 0.0, each_s, 0

    def charge(self, seconds):
        pass

    def spent_s(self):
        self.looks += 1
        self.now_s += self.each_s
        return self.now_s


@pytest.fixture
def hurried(monkeypatch):
    """Planning without the second that first answers may take."""
    for module in (forest, taccl):
        monkeypatch.setattr(sys.modules[module.__module__], "_LEAST_S", 0.0)


def problem(net, collective="all_gather", **rest):
    return CollectiveProblem(network=net, collective=collective, size_bytes=4e6, **rest)


def test_a_deadline_passes():
    Deadline().check()
    assert Deadline(100.0).left_s > 99.0
    late = Deadline(0.0)
    assert late.left_s <= 0
    with pytest.raises(DeadlineReached):
        late.check()


@pytest.mark.sweep
@pytest.mark.parametrize("method", list(PLANNERS))
@pytest.mark.parametrize("net", [groups([4, 4], 1e9, 1e8), torus(3, 3)], ids=lambda n: n.name)
def test_without_time_every_planner_has_a_program(hurried, method, net):
    served = 0
    for collective in COLLECTIVES:
        try:
            found = PLANNERS[method](problem(net, collective, root=1), time_budget_s=NO_TIME_S)
        except PlanError as error:
            assert "expected" in str(error), error  # not what this planner plans
            continue
        check(found.program)
        assert found.program.collective == collective
        served += 1
    assert served >= (3 if method == "blink" else 5)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("net", ["ndv2x2", "h4"])
def test_a_forest_without_time_is_one_tree_a_root(hurried, net, collective):
    made = network(preset("h4")) if net == "h4" else machine_network(net)
    program = synthesize(problem(made, collective, root=2), time_limit_s=NO_TIME_S)
    check(program)
    # Whole blocks: no root divides its own.
    assert program.chunks == (1 if collective in ("broadcast", "reduce") else made.ranks)


def test_a_forest_stops_soon_after_its_deadline(hurried, monkeypatch):
    made, ranks = machine_network("dgx-1v"), tuple(range(8))
    whole = Clock(0.0)
    monkeypatch.setattr(deadline, "work", whole)
    packed = forest(made, dict.fromkeys(ranks, 1), ranks)
    assert whole.looks > 100
    clock = Clock()
    monkeypatch.setattr(deadline, "work", clock)
    found = forest(made, dict.fromkeys(ranks, 1), ranks, time_limit_s=20.0)
    assert 20 <= clock.looks <= 23
    # In time there are many trees, each from one root to all ranks; now one a root.
    assert len(found.trees) == 8 < len(packed.trees)
    assert found.seconds(made) >= packed.seconds(made)


def test_splitting_and_packing_look_at_the_deadline():
    made, ranks = machine_network("dgx-a100x2"), tuple(range(16))
    supply = np.zeros(len(made.vertices), np.int64)
    supply[: made.ranks] = 1
    scaled = exact_rate(capacities(made), supply, ranks)
    with pytest.raises(DeadlineReached):
        direct_paths(made, scaled, supply, ranks, ranks, deadline=Deadline(0.0))
    with pytest.raises(DeadlineReached):
        grow(scaled.found, dict.fromkeys(ranks, 1), ranks, Deadline(0.0))


def test_quickest_trees_pass_over_others_and_name_what_is_out_of_reach():
    (tree,) = shortest_path_trees(ring(5, both=False), (3,), (0, 1, 3))
    assert tree.edges == ((3, 4), (4, 0), (0, 1))
    apart = ring(4, both=False)
    with pytest.raises(PlanError, match="from rank 0 to rank 1"):
        shortest_path_trees(replace(apart, edges=apart.edges[1:]), (0,), (0, 1))


def test_taccl_with_a_sketch_takes_the_time_of_one_matching(hurried):
    sketch, net = SKETCHES["ndv2-n1"], sketched_network(PROFILES["ndv2-1MB"], 1)
    program = taccl(problem(net), sketch=sketch, time_limit_s=NO_TIME_S)
    check(program)
    assert program.name != "greedy"


def test_taccl_keeps_the_first_matching(hurried, monkeypatch):
    net = torus(3, 3)
    logical = derive_topology(net, 1e5)
    clock = Clock(0.0)
    monkeypatch.setattr(deadline, "work", clock)
    asked = instance(logical, "all_gather", 1, deadline=Deadline(1.0))
    assert matchings(asked, time_limit_s=1e-9)
    # The deadline passes before a second one ends.
    clock.now_s = 2.0
    with pytest.raises(DeadlineReached):
        matchings(asked)
    monkeypatch.setattr(deadline, "work", work)
    result = solve(instance(logical, "all_gather", 1), problem(net), time_limit_s=NO_TIME_S)
    check(result.program)
    assert result.routing.size == (0, 0)


def test_auto_shares_what_is_left_among_those_it_asks(monkeypatch):
    clock, shares = Clock(0.0), []

    def uses_its_share(wanted, *, time_limit_s, seed):
        shares.append(time_limit_s)
        clock.now_s += time_limit_s / 2
        return build("all_gather", "ring", 5)

    monkeypatch.setattr(deadline, "work", clock)
    # Far from the bound, for latencies, so that all are asked.
    far = problem(switch(5, latency_s=1e-2))
    choose(far, dict.fromkeys("abc", uses_its_share), time_limit_s=12.0)
    # A third of 12 s; half of the 10 s that are left then; all of what is left after that.
    assert shares == pytest.approx([4.0, 5.0, 7.5])
    assert clock.now_s <= 12.0


def test_segments_without_time_stay_one():
    program, net = build("broadcast", "chain", 6), switch(6)
    quick, slow = (with_best_segments(program, net, 64e6, time_limit_s=s) for s in (60.0, 0.0))
    assert quick[0].segments > 1 == slow[0].segments
    assert quick[1] < slow[1]


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_p2_a_forest_that_is_cut_short_says_so_and_is_no_worse_than_what_is_known(hurried, collective):
    wanted = problem(network(preset("dgx-h100x2")), collective)
    found = PLANNERS["forest"](wanted, time_budget_s=NO_TIME_S)
    alone, known_s = synthesize(wanted, time_limit_s=NO_TIME_S), choose(wanted, {}, gain=0.0).seconds
    assert found.predicted_s <= known_s < with_best_segments(alone, wanted.network, wanted.size_bytes)[1]
    assert f"the time limit of {NO_TIME_S:g} s was reached, and" in found.notes[0]
    assert f"is quicker than {alone.name}" in found.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "greedy", "taccl", "sccl", "forest"])
def test_a_busy_machine_finds_the_same_plan(monkeypatch, method):
    """Limits count work: with clocks that run away, as where others have the processors, nothing changes."""
    wanted = problem(groups([4, 4], 1e9, 1e8))

    def found():
        plan = PLANNERS[method](wanted, time_budget_s=3.0)
        return replace(plan, synthesis_s=0.0)

    quiet = found()
    late = itertools.count(0.0, 3600.0)
    for name in ("monotonic", "perf_counter", "process_time"):
        monkeypatch.setattr(time, name, lambda: next(late))
    assert found() == quiet
