"""Placed tasks carried out on hosts that are threads: grants, order, bytes, precedence, hosts that leave."""

import time

import numpy as np
import pytest
from benchmarks.random_tasks import random_tasks

from tests.runtime.flows.hosts import on_hosts
from tests.sim.flows.helpers import links
from wirewise.errors import InputError, PeerError, PlanError
from wirewise.planners.placement import PLANNERS, PlacementProblem
from wirewise.runtime.flows import ORDERS, FlowEngine, execute
from wirewise.sim.flows import expand
from wirewise.trace import Flow, TaskSet, TrainingTask


@pytest.mark.parametrize("policy", ORDERS)
def test_every_op_ends_after_what_it_waits_for(policy):
    """Three hosts, all flows real: each op has its times, and on each host's own clock none begins too early."""
    tasks = random_tasks(
        hosts=3, workers=3, iterations=3, batch_bytes=2e5, gradient_bytes=5e4, sampler_s=0.001, worker_s=0.004
    )
    problem = PlacementProblem(tasks, ("host0", "host1", "host2"), links([5e8] * 3))
    found = PLANNERS["random"](problem, policy=policy, seed=1)
    times = on_hosts(3, lambda peers: execute(found, tasks, peers, problem.links, chunk_bytes=20_000))
    assert all(isinstance(one, tuple) for one in times), times
    graph, place = expand(tasks), np.array([task.host for task in found.tasks])
    begins, ends = place[graph.source], place[graph.target]
    for host, (start_s, end_s) in enumerate(times):
        assert (np.isfinite(start_s) == (begins == host)).all()
        assert (np.isfinite(end_s) == (ends == host)).all()
        held = (begins == host) & (ends == host)
        assert (end_s[held] - start_s[held] >= graph.duration[held] - 1e-9).all()
        for op in np.flatnonzero(ends == host):
            followers = graph.successors[graph.indptr[op] : graph.indptr[op + 1]]
            here = followers[begins[followers] == host]
            assert (start_s[here] >= end_s[op]).all()


def test_flows_without_bytes_arrive():
    tasks = TaskSet(
        iterations=2,
        tasks=(
            TrainingTask(name="store", kind="store", host="a"),
            TrainingTask(name="s", kind="sampler", worker="w", host="b"),
            TrainingTask(name="w", kind="worker", host="a"),
        ),
        flows=(
            Flow(source="store", target="s", size_bytes=(0.0, 7.0)),
            Flow(source="s", target="w", size_bytes=(3.0, 0.0)),
        ),
    )
    problem = PlacementProblem(tasks, ("a", "b"), links([1e8] * 2))
    found = PLANNERS["colocated"](problem)
    times = on_hosts(2, lambda peers: execute(found, tasks, peers, problem.links))
    assert all(isinstance(one, tuple) for one in times), times
    assert np.isfinite(np.nanmax([one.end_s for one in times], axis=0)).all()


def test_a_host_that_leaves_is_named():
    tasks = random_tasks(hosts=2, workers=2, iterations=50, batch_bytes=2e5, sampler_s=0.001, worker_s=0.004)
    problem = PlacementProblem(tasks, ("host0", "host1"), links([1e8] * 2))
    found = PLANNERS["random"](problem)

    def work(peers):
        if peers.rank == 1:
            peers.transport.barrier("the start of a plan")
            return None
        return execute(found, tasks, peers, problem.links)

    error = on_hosts(2, work)[0]
    assert isinstance(error, PeerError) and "host 1 is gone" in str(error)


@pytest.mark.slow
def test_a_silent_host_is_named():
    tasks = random_tasks(hosts=2, workers=1, iterations=1, batch_bytes=1e4)
    problem = PlacementProblem(tasks, ("host0", "host1"), links([1e8] * 2))
    found = PLANNERS["colocated"](problem)

    def work(peers):
        if peers.rank == 1:
            peers.transport.barrier("the start of a plan")
            time.sleep(4)
            return None
        return execute(found, tasks, peers, problem.links)

    error = on_hosts(2, work, timeout_s=1.0)[0]
    assert isinstance(error, PeerError) and "host 0 waited 1 s for" in str(error) and "[1]" in str(error)


def test_refusals():
    tasks = random_tasks(hosts=2, workers=1, iterations=1)
    problem = PlacementProblem(tasks, ("host0", "host1"), links([1e8] * 2))
    split = PLANNERS["colocated"](problem, policy="mrtf")

    def work(peers):
        with pytest.raises(
            InputError, match="cannot follow order 'mrtf'; expected one of: iter, fifo, maxmin, oes"
        ):
            execute(split, tasks, peers, problem.links)
        with pytest.raises(PlanError, match="other tasks"):
            execute(split, random_tasks(hosts=2, workers=2, iterations=1), peers, problem.links)
        with pytest.raises(InputError, match="above 0"):
            FlowEngine(peers, 1.0, 0.0)

    assert on_hosts(2, work) == [None, None]
