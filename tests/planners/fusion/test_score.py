"""What the short-cuts of the search save, and that they change nothing."""

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fusion_planners.recorded import read_gradients

from tests.harness.tiers import slow
from wirewise.cost.links import Links
from wirewise.planners.fusion import FusionProblem, Module, Scorer
from wirewise.planners.fusion.dpro import search

PASSES = ("tensor_fusion", "partition")


def deep(count=120):
    random = np.random.default_rng(0)
    return [
        Module(
            name=f"m{i}",
            forward_s=1e-4 * random.random(),
            backward_s=4e-4 * random.random(),
            gradient_bytes=1.5e6 * random.random() ** 4 + 1e3,
        )
        for i in range(count)
    ]


def resnet50():
    path = Path(os.environ.get("WIREWISE_DATA", "")) / "gradient-traces" / "resnet50.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there; set WIREWISE_DATA")
    return read_gradients(path)


@pytest.mark.slow
@pytest.mark.parametrize("model", [deep, slow(resnet50)])
@pytest.mark.parametrize("slots", [slow(1), 2])
@pytest.mark.sample(2)
def test_twenty_times_fewer_ops_give_the_same_step(model, slots):
    links = Links.uniform(8, 5e9, 20e-6)
    problem = FusionProblem(modules=model(), hosts=range(8), links=links, comm_slots=slots)
    fast = search(problem, passes=PASSES)
    full = search(problem, scorer=Scorer(problem, coarsen=False, one_rank=False), passes=PASSES)
    assert full.events >= 20 * fast.events
    assert fast.step_s <= 1.01 * full.step_s
    assert Scorer(problem, coarsen=False, one_rank=False)(fast.decision) == pytest.approx(
        fast.step_s, rel=1e-9
    )
