"""TAG among other ways to train: its plan for the equal hosts of a run of parallel plans."""

from __future__ import annotations

import pytest

from wirewise_papers.rhino.deployed import deployment_of
from wirewise_papers.rhino.job import RhinoOptions


@pytest.mark.slow
def test_a_run_of_parallel_plans_has_a_deployment():
    plan = deployment_of(RhinoOptions(model="gpt", hosts=2, gflops=50.0))
    assert plan.batch == 8 and {"tokens", "places", "head"} <= set(plan.group_of)
    assert 0 < plan.predicted_step_s <= plan.baseline_step_s
