from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from functools import cache

import msgspec
import networkx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.collective_networks import machine_network
from wirewise.collective import Network, Program, check, network
from wirewise.collective.bounds import bound, busiest_edge_s
from wirewise.collective.builders import build
from wirewise.errors import InputError, PlanError
from wirewise.planners.collective.blink import (
    Channel,
    ChunkSize,
    equal_finish,
    links,
    packed_trees,
    strength,
    synthesize,
    tree_rate,
)
from wirewise.planners.collective.blink.arborescence import FAR, pack, shortest_tree
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.sim.programs import simulate
from wirewise.topology import preset

# Broadcast rate from the best root, and all-reduce rate, in NVLinks, with how many subsets of a DGX-1V have them.
PUBLISHED = {
    3: {("0", "0"): 24, ("1", "1"): 20, ("2", "2"): 8, ("3", "5/2"): 4},
    4: {("0", "0"): 14, ("1", "1"): 36, ("2", "2"): 14, ("2", "3/2"): 2, ("3", "7/3"): 2, ("4", "3"): 2},
    5: {("1", "1"): 24, ("2", "2"): 24, ("3", "5/2"): 4, ("3", "9/4"): 4},
    6: {
        ("2", "2"): 12,
        ("3", "12/5"): 2,
        ("3", "5/2"): 6,
        ("3", "7/3"): 4,
        ("4", "13/5"): 2,
        ("4", "14/5"): 2,
    },
    7: {("4", "3"): 8},
    8: {("6", "24/7"): 1},
}


def _counts(name: str) -> NDArray[np.int64]:
    capacity = links(machine_network(name))
    return np.round(capacity / capacity[capacity > 0].min()).astype(np.int64)


def _classes(name: str) -> list[NDArray[np.int64]]:
    """Joined parts of 3 to 8 GPUs, one of each kind."""
    counts, found = _counts(name), list[tuple[networkx.Graph, NDArray[np.int64]]]()
    same = networkx.algorithms.isomorphism.numerical_edge_match("weight", 0)
    for size in range(3, 9):
        for subset in itertools.combinations(range(8), size):
            part = counts[np.ix_(subset, subset)]
            graph = networkx.from_numpy_array(part)
            if networkx.is_connected(graph) and not any(
                len(graph) == len(other)
                and graph.size("weight") == other.size("weight")
                and networkx.is_isomorphic(graph, other, edge_match=same)
                for other, _ in found
            ):
                found.append((graph, part))
    return [part for _, part in found]


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("size", PUBLISHED)
def test_a2_rates_of_all_parts_of_a_dgx_1v(size: int) -> None:
    counts, found = _counts("dgx-1v"), Counter[tuple[str, str]]()
    for subset in itertools.combinations(range(8), size):
        part = counts[np.ix_(subset, subset)]
        best = max(tree_rate(part.astype(float), root) for root in range(size))
        found[f"{best:g}", str(strength(part))] += 1
    assert found == PUBLISHED[size]


@pytest.mark.parametrize(
    ("name", "sizes"), [("dgx-1v", [5, 14, 14, 10, 2, 1]), ("dgx-1p", [2, 4, 3, 3, 1, 1])]
)
def test_a2_numbers_of_kinds_of_parts(name: str, sizes: list[int]) -> None:
    found = Counter(len(part) for part in _classes(name))
    assert [found[size] for size in range(3, 9)] == sizes and sum(sizes) in (46, 14)


@pytest.mark.parametrize("name", ["dgx-1v", "dgx-1p"])
def test_b2_few_trees_near_the_optimum_for_all_kinds_of_parts(name: str) -> None:
    for part in _classes(name):
        capacity = part.astype(float)
        root = max(range(len(part)), key=lambda r: tree_rate(capacity, r))
        best = tree_rate(capacity, root)
        trees, weights = pack(capacity, root, epsilon=0.1)
        assert weights.sum() >= 0.95 * best
        _check_fits(capacity, trees, weights)
        chosen = packed_trees(capacity, root)
        # Weights are rates in units of the narrowest link, which may be two NVLinks.
        unit = capacity[capacity > 0].min()
        rate = float(sum(tree.weight for tree in chosen)) * unit
        assert rate >= 0.95 * best and len(chosen) <= best
        if len(part) == 8 and name == "dgx-1v":
            # Six trees of one NVLink each; equal ones are one tree of twice the weight.
            assert rate == 6 and all(tree.weight.denominator == 1 for tree in chosen)


@pytest.mark.parametrize("name", ["dgx-1v", "dgx-1p"])
def test_undirected_trees_of_all_kinds_of_parts(name: str) -> None:
    for part in _classes(name):
        capacity = part.astype(float)
        trees, weights = pack(capacity, 0, both=True)
        assert weights.sum() >= 0.9 * strength(part)
        chosen = packed_trees(capacity, 0, both=True)
        rate = float(sum(tree.weight for tree in chosen)) * capacity[capacity > 0].min()
        assert 0.95 * strength(part) - 1e-6 <= rate <= strength(part) + 1e-6
        load = np.zeros_like(capacity)
        for tree in chosen:
            for a, b in tree.edges:
                load[a, b] += tree.weight
                load[b, a] += tree.weight
        assert (load * capacity[capacity > 0].min() <= capacity + 1e-6).all()
        assert len(trees) == len(weights)


def _check_fits(
    capacity: NDArray[np.float64], trees: NDArray[np.int64], weights: NDArray[np.float64]
) -> None:
    load = np.zeros_like(capacity)
    for tree, weight in zip(trees, weights, strict=True):
        for target, source in enumerate(tree.tolist()):
            if source >= 0:
                load[source, target] += weight
    assert (load <= capacity * (1 + 1e-9)).all()


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_shortest_trees_agree_with_networkx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 10))
    length = np.where(rng.random((n, n)) < 0.7, rng.integers(1, 20, (n, n)).astype(float), FAR)
    length[0, 1:] = np.minimum(length[0, 1:], 50.0)
    graph = networkx.DiGraph()
    for a, b in np.argwhere(length < FAR).tolist():
        if a != b and b != 0:
            graph.add_edge(a, b, weight=length[a, b])
    expected = networkx.minimum_spanning_arborescence(graph).size("weight")
    parent = shortest_tree(length, 0)
    assert sum(length[p, v] for v, p in enumerate(parent.tolist()) if p >= 0) == expected


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_strength_is_the_least_over_all_partitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    upper = np.triu(rng.integers(0, 5, (n, n)), 1)
    capacity = upper + upper.T
    expected = min(
        Fraction(
            sum(int(capacity[a, b]) for a, b in itertools.combinations(range(n), 2) if parts[a] != parts[b]),
            len(set(parts)) - 1,
        )
        for parts in itertools.product(range(n), repeat=n)
        if len(set(parts)) > 1
    )
    assert strength(capacity) == expected


def _problem(made: Network, collective: str, size_bytes: float = 1e9, root: int = 0) -> CollectiveProblem:
    return CollectiveProblem(network=made, collective=collective, size_bytes=size_bytes, root=root)  # type: ignore[arg-type]


@pytest.mark.sweep
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
@pytest.mark.parametrize("gpus", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 7), (0, 1, 2, 4), (0, 1, 3)])
def test_programs_on_parts_of_a_dgx_1v(collective: str, gpus: tuple[int, ...]) -> None:
    made = network(preset("dgx-1v"), {"nvlink"}, [f"gpu{n}" for n in gpus])
    program = synthesize(_problem(made, collective, root=len(gpus) - 1))
    check(program)
    capacity = links(made)
    rate = tree_rate(capacity, len(gpus) - 1)
    if collective == "all_reduce":
        rate = float(strength(np.round(capacity / 25e9).astype(np.int64))) * 25e9
    assert busiest_edge_s(program, made, 1e9) <= 1e9 / rate / 0.95


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
def test_one_hop_around_a_switch(collective: str) -> None:
    made = machine_network("dgx-2x1")
    program = synthesize(_problem(made, collective))
    check(program)
    assert program.steps == 2
    least = bound(made, collective, 1e9).seconds  # type: ignore[arg-type]
    assert busiest_edge_s(program, made, 1e9) == pytest.approx(least)


def test_b3_channels_end_together() -> None:
    nvlink, pcie = Channel(100e9), Channel(10e9, 2e-3)
    sizes = equal_finish(1e9, [nvlink, pcie])
    assert sum(sizes) == pytest.approx(1e9)
    # The published form of the split for two channels.
    assert sizes[1] == pytest.approx(1e9 * 10 / 110 - 2e-3 * 10e9 * 100e9 / 110e9)
    assert sizes[0] / 100e9 == pytest.approx(sizes[1] / 10e9 + 2e-3)
    assert equal_finish(1e9, [nvlink, Channel(10e9, 0.5)]) == [1e9, 0.0]
    three = equal_finish(1e9, [Channel(1e9, 0.1), Channel(2e9, 0.3), Channel(3e9, 9.0)])
    assert three == pytest.approx([(1e9 + 0.7e9) / 3 - 0.1e9, 2 * (1e9 + 0.7e9) / 3 - 0.6e9, 0.0])
    with pytest.raises(InputError, match="channels with a bandwidth above 0"):
        equal_finish(1.0, [])


def test_b3_hybrid_of_nvlink_and_pcie_ends_together_in_simulation() -> None:
    topology = preset("dgx-1v")
    ways = [network(topology, {"nvlink"}), network(topology, {"pcie", "socket"})]
    programs = [synthesize(_problem(ways[0], "broadcast")), build("broadcast", "chain", 8)]
    start_s, size = 1e-3, 4e9
    channels = [
        _measured(p, way, near, wait)
        for p, way, near, wait in zip(programs, ways, (0.9 * size, 0.1 * size), (0.0, start_s), strict=True)
    ]
    sizes = equal_finish(size, channels)
    ends = [
        wait + _segmented(p, way, part, 256)
        for p, way, part, wait in zip(programs, ways, sizes, (0.0, start_s), strict=True)
    ]
    assert ends[0] == pytest.approx(ends[1], rel=0.01)
    assert max(ends) < _segmented(programs[0], ways[0], size, 256)


def _measured(program: Program, way: Network, size_bytes: float, wait_s: float) -> Channel:
    """A program as a channel, by its times at two sizes; filling its pipeline counts to the start."""
    small, large = (_segmented(program, way, part * size_bytes, 256) for part in (0.8, 1.2))
    rate = 0.4 * size_bytes / (large - small)
    return Channel(rate, wait_s + small - 0.8 * size_bytes / rate)


def _segmented(program: Program, made: Network, size_bytes: float, segments: int) -> float:
    return simulate(msgspec.structs.replace(program, segments=segments), made, size_bytes).finish_s


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("size_bytes", [1 << 22, 1 << 26, 1 << 30])
@pytest.mark.parametrize("collective", ["broadcast", "all_reduce"])
def test_b4_chunk_sizes_come_near_the_best_within_twelve_probes(collective: str, size_bytes: int) -> None:
    made = machine_network("dgx-1v")
    program = synthesize(_problem(made, collective))

    @cache
    def takes_s(segments: int) -> float:
        return _segmented(program, made, size_bytes, segments)

    def rate(chunk_bytes: int) -> float:
        segments = max(1, round(max(program.chunk_bytes(size_bytes)) / chunk_bytes))
        return size_bytes / takes_s(min(segments, 1024))

    grid = [rate(1 << power) for power in range(14, 29)]
    control, probes = ChunkSize(), 0
    while not control.done and probes < 12:
        control.report(rate(control.size_bytes))
        probes += 1
    assert rate(control.size_bytes) >= 0.95 * max(grid)


def test_chunk_size_goes_up_in_doublings_and_down_in_steps() -> None:
    control, tried = ChunkSize(1000, least_bytes=100, most_bytes=10**6), []
    while not control.done:
        tried.append(control.size_bytes)
        control.report(1.0 / (1 + abs(control.size_bytes - 5000)))
    assert tried[:5] == [1000, 2000, 4000, 8000, 7000] and control.size_bytes == 5000
    control, tried = ChunkSize(1000, least_bytes=100, most_bytes=1000), []
    while not control.done:
        tried.append(control.size_bytes)
        control.report(1.0 / (1 + abs(control.size_bytes - 300)))
    assert tried == [1000, 500, 250, 125] and control.size_bytes == 250
    with pytest.raises(InputError, match="least <= first <= most"):
        ChunkSize(10)
    with pytest.raises(InputError, match="rate of 0"):
        ChunkSize().report(0)


@pytest.mark.parametrize("hosts", [2, 3])
def test_b5_three_phases_send_little_between_servers(hosts: int) -> None:
    made = machine_network(f"dgx-a100x{hosts}")
    servers = [range(8 * n, 8 * n + 8) for n in range(hosts)]
    program = synthesize(_problem(made, "all_reduce"), servers=servers)
    check(program)
    each, sent = program.chunk_bytes(1e9), Counter[int]()
    for t in program.transfers:
        if t.source // 8 != t.target // 8:
            sent[t.source // 8] += each[t.chunk]  # type: ignore[assignment]
    for server in range(hosts):
        assert sent[server] <= 2 * 1e9 * (hosts - 1) / hosts * (1 + 1e-9)


def test_b5_three_phases_over_nvswitches() -> None:
    made = machine_network("dgx-a100x2")
    program = synthesize(_problem(made, "all_reduce"), servers=[range(8), range(8, 16)])
    least = bound(made, "all_reduce", 1e9).seconds
    assert busiest_edge_s(program, made, 1e9) <= 2.5 * least


def test_what_blink_does_not_plan_is_named() -> None:
    made = machine_network("dgx-1v")
    with pytest.raises(PlanError, match="use the planner forest"):
        synthesize(_problem(made, "all_gather"))
    with pytest.raises(PlanError, match="at least two of equal size"):
        synthesize(_problem(made, "all_reduce"), servers=[range(3), range(3, 8)])
    with pytest.raises(PlanError, match="a group of 2 of 8 ranks"):
        synthesize(CollectiveProblem(network=made, collective="reduce", size_bytes=1, members=(0, 1)))
    with pytest.raises(PlanError, match="have no route"):
        synthesize(_problem(machine_network("ndv2x2"), "all_reduce"))
