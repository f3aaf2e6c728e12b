"""TAG among other ways to train: its plan for the equal hosts of a run of parallel plans."""

from __future__ import annotations

import pytest

from wirewise.recipes.rhino_job import RhinoWish
from wirewise.recipes.tag_ways import deployment_of


@pytest.mark.slow
def test_a_run_of_parallel_plans_has_a_deployment():
    plan = deployment_of(RhinoWish(model="gpt", hosts=2, gflops=50.0))
    assert plan.batch == 8 and {"tokens", "places", "head"} <= set(plan.group_of)
    assert 0 < plan.predicted_step_s <= plan.baseline_step_s
