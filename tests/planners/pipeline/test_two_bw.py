from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.planners.pipeline.brute_force import best_update_s
from tests.planners.pipeline.problems import random_problem, random_trace
from wirewise.cost import Links
from wirewise.errors import PlanError
from wirewise.planners.pipeline import PipelineProblem, problem_of
from wirewise.planners.pipeline.two_bw import FixedChoices, search, shapes

PROBLEMS = 500


def best_of(problem):
    try:
        return search(problem).found[0].update_s
    except PlanError:
        return math.inf


@pytest.mark.slow
def test_b7_the_best_is_that_of_all():
    none = 0
    for seed in range(PROBLEMS):
        problem = random_problem(seed)
        expected = best_update_s(problem)
        none += math.isinf(expected)
        assert best_of(problem) == pytest.approx(expected, rel=1e-9), seed
    # Some have no plan at all.
    assert 25 < none < PROBLEMS // 2


@pytest.mark.slow
def test_b7_more_memory_is_never_slower():
    for seed in range(120):
        problem = random_problem(seed)
        weights = sum(module.parameter_bytes for module in problem.trace.modules) + 2000.0
        found = [
            best_of(replace(problem, memory_bytes=share * weights)) for share in (1, 2, 3, 4, 6, 8, 12, 100)
        ]
        assert all(later <= earlier for earlier, later in itertools.pairwise(found)), (seed, found)


def test_b7_a_thousand_ranks_are_some_hundreds_of_shapes():
    links = Links.uniform(128, 1e9, 1e-5, ranks_per_host=8, intra_bytes_per_s=1e11)
    problem = problem_of(random_trace(1, 48), links, batch=4096)
    found = search(problem)
    assert len(list(shapes(problem, "2bw"))) == len(found.found) < 300
    assert {one.shape.positions * one.shape.replicas for one in found.found} == {1024}


def test_shapes_use_every_rank_and_every_sample_once():
    problem = problem_of(random_trace(2, 6), Links.uniform(12, 1e9), batch=48)
    found = list(shapes(problem, "1f1b"))
    assert len(set(found)) == len(found) > 50
    assert {s.positions for s in found} == {1, 2, 3, 4, 6}
    assert all(
        s.positions * s.replicas == 12 and s.replicas * s.microbatch_size * s.microbatches == 48
        for s in found
    )
    assert all(s.microbatches >= s.positions for s in shapes(problem, "2bw"))
    chosen = list(shapes(problem, "2bw", FixedChoices(stages=4, microbatch_size=2, recompute=True)))
    assert [(s.replicas, s.microbatches) for s in chosen] == [(3, 8)]


def test_ranks_that_share_stages():
    trace = random_trace(3, 4)
    problem = problem_of(
        type(trace)(modules=trace.modules, sizes=trace.sizes, width_speedup={2: 3.0}),
        Links.uniform(4, 1e9),
        batch=16,
    )
    best = search(problem).found[0].shape
    # Two ranks that are three times as fast together beat any other split.
    assert best.width == 2 and best.positions * best.replicas == 2


def test_messages_that_passes_wait_for_cost_more():
    links = Links.uniform(4, 300.0, 0.01)
    problem = problem_of(random_trace(5, 8), links, batch=32)
    both = [
        search(problem, fixed_choices=FixedChoices(stages=4), messages=how).found[0].update_s
        for how in ("async", "blocking")
    ]
    assert both[0] < both[1]


def test_the_papers_closed_form_by_hand():
    """Four equal stages: computing 3 and messages of 0.5 each way; inner stages have two neighbours."""
    trace = random_trace(0, 4)
    equal = tuple(
        type(m)(name=m.name, forward_s=(1.0,), backward_s=(2.0,), output_bytes=50.0, parameter_bytes=0.0)
        for m in trace.modules
    )
    problem = PipelineProblem(type(trace)(modules=equal), Links.uniform(4, 100.0), 8)
    fixed = FixedChoices(stages=4, microbatch_size=1, recompute=False)
    found = search(problem, fixed_choices=fixed, messages="blocking").found[0]
    assert found.update_s == pytest.approx(8 * (3.0 + 2 * (0.5 + 0.5)))
    again = search(problem, fixed_choices=fixed._replace(recompute=True), messages="blocking").found[0]
    assert again.update_s == pytest.approx(8 * (4.0 + 2 * (0.5 + 0.5)))


@pytest.mark.parametrize(
    ("fixed", "memory", "said"),
    [
        (FixedChoices(stages=3), np.inf, "no plan has stages 3: .* to be 4 ranks"),
        (FixedChoices(microbatch_size=5), np.inf, "no plan has microbatch_size 5"),
        (FixedChoices(stages=4, microbatch_size=4), np.inf, "at least as many microbatches as stages"),
        (FixedChoices(), 10.0, "a rank has 10 B, and the least that any number of stages needs is"),
    ],
)
def test_what_cannot_be_is_refused(fixed, memory, said):
    problem = problem_of(random_trace(4, 5), Links.uniform(4, 1e9), batch=8, memory_bytes=memory)
    with pytest.raises(PlanError, match=said):
        search(problem, fixed_choices=fixed)
