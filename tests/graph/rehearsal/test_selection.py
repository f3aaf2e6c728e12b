"""Which nodes are kept: near optimal in the graph, right ids, within the budget (E2, E4)."""

import numpy as np
import pytest

from tests.graph.toys import path
from wirewise.errors import InputError
from wirewise.graph.rehearsal import SELECTIONS, Candidates, select


def candidates(edges, nodes, seed=0, width=4, others=7):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(len(nodes), width)).astype(np.float32)
    return Candidates(edges, nodes, rows, rng.normal(size=(others, width)).astype(np.float32), seed)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", SELECTIONS)
def test_e4_selections_stay_among_candidates_and_within_the_budget(name):
    edges = path(60)
    nodes = np.arange(3, 60, 2)
    pool = candidates(edges, nodes)
    for budget in (1, 4, len(nodes) - 1, len(nodes), 1000):
        found = select(name, pool, budget)
        assert len(found) == len(set(found)) == min(budget, len(nodes))
        assert set(found) <= set(nodes) and np.array_equal(found, np.sort(found))
        assert np.array_equal(found, select(name, pool, budget))


def test_lots_differ_by_seed():
    nodes = np.arange(60)
    one, other = (select("random", candidates(path(60), nodes, seed), 10) for seed in (0, 1))
    assert not np.array_equal(one, other)


def test_cm_ranks_all_of_a_large_class():
    """Defect 5 of the released code: it ranked 1,000 nodes by lot and took their places for those of the class."""
    nodes = np.arange(10, 1510)
    rows = np.zeros((1500, 2), np.float32)
    rows[[1200, 1350]] = 50
    pool = Candidates(path(1600), nodes, rows, np.zeros((20, 2), np.float32) + 0.1)
    assert select("cm", pool, 2).tolist() == [1210, 1360]


def test_mf_and_herding_go_to_the_mean():
    rows = np.array([[0], [2], [9], [10], [29]], np.float32)
    pool = Candidates(path(9), np.arange(2, 7), rows, rows)
    assert select("mf", pool, 2).tolist() == [4, 5]
    # 10 is the mean; after it 9 keeps the mean of both nearest.
    assert select("herding", pool, 2).tolist() == [4, 5]
    assert abs(rows[select("herding", pool, 4) - 2].mean() - 10) <= abs(
        rows[select("mf", pool, 4) - 2].mean() - 10
    )


def test_wrong_settings_are_named():
    pool = candidates(path(5), np.arange(5))
    with pytest.raises(InputError, match="'best' is unknown; expected one of: random, cm"):
        select("best", pool, 1)
    with pytest.raises(InputError, match="budget is 0; expected at least 1"):
        select("random", pool, 0)
