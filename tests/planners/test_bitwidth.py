"""All planners of bit widths: what each must do."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.planners.bitwidth import problems
from tests.planners.bitwidth.problems import plan
from wirewise.errors import PlanError
from wirewise.planners.bitwidth import PLANNERS, ChannelProblem
from wirewise.planners.bitwidth.problem import ExchangeProblem

SMALL = problems.problem(
    problems.exchange(3, 30), problems.exchange(3, 30, name="backward1", scale=1e-6, seed=1), ranks=3
)


@pytest.mark.parametrize("method", sorted(PLANNERS))
def test_every_planner_plans_all_messages_and_repeats_itself(method):
    first = plan(SMALL, problems.costs(3, ring=True), method=method, seed=5)
    assert first == plan(SMALL, problems.costs(3, ring=True), method=method, seed=5)
    first.check(SimpleNamespace(hosts=[0, 1, 2], devices=[0, 1, 2]), SMALL.messages())
    assert first.seed == 5
    assert set(first.predicted_s) == set(first.noise) == set(first.weight_sigma) == {"forward1", "backward1"}


@pytest.mark.parametrize("method", sorted(PLANNERS))
def test_every_planner_refuses_weights_that_are_not_numbers(method):
    bad = ChannelProblem(sender=0, receiver=1, weights=np.array([1.0, np.inf]))
    broken = problems.problem(ExchangeProblem(name="forward1", width=4, channels=[bad]), ranks=2)
    with pytest.raises(PlanError, match="message 1 is inf"):
        plan(broken, problems.costs(2), method=method)


@pytest.mark.slow
def test_planners_and_simulator_run_without_torch():
    code = (
        "import sys, wirewise.planners.bitwidth, wirewise.sim, wirewise.plans; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
