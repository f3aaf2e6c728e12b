"""Full checks come in all first steps, then as often as their cost allows; what shows restarts them, the rest waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg.spread import a_model
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError
from wirewise.integrations.pyg.budget import FARTHEST, FARTHEST_LOOK, FIRST, CheckBudget, Interval

Change = Callable[[Any, Any, int], Any]


def spaced(cost_s: float, step_s: float) -> CheckBudget:
    """A budget after many steps of known cost."""
    budget = CheckBudget()
    budget.quiet, budget._cost_s, budget._step_s = FIRST, cost_s, step_s
    budget.spacing = budget.wanted()
    return budget


@pytest.mark.parametrize(("step_s", "spacing"), [(1e-4, FARTHEST), (0.025, 14), (0.1, 4), (1.0, 1)])
def test_spacing_follows_cost(step_s: float, spacing: int) -> None:
    assert spaced(1e-3, step_s).spacing == spacing


def test_a_change_restarts_full_checks() -> None:
    budget = spaced(1e-3, 1e-4)
    budget.advance(budget.spacing)
    assert not budget.due
    budget.restart()
    assert budget.due
    assert budget.wanted() == 1


@pytest.mark.parametrize("distance", [2, 3, FARTHEST_LOOK, FARTHEST])
def test_looks_are_no_farther_apart_and_meet_each_step_of_any_period(distance: int) -> None:
    budget = CheckBudget()
    budget.quiet = FIRST
    due = []
    for step in range(100_000):
        due += [step] * budget.due
        budget.advance(distance)
    assert {later - one for one, later in pairwise(due)} == {distance - 1, distance}
    for period in range(2, 33):
        assert {step % period for step in due} == set(range(period)), period


def test_each_brief_look_has_a_turn_of_its_own() -> None:
    budget = CheckBudget()
    budget.quiet = FIRST
    turns = []
    budget.advance(FARTHEST)
    for _ in range(100):
        turns += [budget.turn] * budget.looks
        budget.advance(FARTHEST)
    assert turns == list(range(turns[0], turns[0] + len(turns)))


def test_a_proof_is_no_time_of_the_step() -> None:
    budget = CheckBudget()
    budget.quiet = FIRST
    for _ in range(30):
        with budget.exclude():
            _compute_for(0.01)
        budget.advance(1)
    assert budget._step_s < 0.005


def _compute_for(seconds: float) -> None:
    start = time.process_time()
    while time.process_time() < start + seconds:
        pass


def test_proofs_come_at_growing_distances_until_something_asks_for_one() -> None:
    interval = Interval(10, grows=True)
    assert [call for call in range(200) if interval.due(call, force=call in (0, 110))] == [
        *(0, 10, 30, 70),
        *(110, 120, 140, 180),
    ]
    fixed = Interval(10)
    assert [call for call in range(35) if fixed.due(call)] == [10, 20, 30]


def plain(model: Any, data: Any, mask: Tensor) -> Tensor:
    return F.cross_entropy(model(data.x, data.edge_index)[mask], data.y[mask])


def by_class_weights(model: Any, data: Any, rank: int) -> Tensor:
    out = model(data.x, data.edge_index)[data.train_mask]
    return F.cross_entropy(out, data.y[data.train_mask], weight=torch.arange(1.0, 1.0 + out.shape[1]))


def by_fewer_nodes(model: Any, data: Any, rank: int) -> Tensor:
    mask = data.train_mask.clone()
    mask[int(mask.nonzero()[0])] = False
    return plain(model, data, mask)


def by_constant_of_a_rank(model: Any, data: Any, rank: int) -> Tensor:
    return plain(model, data, data.train_mask) * (1.0 + rank)


def by_other_nodes(model: Any, data: Any, rank: int) -> Tensor:
    """Read a validation node in the place of a training node."""
    mask = data.train_mask.clone()
    mask[int(mask.nonzero()[0])], mask[int(data.val_mask.nonzero()[0])] = False, True
    return plain(model, data, mask)


def by_drift(model: Any, data: Any, rank: int) -> Tensor:
    with torch.no_grad():
        model.head.bias += rank
    return plain(model, data, data.train_mask)


def test_a_loss_that_is_wrong_in_every_fourth_step_only_is_noticed() -> None:
    data, models = a_graph("undirected"), [a_model() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(models[rank]), job.data
        budget = mine._wirewise_step.bundle.gradients.budget
        for _ in range(2):
            plain(mine, own, own.train_mask).backward()
        budget.quiet, budget.step = FIRST, 15
        budget.advance(FARTHEST)
        budget._cost_s, budget._step_s = 1.0, 1e-3
        with pytest.raises(InputError):
            for step in range(64):
                if step % 4 == 1:
                    by_class_weights(mine, own, rank).backward()
                else:
                    plain(mine, own, own.train_mask).backward()

    run_ranks_as_threads(2, body)


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        (by_class_weights, FARTHEST_LOOK),
        (by_fewer_nodes, FARTHEST_LOOK),
        (by_constant_of_a_rank, 1),
        (by_other_nodes, FARTHEST),
        (by_drift, FARTHEST),
    ],
)
def test_a_change_while_checks_are_spaced_is_noticed_within_the_bound(change: Change, bound: int) -> None:
    data, models = a_graph("undirected"), [a_model() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(models[rank]), job.data
        budget = mine._wirewise_step.bundle.gradients.budget
        for _ in range(2):
            plain(mine, own, own.train_mask).backward()
        # As after many steps of a small graph: full checks at the longest distance, the last one just now.
        budget.quiet, budget.step = FIRST, FARTHEST
        budget.advance(FARTHEST)
        budget._cost_s, budget._step_s = 1.0, 1e-3
        plain(mine, own, own.train_mask).backward()
        with pytest.raises(InputError):
            for _ in range(bound):
                change(mine, own, rank).backward()

    run_ranks_as_threads(2, body)
