"""Caches that spare the busiest link, against every choice of small problems, and against equal budgets."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.planners.cache.problems import block_problem
from wirewise.errors import InputError, PlanError
from wirewise.graph.structure import in_edges
from wirewise.planners.cache import PLANNERS, POLICIES, CacheProblem, balance_caches, plans


def bare(owner, machines):
    """A problem without edges: scores are given."""
    return CacheProblem(
        edges=in_edges(np.empty((2, 0), np.int64), len(owner)),
        owner=owner,
        train=tuple(np.flatnonzero(owner == k) for k in range(machines)),
        batch_size=1,
        fanouts=(1,),
    )


def loads(owner, expected, kept, row_s=None):
    """Rows, or seconds, that machines receive, then those that they send, pair by pair."""
    machines = len(expected)
    received, sent = np.zeros(machines), np.zeros(machines)
    for machine, node in product(range(machines), range(len(owner))):
        if owner[node] != machine and node not in kept[machine]:
            received[machine] += expected[machine][node]
            sent[owner[node]] += expected[machine][node]
    seconds = np.ones(machines) if row_s is None else np.array(row_s)
    return np.concatenate([received * seconds, sent * seconds])


def choices(owner, machines, budget):
    """Everything that fills a budget of all machines, or of each."""
    remote = [np.flatnonzero(owner != k).tolist() for k in range(machines)]
    if isinstance(budget, int):
        pairs = [(k, node) for k in range(machines) for node in remote[k]]
        for chosen in combinations(pairs, min(budget, len(pairs))):
            yield [{node for machine, node in chosen if machine == k} for k in range(machines)]
    else:
        sizes = [min(room, len(remote[k])) for k, room in enumerate(budget)]
        for each in product(*(combinations(remote[k], size) for k, size in enumerate(sizes))):
            yield [set(nodes) for nodes in each]


def relaxed(owner, scores, budget, row_s):
    """The least busiest load where parts of rows can be kept: the optimum of the dual."""
    machines = len(scores)
    seconds = np.ones(machines) if row_s is None else np.array(row_s)
    pairs = [(k, v) for k in range(machines) for v in np.flatnonzero(owner != k)]
    spared, counted = np.zeros((2 * machines, len(pairs) + 1)), np.zeros((machines, len(pairs) + 1))
    for column, (k, v) in enumerate(pairs):
        spared[k, column] = scores[k][v] * seconds[k]
        spared[machines + owner[v], column] = scores[k][v] * seconds[owner[v]]
        counted[k, column] = 1
    needed = spared.sum(axis=1)
    spared[:, -1] = 1
    if isinstance(budget, int):
        counted, budget = counted.sum(axis=0, keepdims=True), [budget]
    bounds = [*[(0, 1)] * len(pairs), (0, None)]
    limits = np.concatenate([-spared, counted]), np.concatenate([-needed, budget])
    return linprog(np.arange(len(bounds)) == len(pairs), *limits, bounds=bounds).fun


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("machines", "nodes", "budget", "row_s"),
    [
        (2, 8, 0, None),
        (2, 8, 3, None),
        (2, 8, 5, [1.0, 4.0]),
        (2, 8, [1, 3], None),
        (3, 6, 4, None),
        (3, 6, 5, [1.0, 0.5, 3.0]),
        (3, 6, [2, 0, 3], None),
        (3, 6, 50, None),
    ],
)
def test_within_the_gap_of_every_other_choice(machines, nodes, budget, row_s):
    rng = np.random.default_rng(nodes)
    for _ in range(4):
        owner = rng.permutation(np.arange(nodes) % machines)
        scores = [rng.random(nodes) ** 3 * rng.random() for _ in range(machines)]
        found = balance_caches(bare(owner, machines), scores, budget, row_s=row_s)
        least = min(loads(owner, scores, kept, row_s).max() for kept in choices(owner, machines, budget))
        assert found.lower_bound <= least * (1 + 1e-9)
        assert least * (1 - 1e-9) <= found.busiest <= (1 + found.gap) * least * (1 + 1e-9)
        assert found.busiest == pytest.approx(loads(owner, scores, found.kept, row_s).max())
        assert found.lower_bound >= 0.99 * relaxed(owner, scores, budget, row_s) - 1e-9
        for machine, kept in enumerate(found.kept):
            assert (owner[kept] != machine).all()
            assert (np.diff(kept) > 0).all()
        counts = [len(kept) for kept in found.kept]
        if isinstance(budget, int):
            assert sum(counts) <= budget
        else:
            assert all(count <= room for count, room in zip(counts, budget, strict=True))


def test_one_machine_and_machines_that_need_nothing():
    alone = balance_caches(bare(np.zeros(5, np.int64), 1), [np.ones(5)], 3)
    assert (len(alone.kept[0]), alone.busiest, alone.lower_bound, alone.gap) == (0, 0, 0, 0)
    owner = np.arange(9) % 3
    idle = balance_caches(bare(owner, 3), [np.ones(9), np.zeros(9), np.ones(9)], 5)
    assert [len(kept) for kept in idle.kept][1] == 0
    assert sum(len(kept) for kept in idle.kept) == 5
    assert idle.busiest == 4  # 7 rows are left to two machines
    nothing = balance_caches(bare(owner, 3), [np.zeros(9)] * 3, 5)
    assert (sum(len(kept) for kept in nothing.kept), nothing.busiest) == (0, 0)


@pytest.fixture(scope="module")
def uneven():
    """Machines with many, some and hardly any training nodes."""
    whole = block_problem(16)
    return CacheProblem(
        edges=whole.edges,
        owner=whole.owner,
        train=(whole.train[0], whole.train[1][:3], whole.train[2][:0]),
        batch_size=16,
        fanouts=whole.fanouts,
    )


def busiest(found):
    return max(found.fetched.sum(axis=0).max(), found.fetched.sum(axis=1).max())


@pytest.mark.sweep
@pytest.mark.parametrize("policy", POLICIES)
def test_never_busier_than_equal_budgets_with_as_many_rows(uneven, policy):
    by_share = {
        share: plans(uneven, [0.0, 0.2, 9.0], [policy], share=share)[policy]
        for share in ("equal", "balanced")
    }
    for alpha, found in by_share["balanced"].items():
        found.check_itself()
        kept = [len(machine.ids) for machine in found.machines]
        assert kept == [machine.budget for machine in found.machines]
        assert sum(kept) <= alpha * uneven.num_nodes
        assert busiest(found) <= busiest(by_share["equal"][alpha]) * (1 + 1e-9)
    assert busiest(by_share["balanced"][0.2]) < busiest(by_share["equal"][0.2])


def test_a_plan_tells_the_loads_of_what_it_keeps(uneven):
    found = PLANNERS["vip"](uneven, alpha=0.2, share="balanced")
    scores = [POLICIES["vip"](uneven, machine) for machine in range(3)]
    told = np.concatenate([found.fetched.sum(axis=1), found.fetched.sum(axis=0)])
    kept = [set(machine.ids.tolist()) for machine in found.machines]
    np.testing.assert_allclose(told, loads(uneven.owner, scores, kept), rtol=1e-9, atol=1e-9)
    best = balance_caches(uneven, scores, 1200)
    assert best.lower_bound <= busiest(found) <= (1 + best.gap) * best.lower_bound * (1 + 1e-9)
    assert best.gap < 0.02


def test_budgets_of_each_machine_are_kept_and_senders_balanced():
    problem = block_problem(16)
    rooms = [900, 900, 100]
    found = PLANNERS["vip"](problem, budgets=rooms, share="balanced")
    assert [len(machine.ids) for machine in found.machines] == rooms
    assert [machine.budget for machine in found.machines] == rooms
    assert busiest(found) <= busiest(PLANNERS["vip"](problem, budgets=rooms))
    # Only machine 0 fetches: what it spares is evenly that of both senders.
    owner, scores = np.repeat([0, 1, 2], 20), [np.linspace(1, 2, 60), np.zeros(60), np.zeros(60)]
    spared = balance_caches(bare(owner, 3), scores, [20, 0, 0], row_s=[0.1, 1, 1])
    sent = loads(owner, scores, spared.kept, [0.1, 1, 1])[4:]
    assert sent[0] == pytest.approx(sent[1], rel=0.1)


def test_a_slow_link_carries_fewer_rows():
    problem = block_problem(16)
    even = PLANNERS["vip"](problem, alpha=0.3, share="balanced")
    slow = PLANNERS["vip"](problem, alpha=0.3, share="balanced", row_s=[3e-6, 1e-6, 1e-6])
    assert slow.fetched[0].sum() < 0.8 * even.fetched[0].sum()
    assert slow.fetched[:, 0].sum() < 0.8 * even.fetched[:, 0].sum()
    assert sum(len(machine.ids) for machine in slow.machines) == 1800


@pytest.mark.parametrize(
    ("knobs", "error", "told"),
    [
        ({"share": "fair"}, PlanError, "unknown share 'fair'; expected one of: equal, balanced"),
        ({"row_s": [1, 1, 1]}, InputError, "seconds of a row change nothing where shares are equal"),
        ({"share": "balanced", "row_s": [1, 1]}, InputError, "expected 3, each above 0"),
        ({"share": "balanced", "row_s": [1, 1, 0]}, InputError, "expected 3, each above 0"),
    ],
)
def test_knobs_that_cannot_be_used(uneven, knobs, error, told):
    with pytest.raises(error, match=told):
        PLANNERS["vip"](uneven, **knobs)


@pytest.mark.parametrize("budget", [-1, [1, 2], [1, 2, -1]])
def test_budgets_that_cannot_be_used(uneven, budget):
    with pytest.raises(InputError, match="at least 0 rows of all machines, or of each of 3"):
        balance_caches(uneven, [np.ones(6000)] * 3, budget)
