from __future__ import annotations

import numpy as np
import pytest

from tests.collective_networks import SECTION_7, machine_network, random_network
from wirewise.collective import Collective, Network, check, network
from wirewise.collective.bounds import bound, busiest_edge_s, two_phase_s
from wirewise.collective.network import Edge
from wirewise.errors import PlanError
from wirewise.planners.collective.forest import forest, synthesize
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.topology import preset

LARGE = ("dgx-2x2", "dgx-2-relayedx2", "mi250x2")
TREES: tuple[Collective, ...] = ("broadcast", "reduce", "all_gather", "reduce_scatter")


def _problem(made: Network, collective: Collective, **rest: object) -> CollectiveProblem:
    return CollectiveProblem(network=made, collective=collective, size_bytes=1e9, **rest)  # type: ignore[arg-type]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in SECTION_7]
)
def test_b1_forests_of_published_machines_reach_the_bound(name: str) -> None:
    made = machine_network(name)
    ranks = tuple(range(made.ranks))
    found = forest(made, dict.fromkeys(ranks, 1), ranks, fixed_routes=False, time_limit_s=600.0)
    assert found.seconds(made) <= float(SECTION_7[name]) * (1 + 1e-9)
    for root in ranks:
        trees = [tree for tree in found.trees if tree.root == root]
        assert sum(tree.weight for tree in trees) == 1
        for tree in trees:
            assert sorted([root, *(target for _, target in tree.edges)]) == list(ranks)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * n.endswith("00x2")) for n in SECTION_7 if n not in LARGE],
)
def test_b1_programs_reach_the_bound(name: str) -> None:
    made = machine_network(name)
    for collective in TREES:
        program = synthesize(_problem(made, collective))
        check(program)
        least = bound(made, collective, 1e9).seconds
        assert busiest_edge_s(program, made, 1e9) <= least * (1 + 1e-9), collective


@pytest.mark.slow
def test_two_gpus_that_share_a_port_lose_what_routes_do_not_use() -> None:
    # The bound counts on data from a GPU to its neighbour past their port, and routes take the switch.
    made = machine_network("dgx-2x2")
    program = synthesize(_problem(made, "all_gather"), time_limit_s=600.0)
    check(program)
    loss = busiest_edge_s(program, made, 1e9) / bound(made, "all_gather", 1e9).seconds
    assert 137.5 / 131.25 <= loss <= 1.05


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", ["dgx-1v", "ndv2x2", "dgx-a100x2", "h4", "h4-quarter"])
def test_all_reduce_takes_two_phases_at_the_bound(name: str) -> None:
    made = network(preset("h4")) if name == "h4" else machine_network(name)
    program = synthesize(_problem(made, "all_reduce"))
    check(program)
    assert busiest_edge_s(program, made, 1e9) == pytest.approx(two_phase_s(made, 1e9), rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_divided_edges_bring_directed_networks_to_the_bound(seed: int) -> None:
    made = random_network(seed, 5)
    program = synthesize(_problem(made, "all_reduce"), most_trees=10_000)
    check(program)
    least = bound(made, "all_reduce", 1e9).seconds
    assert busiest_edge_s(program, made, 1e9) == pytest.approx(least, rel=0.01)


def test_one_switch_makes_trees_of_one_hop() -> None:
    assert synthesize(_problem(machine_network("dgx-a100x1"), "all_gather")).steps == 1
    assert synthesize(_problem(machine_network("dgx-2x1"), "broadcast")).steps == 2


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(25))
def test_uneven_directed_networks_without_switches_reach_the_bound(seed: int) -> None:
    made = random_network(seed, 5 + seed % 4)
    root = seed % made.ranks
    for collective in (*TREES, "all_reduce"):
        program = synthesize(_problem(made, collective, root=root), most_trees=10_000)
        check(program)
        twice = collective == "all_reduce"
        least = two_phase_s(made, 1e9) if twice else bound(made, collective, 1e9, root=root).seconds
        assert busiest_edge_s(program, made, 1e9) <= least * (1 + 1e-9), collective


@pytest.mark.parametrize("collective", [*TREES, "all_reduce"])
def test_part_of_a_machine_uses_the_others_as_relays(collective: Collective) -> None:
    made, members = machine_network("dgx-1v"), (0, 1, 4, 6, 7)
    program = synthesize(_problem(made, collective, root=4, members=members))
    check(program)
    least = bound(made, collective, 1e9, root=4, members=members).seconds
    least = two_phase_s(made, 1e9, members) if collective == "all_reduce" else least
    assert busiest_edge_s(program, made, 1e9) <= least * (1 + 1e-9)


def test_rates_without_a_common_measure_take_few_trees() -> None:
    rng = np.random.default_rng(4)
    edges = tuple(
        Edge(e.source, e.target, e.bandwidth_bytes_per_s * rng.uniform(0.8, 1.0), 0.0)
        for e in network(preset("h4")).edges
    )
    made = Network(name="measured", ranks=4, vertices=tuple("abcd"), edges=edges)
    program = synthesize(_problem(made, "all_gather"), most_trees=16)
    check(program)
    assert busiest_edge_s(program, made, 1e9) <= 1.06 * bound(made, "all_gather", 1e9).seconds
    assert program.chunks <= 4 * 16
    with pytest.raises(PlanError, match="got 0 trees"):
        synthesize(_problem(made, "all_gather"), most_trees=0)


def test_other_collectives_are_turned_down() -> None:
    with pytest.raises(PlanError, match="got all_to_all, which trees do not serve"):
        synthesize(_problem(machine_network("dgx-1v"), "all_to_all"))


def uneven_switches(seed: int, ranks: int = 6) -> Network:
    """Ranks on two joined switches, each port of one rate in and another one out."""
    rng = np.random.default_rng(seed)
    rates = (1e9, 2e9, 5e9, 7e9, 12.5e9, 25e9, 40e9)
    first, second = ranks, ranks + 1
    pairs = [(first, second), (second, first)]
    for rank in range(ranks):
        for switch in {first, int(rng.integers(first, second + 1))}:
            pairs += [(rank, switch), (switch, rank)]
    edges = tuple(Edge(a, b, float(rng.choice(rates)), 1e-6) for a, b in pairs)
    names = tuple(f"v{n}" for n in range(ranks + 2))
    return Network(name=f"uneven-{seed}", ranks=ranks, vertices=names, edges=edges)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce", "broadcast"])
def test_switches_that_take_in_more_than_they_let_out(collective: Collective, seed: int) -> None:
    net, size_bytes = uneven_switches(seed), 64_000_000
    program = synthesize(CollectiveProblem(network=net, collective=collective, size_bytes=size_bytes))
    check(program)
    least_s = bound(net, collective, size_bytes).seconds
    # The bound knows neither that a switch sends nothing twice nor that two ranks have one route: it lies below.
    assert least_s * (1 - 1e-9) <= busiest_edge_s(program, net, size_bytes) <= 2 * least_s * (1 + 1e-6)
