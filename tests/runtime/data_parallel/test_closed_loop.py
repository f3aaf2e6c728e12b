"""A proposal stays only if it pays."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.examples import batch, made, names_of, plan_of, sequential, whole
from wirewise.errors import InputError, PlanError
from wirewise.runtime.data_parallel import Tuner, parallel

PAIRS, STEPS, WARM = 4, 2, 1


def plans():
    model = sequential()
    names = names_of(model)
    fast = plan_of(model, [names[:4], names[4:]], 2, predicted_step_s=0.001, baseline_step_s=0.004)
    return whole(model, 2), fast


def tried(delays_s: dict[int, float], present, proposal, clock=None) -> list[Any]:
    """Run whole trials on two ranks; a step under a plan of n buckets takes `delays_s[n]` longer."""

    def body(rank: int, group: Any, store: Any) -> Any:
        model = made(sequential)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = parallel(model, present, optimizer, group, store=store, timeout_s=20)
        own = clock(wrapped) if clock else time.perf_counter
        tuner = Tuner(wrapped, optimizer, proposal, pairs=PAIRS, steps=STEPS, warm=WARM, clock=own)
        for step in range(2 * PAIRS * (STEPS + WARM)):
            assert tuner.trial is None
            time.sleep(delays_s.get(len(wrapped.plan.buckets), 0.0))
            optimizer.zero_grad()
            x, y = batch(rank, step)
            nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
        # The job goes on under what was chosen.
        nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        return tuner.trial, wrapped.plan, model[0].weight.detach().clone()

    return run_ranks_as_threads(2, body)


def test_a_faster_plan_is_kept():
    present, proposal = plans()
    (trial, plan, weights), (other, _, other_weights) = tried({1: 0.06, 2: 0.0}, present, proposal)
    assert trial.kept and plan == proposal
    assert trial == other
    assert torch.equal(weights, other_weights)
    assert trial.ci95_s[0] <= trial.gain_s <= trial.ci95_s[1]
    assert trial.predicted_gain_s == pytest.approx(0.003)
    assert len(trial.present_step_s) == len(trial.proposed_step_s) == PAIRS


def test_a_slower_plan_is_rolled_back():
    present, proposal = plans()
    for trial, plan, _ in tried({1: 0.0, 2: 0.06}, present, proposal):
        assert not trial.kept and plan == present
        assert trial.gain_s < 0


class Clock:
    """Steps of 10 ms that grow by 1 ms each, under both plans alike."""

    def __init__(self, model: Any) -> None:
        self.now, self.step = 0.0, 0.010

    def __call__(self) -> float:
        self.now += self.step
        self.step += 0.001
        return self.now


def test_a_drift_is_no_gain():
    present, proposal = plans()
    for trial, plan, _ in tried({}, present, proposal, clock=Clock):
        assert not trial.kept and plan == present
        # The order ABBA cancels what grows evenly.
        assert trial.gain_s == pytest.approx(0.0, abs=1e-9)


def test_proposals_that_do_not_fit_leave_the_job_as_it_is():
    present, proposal = plans()

    def body(rank: int, group: Any, store: Any) -> None:
        model = made(sequential)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = parallel(model, present, optimizer, group, store=store, timeout_s=20)
        with pytest.raises(PlanError, match="2 micro-steps, the job 1"):
            Tuner(wrapped, optimizer, msgspec.structs.replace(proposal, accumulation=2))
        with pytest.raises(PlanError, match="in the model but not in the plan"):
            Tuner(wrapped, optimizer, msgspec.structs.replace(proposal, buckets=proposal.buckets[:1]))
        with pytest.raises(PlanError, match="does not have: nowhere"):
            Tuner(wrapped, optimizer, msgspec.structs.replace(proposal, recompute=("nowhere",)))
        with pytest.raises(InputError, match="at least 4 pairs"):
            Tuner(wrapped, optimizer, proposal, pairs=2)
        assert wrapped.plan == present
        tuner = Tuner(wrapped, optimizer, proposal)
        tuner.cancel()
        x, y = batch(rank, 0)
        nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        assert tuner.trial is None and wrapped.plan == present

    run_ranks_as_threads(2, body)
