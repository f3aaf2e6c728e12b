from __future__ import annotations

import numpy as np
import pytest

from tests.planners.pipeline.problems import random_trace
from tests.sim.pipeline_jobs import chain, links
from wirewise.cost import Links
from wirewise.planners import pipeline
from wirewise.planners.pipeline.formula import (
    PipelineShape,
    depths_of,
    evaluate,
    kept_bytes,
    stage_sums,
    sums_of,
)
from wirewise.plans import StagePlan
from wirewise.sim.lowering.stages import costs_of_plan
from wirewise.sim.stage_memory import peak_bytes


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("method", [name for name in pipeline.METHODS if name != "interleaved"])
def test_memory_in_closed_form_is_that_of_the_timetable(method, recompute):
    trace, style = random_trace(6, 6), pipeline.METHODS[method][0]
    problem = pipeline.problem_of(trace, Links.uniform(6, 1e9), batch=24)
    shape = PipelineShape(3, 2, 1, 1, 12, recompute)
    cut = [[0, 1], [2], [3, 4, 5]]
    depths = depths_of(style, 3, 12)
    expected = kept_bytes(problem, shape, style, sums_of(problem, shape, cut), *depths)
    names = [[f"m{number}" for number in own] for own in cut]
    made = StagePlan.from_cuts(
        [name for own in names for name in own],
        [2, 3],
        style=style,
        microbatches=12,
        replicas=2,
        recompute=recompute,
        exchange="hidden" if style == "2bw" else "end",
    )
    found = peak_bytes(made, costs_of_plan(made, trace))
    assert list(found) == pytest.approx(expected.tolist(), abs=1.0)


@pytest.mark.parametrize(
    ("style", "m", "c", "seconds"),
    [
        ("1f1b", 16, 0.0, 57),
        ("eager", 16, 1.0, 63),
        ("eager-split", 16, 1.0, 60),
        ("gpipe", 16, 0.5, 60),
        ("2bw", 16, 0.5, 60),
    ],
)
def test_the_closed_form_is_near_the_simulation(style, m, c, seconds):
    problem = pipeline.problem_of(chain(4, c), links(4), batch=m)
    shape = PipelineShape(4, 1, 1, 1, m, False)
    found, _ = evaluate(problem, shape, style, sums_of(problem, shape, [[0], [1], [2], [3]]))
    assert found == pytest.approx(seconds, rel=0.02)


def test_what_paces_an_update_is_said():
    def limit(c, batch=16, parameter_bytes=0.0, replicas=1):
        job = chain(4, c, parameter_bytes=parameter_bytes)
        problem = pipeline.problem_of(job, links(4 * replicas), batch=batch * replicas)
        shape = PipelineShape(4, replicas, 1, 1, batch, False)
        return evaluate(problem, shape, "1f1b", sums_of(problem, shape, [[0], [1], [2], [3]]))[1]

    assert limit(0.0) == "the largest stage"
    assert limit(0.5) == "round trips of microbatches"
    assert limit(0.5, batch=2) == "filling and draining the pipeline"
    assert limit(0.0, parameter_bytes=200_000.0, replicas=2) == "exchanges of gradients"


def test_figures_of_stages_in_order_are_those_of_any_stages():
    for skips in (0, 3):
        problem = pipeline.problem_of(random_trace(8, 7, skips=skips), Links.uniform(3, 1e9), batch=12)
        shape = PipelineShape(3, 1, 1, 2, 6, False)
        in_order = stage_sums(problem, shape, np.array([0, 2, 3, 7]))
        for own, any_order in zip(
            in_order, sums_of(problem, shape, [[0, 1], [2], [3, 4, 5, 6]]), strict=True
        ):
            assert own == pytest.approx(any_order)
