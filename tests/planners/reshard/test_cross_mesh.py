"""Plans between any two layouts, carried out on arrays (R1), and their times against the bound."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.harness.tiers import spread
from tests.planners.reshard.helpers import MESHES, check, layouts, links_of, tensor
from wirewise.cost import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.reshard import ReshardProblem, bound, cross_mesh
from wirewise.plans import LaidOutTensor, Sharding, loads, parse_sharding
from wirewise.plans.reshard import STRATEGIES
from wirewise.sim import predict

SHAPE = (7, 10, 13)
PAIRS = tuple(itertools.product(MESHES, MESHES))


def plan_between(
    source: str, target: str, shape=(6, 8, 4), *, per_host=2, rates=None, disjoint=True, **knobs
):
    before = parse_sharding(source)
    after = parse_sharding(target, first_rank=len(before.ranks) if disjoint else 0)
    links = links_of(max(*before.ranks, *after.ranks) + 1, per_host)
    if rates is not None:
        links = replace(
            links, bandwidth_out_bytes_per_s=np.array(rates), bandwidth_in_bytes_per_s=np.array(rates)
        )
    return cross_mesh(tensor(before, after, shape[: len(before.dims)]), links, **knobs), links


def sweep(dims: int, pairs, **knobs) -> int:
    count = 0
    for before, after in pairs:
        first = int(np.prod(before))
        for source in layouts(before, dims):
            for target in layouts(after, dims, first):
                links = links_of(first + int(np.prod(after)))
                check(cross_mesh(tensor(source, target, SHAPE[:dims]), links, **knobs))
                count += 1
    return count


def test_one_dimension_between_all_meshes():
    assert sweep(1, PAIRS, strategy="ring", order="size") == 1024


@pytest.mark.sweep
@pytest.mark.parametrize("pair", PAIRS[::7], ids=str)
def test_two_dimensions_between_some_meshes(pair):
    assert sweep(2, [pair]) == 81


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_dimensions_between_all_meshes():
    pairs = spread(PAIRS, 4, 1)
    assert sweep(2, pairs, strategy="ring", order="size") == 81 * len(pairs)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_dimensions_between_all_meshes():
    pairs = spread(PAIRS, 5, 2)
    assert sweep(3, pairs, strategy="ring", order="size") == 256 * len(pairs)


@pytest.mark.sweep
@pytest.mark.parametrize("shape", [(8, 8), (7, 10), (2, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_axes_on_one_dimension_in_either_order(shape, strategy):
    words = ["R,R", "S0,R", "S01,R", "S10,R", "R,S01", "R,S10", "S0,S1", "S1,S0"]
    for source, target in itertools.product(words, words):
        check(plan_between(f"3x2:{source}", f"2x2:{target}", shape, strategy=strategy)[0])


@pytest.mark.parametrize(
    ("source", "target"),
    [("4x2:S0,R", "2x4:R,S1"), ("4x2:S0,S1", "8x1:S0,R"), ("2x4@0,2,1,3,7,6,5,4:S01,R", "2x4:S01,R")],
)
def test_overlapping_meshes_keep_what_they_hold(source, target):
    plan, _ = plan_between(source, target, (8, 12), disjoint=False)
    check(plan)
    assert sum(task.bytes_sent for task in plan.tasks) < 8 * 12 * 4 * 8
    assert any(task.kept for task in plan.tasks)


def test_equal_layouts_send_nothing():
    plan, links = plan_between("2x2:S0,S1", "2x2:S0,S1", disjoint=False)
    check(plan)
    assert (plan.bytes_sent, plan.rounds, plan.predicted_s, plan.bound_s) == (0, 0, 0.0, 0.0)
    assert predict(plan, None, links).step_s == 0.0


def test_equal_placements_on_other_ranks_are_sent():
    plan, _ = plan_between("2x2:S0,S1", "2x2:S0,S1", (4, 4))
    check(plan)
    assert plan.bytes_sent == 4 * 4 * 4


def test_meshes_of_three_axes_and_scalars():
    check(plan_between("2x2x2:S02,S1", "2x1x3:S2,S0", (9, 11), per_host=4)[0])
    check(plan_between("2:", "3:", ())[0])


@pytest.mark.sweep
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("disjoint", [True, False])
def test_addends_are_summed(strategy, disjoint):
    for target in ("2x2:S0,R", "2x2:R,R", "4x1:R,S0"):
        plan, links = plan_between("2x2:S1,R,P0", target, (6, 5), strategy=strategy, disjoint=disjoint)
        check(plan)
        assert all(len(task.adders) == 2 for task in plan.tasks)
        assert predict(plan, None, links).step_s == pytest.approx(plan.predicted_s, rel=1e-9)


def test_rows_of_a_partitioned_graph():
    parts = (((0, 2), (5, 9)), ((2, 5),), ((9, 12),))
    halo = (((0, 4),), ((9, 12), (3, 6)))
    ranks = Sharding(mesh=(3,), ranks=(0, 1, 2), dims=((), ()), rows=parts)
    after = Sharding(mesh=(2,), ranks=(3, 4), dims=((), ()), rows=halo)
    features = Sharding(mesh=(2,), ranks=(3, 4), dims=((), (0,)))
    for target in (after, features):
        check(cross_mesh(tensor(ranks, target, (12, 4)), links_of(5)))
    check(cross_mesh(tensor(features, ranks, (12, 4)), links_of(5)))


def test_several_tensors_travel_together_and_buckets_one_after_the_other():
    source, target = parse_sharding("4:S0,R"), parse_sharding("2x2@2,3,4,5:R,S1")
    tensors = [
        LaidOutTensor(
            name=f"w{n}", shape=(5, 4 + n), dtype=("float32", "int8", "float64")[n % 3], source=source,
            target=target, bucket=n // 6,
        )
        for n in range(12)
    ]  # fmt: skip
    plan = cross_mesh(tensors, links_of(6))
    kinds = {"float32": np.float32, "int8": np.int8, "float64": np.float64}
    check(
        plan,
        [
            np.random.default_rng(n).integers(0, 99, t.shape).astype(kinds[t.dtype])
            for n, t in enumerate(tensors)
        ],
    )
    assert len(plan.tasks) < 2 * 16
    last = max(task.round for task in plan.tasks if task.slices[0].tensor < 6)
    assert all(task.round > last for task in plan.tasks if task.slices[0].tensor >= 6)


CASES = [
    ("2x4:S0,R,R", "2x4:S0,R,R", (1024, 1024, 512), 0.5),
    ("2x4:R,R,R", "2x4:S0,R,R", (1024, 1024, 512), 0.5),
    ("2x4:R,S0,R", "2x4:S0,R,R", (1024, 1024, 512), 0.5),
    ("2x4:R,S01,R", "2x4:S01,R,R", (1024, 1024, 512), 0.5),
    ("2x4:S1,R,R", "2x4:S0,R,R", (1024, 1024, 512), 0.5),
    ("2x4:S0,R,R", "3x4:S0,R,R", (3072, 1024, 170), 0.5),
    ("1x4:S1,R,R", "2x4:R,R,R", (1024, 1024, 512), 1.0),
    ("1x4:S1,R,R", "2x4:R,R,R", (1024, 1024, 512), 1.0),
    ("2x4:R,S0,R", "2x4:R,R,S0", (1024, 1024, 512), 0.5),
]
"""The paper's suite: layouts, shape, bound in units of the tensor's time on an interface."""


def suite(number: int) -> tuple[LaidOutTensor, Links, float]:
    source, target, shape, units = CASES[number]
    before = parse_sharding(source)
    after = parse_sharding(target, first_rank=len(before.ranks))
    one = tensor(before, after, shape)
    hosts = (len(before.ranks) + len(after.ranks)) // 4
    return one, Links.uniform(hosts, 4.0 * np.prod(shape), ranks_per_host=4), units


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_suite_of_the_paper(number):
    one, links, units = suite(number)
    plan = cross_mesh(one, links)
    assert plan.bound_s == pytest.approx(units, rel=1e-9)
    assert plan.predicted_s <= 1.01 * units
    slow = cross_mesh(one, links, strategy="p2p").predicted_s
    assert slow == pytest.approx({4: 0.5, 7: 8.0, 8: 8.0}.get(number + 1, 2.0), rel=1e-6)


@pytest.mark.parametrize("slow", range(4))
def test_a_slow_interface_is_known(slow):
    rates = np.full(4, 4e6)
    rates[slow] /= 4
    for words in [("2x2:R,R,R", "2x2:S0,R,R"), ("2x2:R,S0,R", "2x2:S0,R,R"), ("2x2:S1,R,R", "2x2:R,R,R")]:
        plan, _ = plan_between(*words, (64, 64, 64), rates=rates)
        check(plan)
        assert plan.predicted_s <= 1.12 * plan.bound_s


def test_packed_trees_serve_interfaces_that_differ_in_one_direction():
    """Two hosts receive four times as fast as they send: one chain is held back, two trees are not."""
    one = tensor(parse_sharding("1:R,R"), parse_sharding("3:R,R", first_rank=1), (256, 256))
    out, into = np.array([4e6, 2e6, 2e6, 2e6]), np.full(4, 4e6)
    links = Links(out, into, np.zeros((4, 4)), np.full(4, np.inf))
    plan = cross_mesh(one, links, chunk_bytes=1024)
    check(plan)
    assert plan.strategy == "trees"
    assert plan.candidates["ring"] > 1.3 * plan.predicted_s


def test_the_bound_of_sets_of_hosts():
    """Two of three holding hosts hold half of the bytes alone: theirs are the busiest."""
    rows = (((0, 6),), ((0, 6),), ((0, 12),))
    source = Sharding(mesh=(3,), ranks=(0, 1, 2), dims=((), ()), rows=rows)
    target = Sharding(mesh=(3,), ranks=(3, 4, 5), dims=((0,), ()))
    links = Links.uniform(6, 1e3)
    plan = cross_mesh(tensor(source, target, (12, 1)), links)
    assert (plan.busiest.hosts, plan.busiest.direction) == ((2,), "out")
    assert plan.bound_s == pytest.approx(24 / 1e3)


def test_many_holding_hosts_have_the_same_bound(monkeypatch):
    module = sys.modules["wirewise.planners.reshard.bound"]
    random = np.random.default_rng(0)
    for _ in range(20):
        own = [{i for i in range(20) if random.random() < 0.4} for _ in range(8)]
        own[0] |= set(range(20)).difference(*own)
        rows = tuple(tuple((i, i + 1) for i in sorted(held)) for held in own)
        source = Sharding(mesh=(8,), ranks=tuple(range(8)), dims=((), ()), rows=rows)
        target = Sharding(mesh=(4,), ranks=(8, 9, 10, 11), dims=((0,), ()))
        links = Links(random.uniform(1, 9, 12), np.full(12, 1e9), np.zeros((12, 12)), np.full(12, np.inf))
        problem = ReshardProblem((tensor(source, target, (20, 3)),), links)
        found = []
        for most in (12, 0):
            monkeypatch.setattr(module, "_MOST_SETS", most)
            one = bound(problem)
            found.append(one.size_bytes / one.bandwidth_bytes_per_s)
        assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_the_same_plan_every_time():
    one, links, _ = suite(3)
    first, second = (cross_mesh(one, links) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert loads(first.to_json()) == first


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strategy": "fast"}, "unknown strategy 'fast'; expected one of: auto, p2p"),
        ({"order": "best"}, "unknown order 'best'; expected one of: auto, search"),
    ],
)
def test_unknown_words_are_refused(change, said):
    with pytest.raises(PlanError, match=said):
        plan_between("2x2:S0,R", "2x2:R,S0", **change)


def test_bad_problems_are_refused():
    one = tensor(parse_sharding("2:S0"), parse_sharding("2@6-7:S0"), (4,))
    with pytest.raises(InputError, match="tensor 'x' is on rank 6, there are 4 ranks; expected ranks 0 to 3"):
        cross_mesh(one, links_of(4))
    with pytest.raises(InputError, match="got chunks of 0 bytes"):
        plan_between("2x2:S0,R", "2x2:R,S0", chunk_bytes=0)
    with pytest.raises(InputError, match=r"got a str among the tensors"):
        cross_mesh(["x"], links_of(4))
    with pytest.raises(InputError, match=r"target.partial: ranks cannot end up with partial sums"):
        plan_between("2x2:S0,R", "2x2:R,S0,P1")
    lost = Sharding(mesh=(2,), ranks=(0, 1), dims=((),), rows=(((0, 2),), ((3, 4),)))
    with pytest.raises(
        InputError, match=r"no rank of the source holds \[\(2, 3\)\] of tensor 'x', which rank 2 needs"
    ):
        cross_mesh(tensor(lost, parse_sharding("2@2-3:R"), (4,)), links_of(4))


def test_an_addend_that_lies_elsewhere_has_to_come_in():
    """A host that holds one partial sum of a sum needs the other one: half of what a target on both hosts takes."""
    partial = Sharding(mesh=(2,), ranks=(0, 1), dims=((), ()), partial=(0,))
    whole = Sharding(mesh=(2,), ranks=(0, 1), dims=((), ()))
    links = links_of(2, per_host=1, rate=1e6)
    # What comes in is what takes longest.
    links = replace(links, bandwidth_in_bytes_per_s=links.bandwidth_in_bytes_per_s / 4)
    found = bound(ReshardProblem((tensor(partial, whole, (50, 20), "float32"),), links))
    assert (found.direction, found.size_bytes, len(found.hosts)) == ("in", 4 * 50 * 20, 1)
