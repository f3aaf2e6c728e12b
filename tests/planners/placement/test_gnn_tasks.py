"""Placements: rules, the search against all placements, room, expected flows."""

from itertools import product

import msgspec
import numpy as np
import pytest
from benchmarks.random_tasks import random_tasks

from tests.planners.cache.problems import block_problem
from tests.sim.flows.helpers import links, mixed_links
from wirewise.cost import Links
from wirewise.errors import InputError, PlanError
from wirewise.graph.sampling import seed_batches
from wirewise.planners import cache
from wirewise.planners.placement import (
    METHODS,
    PLANNERS,
    STARTS,
    VOLUMES,
    PlacementProblem,
    expected_rows,
    first_fit,
    from_graph,
    problem_of,
    sampled_rows,
    search,
)
from wirewise.sim.flows import FlowSimulator
from wirewise.topology import Device, Host, Link, Switch, Topology, lab_hosts
from wirewise.trace import Flow, TaskSet, TrainingTask

HOSTS = tuple(f"host{h}" for h in range(4))


def mixed(seed, **sizes):
    return PlacementProblem(random_tasks(seed=seed, **sizes), HOSTS, mixed_links(seed))


@pytest.fixture(scope="module")
def problem():
    return mixed(1)


@pytest.mark.parametrize("method", METHODS)
def test_p4_plans_respect_room_and_fixed_places(problem, method):
    found = PLANNERS[method](problem, steps=40, seed=3)
    found.check(lab_hosts(["1gbit"] * 4))
    places = np.array([task.host for task in found.tasks])
    assert problem.fits(places)
    for task, host in zip(problem.tasks.tasks, found.tasks, strict=True):
        assert not task.host or found.hosts[host.host] == task.host
    assert found.predicted_s == pytest.approx(problem.simulator.seconds(places))
    assert found.predicted_s >= found.lower_bound_s


def test_p4_the_search_is_deterministic_and_never_worse_than_its_start(problem):
    start = STARTS["random"](problem, seed=5)
    found = [search(problem, start, steps=60, seed=2) for _ in range(2)]
    assert (found[0].places == found[1].places).all() and found[0].seconds == found[1].seconds
    assert found[0].seconds <= found[0].start_s == problem.simulator.seconds(start)
    assert problem.fits(found[0].places)
    hot = search(problem, start, steps=60, beta=0.0, seed=2)
    assert hot.seconds <= hot.start_s
    assert search(problem, start, steps=0).places.tolist() == start.tolist()


def test_p4_gain_over_colocated_tasks_on_mixed_interfaces():
    """The gain is at least 10 % on average in 250 steps; the benchmark shows all six seeds of more steps."""
    gains = []
    for seed in range(3):
        found = PLANNERS["gnn-tasks"](mixed(seed), steps=250, seed=seed)
        gains.append(1 - found.predicted_s / found.colocated_s)
    assert min(gains) >= 0 and np.mean(gains) >= 0.1


@pytest.mark.parametrize("seed", range(3))
def test_p4_the_best_of_all_placements_is_found(seed):
    """Five tasks that can move among three hosts: within 2 % of the best of all 243 placements in 2000 steps."""
    tasks = random_tasks(hosts=3, workers=2, samplers=1, iterations=3, worker_room=2, seed=seed)
    few = PlacementProblem(tasks, HOSTS[:3], mixed_links(seed, 3))
    assert len(few.free) == 5
    best = np.inf
    for hosts in product(range(3), repeat=5):
        places = few.fixed.copy()
        places[few.free] = hosts
        if few.fits(places):
            best = min(best, few.simulator.seconds(places))
    start = first_fit(few)
    found = search(few, start, steps=2000, seed=seed)
    assert best * (1 - 1e-9) <= found.seconds <= 1.02 * best
    assert found.simulated <= 243


def test_p4_a_plan_is_never_slower_than_a_rule(problem):
    found = PLANNERS["gnn-tasks"](problem, steps=0)
    rules = [PLANNERS[rule](problem).predicted_s for rule in ("colocated", "store-affine")]
    assert found.predicted_s == min(rules)
    assert PLANNERS["gnn-tasks"](problem, steps=40).predicted_s <= min(rules)


def test_hosts_that_are_alike_are_simulated_once():
    tasks = TaskSet(
        iterations=1,
        tasks=(
            TrainingTask(name="store", kind="store", host="host0"),
            TrainingTask(name="s", kind="sampler", worker="w"),
            TrainingTask(name="w", kind="worker"),
        ),
        flows=(
            Flow(source="store", target="s", size_bytes=4.0),
            Flow(source="s", target="w", size_bytes=2.0),
        ),
    )
    alike = PlacementProblem(tasks, HOSTS, links([1.0] * 4))
    found = search(alike, np.array([0, 1, 1]), steps=300, beta=0.0)
    # Of 16 placements five differ: together at the store, together away, one of them away, both away and apart.
    assert found.simulated == 5
    assert found.seconds == 0.0


def test_without_room_for_colocation_the_search_starts_from_a_packing():
    tasks = random_tasks(workers=4, samplers=2, iterations=2)
    room = {"host0": {"gpu": 4.0, "cpu": 0.0}, **{host: {"gpu": 0.0, "cpu": 3.0} for host in HOSTS[1:]}}
    tight = PlacementProblem(msgspec.structs.replace(tasks, hosts=room), HOSTS, mixed_links(0))
    found = PLANNERS["gnn-tasks"](tight, steps=50)
    assert found.colocated_s == 0.0
    assert all(task.host == 0 for task in found.tasks if task.kind == "worker")
    with pytest.raises(
        PlanError,
        match=r"workers with their samplers do not fit: .* worker0, sampler0\.0, sampler0\.1 find no host",
    ):
        PLANNERS["colocated"](tight)


@pytest.mark.parametrize(
    ("room", "told"),
    [
        (
            {"gpu": 1.0, "cpu": 9.0},
            "'gpu' is short: demands add up to more.*demand 6 of it, hosts have 4, at most 1",
        ),
        ({"gpu": 9.0, "cpu": 0.5}, "'cpu' is short"),
        ({"cpu": 9.0}, "'gpu' is short: .*hosts have 0"),
    ],
)
def test_what_cannot_fit_names_the_resource_that_is_short(room, told):
    tasks = msgspec.structs.replace(random_tasks(iterations=1), hosts=dict.fromkeys(HOSTS, room))
    with pytest.raises(PlanError, match=told):
        PlacementProblem(tasks, HOSTS, mixed_links(0))


def test_pieces_that_do_not_fit_together_are_refused():
    """Three tasks of 2 on two hosts of 3: enough in all, but no host takes two."""
    tasks = TaskSet(
        iterations=1,
        tasks=tuple(TrainingTask(name=f"w{n}", kind="worker", demand={"gpu": 2.0}) for n in range(3)),
        flows=(),
        hosts={"a": {"gpu": 3.0}, "b": {"gpu": 3.0}},
    )
    with pytest.raises(PlanError, match=r"'gpu' is short: w\d find no host, the most left is 1"):
        first_fit(PlacementProblem(tasks, ("a", "b"), links([1.0, 1.0])))


def test_other_refusals(problem):
    with pytest.raises(InputError, match="there is no host 'host3'; expected one of: host0, host1, host2"):
        PlacementProblem(random_tasks(), HOSTS[:3], mixed_links(0, 3))
    with pytest.raises(InputError, match="does not fit"):
        search(problem, np.zeros(len(problem.fixed), np.int64))


def test_rates_of_hosts_come_from_links_between_hosts():
    topology = Topology(
        name="two",
        hosts=(Host(name="a"), Host(name="b")),
        devices=tuple(Device(name=f"{host}{n}", host=host) for host, n in (("a", 0), ("a", 1), ("b", 0))),
        switches=(Switch(name="pcie", kind="pcie", host="a"), Switch(name="net", kind="network")),
        links=(
            Link(source="a0", target="pcie", latency_s=0, bandwidth_bytes_per_s=9e9),
            Link(source="pcie", target="net", latency_s=0, bandwidth_bytes_per_s=3e9),
            Link(source="a", target="net", latency_s=0, bandwidth_bytes_per_s=1e9, direction="one"),
            Link(source="b", target="net", latency_s=0, bandwidth_bytes_per_s=2e9),
        ),
    )
    found = Links.of(topology)
    assert found.bandwidth_out_bytes_per_s.tolist() == [4e9, 2e9]
    assert found.bandwidth_in_bytes_per_s.tolist() == [3e9, 2e9]
    worker = TaskSet(
        iterations=1, tasks=(TrainingTask(name="w", kind="worker", demand={"gpu": 1}),), flows=()
    )
    assert problem_of(worker, topology).capacity.tolist() == [[2.0], [1.0]]
    lonely = msgspec.structs.replace(topology, links=topology.links[:3])
    with pytest.raises(InputError, match="host 'b' of topology 'two' has no link"):
        Links.of(lonely)


@pytest.fixture(scope="module")
def sampled():
    return block_problem(32)


def counted_rows(problem, train, batches, size=0, kept=()):
    """Mean rows of each store over sampled batches of other epochs, seeds included; only those of a size, if given."""
    sampler, found = problem.sampler(), []
    for epoch in range(10, 16):
        for number, seeds in enumerate(seed_batches(train, size, epoch=epoch, seed=1, batches=batches)):
            if size in (0, len(seeds)):
                batch = sampler.sample(seeds, epoch=epoch, batch=number)
                needed = batch.n_id[~np.isin(batch.n_id, kept)]
                found.append(np.bincount(problem.owner[needed], minlength=problem.machines))
    return np.mean(found, axis=0)


@pytest.mark.parametrize("volumes", VOLUMES)
def test_flows_of_a_graph_are_those_that_batches_need(sampled, volumes):
    """Flows of other parts' stores within 8 % of the bytes counted over other batches, with caches and without.

    A part's own store sends up to 15 % less than expected: draws that lead back to seeds count twice.
    """
    found = cache.PLANNERS["vip"](sampled, alpha=0.4)
    for cached in (None, found):
        tasks = from_graph(
            sampled,
            HOSTS[:3],
            row_bytes=100.0,
            model_bytes=1e5,
            workers_per_host=2,
            samplers=2,
            cached=cached,
            iterations=24,
            volumes=volumes,
        )
        sizes = {(flow.source, flow.target): np.mean(tasks.numbers(flow.size_bytes)) for flow in tasks.flows}
        for k in range(3):
            train = sampled.train[k][1::2][::2]
            kept = () if cached is None else cached.machines[k].ids
            batches = (
                {"batches": None, "size": 16}
                if volumes == "expected"
                else {"batches": round(len(train) / 16)}
            )
            counted = 100.0 * counted_rows(sampled, train, **batches, kept=kept)
            given = np.array([sizes[f"store{part}", f"sampler{k}.1.0"] for part in range(3)])
            most = np.where((np.arange(3) == k) & (volumes == "expected"), 1.15, 1.08)
            assert (given <= most * counted).all() and (given >= 0.92 * counted).all()
            whole = 100.0 * counted_rows(sampled, train, **batches).sum()
            assert sizes[f"sampler{k}.1.0", f"worker{k}.1"] == pytest.approx(whole, rel=0.1)


def test_drawn_rows_are_those_of_the_batches(sampled):
    train = sampled.train[1]
    rows = sampled_rows(sampled, train, 16, 15, stream=2)
    count = round(len(train) / 16)
    for number in (3, count):
        epoch, place = divmod(number, count)
        seeds = seed_batches(train, 16, epoch=epoch, seed=sampled.seed, batches=count)[place]
        needed = sampled.sampler().sample(seeds, epoch=epoch, batch=2 * count + place).n_id
        assert rows[number].tolist() == np.bincount(sampled.owner[needed], minlength=3).tolist()
    assert sampled_rows(sampled, train[:0], 16, 2).tolist() == [[0.0] * 3] * 2


def test_a_graph_is_placed_before_anything_ran(sampled):
    tasks = from_graph(sampled, HOSTS[:3], row_bytes=400.0, model_bytes=1e6, worker_s=0.001, servers=2)
    few = PlacementProblem(tasks, HOSTS[:3], links([6e6, 5e7, 5e7]))
    found = PLANNERS["gnn-tasks"](few, steps=300)
    assert found.predicted_s < found.colocated_s
    assert FlowSimulator(tasks, few.links).seconds([t.host for t in found.tasks]) == found.predicted_s
    rows = expected_rows(sampled, sampled.train[0], 32)
    assert rows.argmax() == 0
    with pytest.raises(InputError, match="unknown volumes 'some'; expected one of: drawn, expected"):
        from_graph(sampled, HOSTS[:3], row_bytes=1.0, model_bytes=1.0, volumes="some")
    with pytest.raises(InputError, match="a host for each of 3 parts"):
        from_graph(sampled, HOSTS, row_bytes=1.0, model_bytes=1.0)
