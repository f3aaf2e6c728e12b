"""Whole plans: what is chosen around the shardings, memory, two dimensions at once, what is refused."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.planners.parallel import graphs
from tests.planners.parallel.rhino.costs import ByteCosts
from wirewise.cost import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.parallel import PLANNERS
from wirewise.planners.parallel.rhino.explore import sequential
from wirewise.planners.parallel.rhino.shardings import ShardingProblem
from wirewise.sim import predict

RHINO = PLANNERS["rhino"]
LINKS = Links.uniform(2, 1e9, 1e-6, intra_bytes_per_s=1e10, ranks_per_host=2)


def graph(**more):
    return graphs.layers(rows=64, width=32, batch=8, attention=False, **more)


def needed(plan):
    return max(plan.memory_bytes)


def test_a_plan_says_what_predict_says_and_is_consistent():
    step = graph()
    plan = RHINO(step, LINKS, mesh=(4,), stages=1)
    plan.check_itself()
    assert type(plan).from_json(plan.to_json()) == plan
    assert predict(plan, step, LINKS).step_s == pytest.approx(plan.predicted_step_s)
    assert plan.bound_s == pytest.approx(step.time_s / 4)
    assert plan.level == "O3"
    # Data parallelism costs more in sum and is simulated quicker; else nothing costs less in sum.
    assert (plan.gap > 1e-6) == plan.why[0].startswith("It is data parallelism")
    assert any(one.block.startswith("layers.") for one in plan.choices) and len(plan.why) >= 2


def test_stages_carry_microbatches_and_messages_between_them():
    step = graph(of_rows=False)
    plan = RHINO(step, LINKS, stages=2, mesh=(2,), microbatches=2)
    plan.check_itself()
    assert predict(plan, step, LINKS).step_s == pytest.approx(plan.predicted_step_s)
    assert set(plan.stage_of) == {0, 1}
    assert any(s.kind == "send" and s.sent_bytes for move in plan.moves for s in move.steps)
    # Rows of a microbatch are shared evenly.
    shapes = [node.shape for node in step.nodes]
    for number, words in enumerate(plan.placements):
        if step.nodes[number].op == "input" and words == ("S0",):
            assert shapes[number][0] % (2 * plan.microbatches) == 0


@pytest.mark.slow
def test_memory_is_kept_or_missing_bytes_are_named():
    step = graph()
    free = RHINO(step, LINKS, mesh=(4,), stages=1)
    tight = RHINO(step, LINKS, mesh=(4,), stages=1, memory_bytes=0.9 * needed(free))
    assert needed(tight) <= 0.9 * needed(free)
    assert tight.predicted_step_s >= free.predicted_step_s * (1 - 1e-9)
    with pytest.raises(PlanError, match=r"no plan has room: rank \d needs .* too little"):
        RHINO(step, LINKS, mesh=(4,), stages=1, memory_bytes=1000.0)


@pytest.mark.slow
def test_what_is_computed_again_is_not_kept():
    step = graph()
    plans = {
        mode: RHINO(step, LINKS, mesh=(4,), stages=1, recompute=mode)
        for mode in ("nothing", "cheap operators", "blocks")
    }
    assert plans["nothing"].recompute == ()
    for mode in ("cheap operators", "blocks"):
        assert plans[mode].recompute
        assert all(step.nodes[n].phase == "forward" for n in plans[mode].recompute)
        assert predict(plans[mode], step, LINKS).step_s == pytest.approx(plans[mode].predicted_step_s)


@pytest.mark.slow
def test_p6_both_dimensions_at_once_are_never_worse_than_one_after_the_other():
    both = ShardingProblem(graph=graph(), mesh=(2, 2), costs=ByteCosts())
    joint = both.problem.solve()
    for first in (0, 1):
        apart = sequential(both, first)
        assert joint.cost <= apart.cost * (1 + 1e-9)
        assert both.problem.total(apart.values)[0] == pytest.approx(apart.cost)


@pytest.mark.slow
def test_p6_memory_makes_data_and_tensor_parallelism_of_two_dimensions():
    # Many rows: data parallelism alone is best, until weights of 16 bytes an element have no room.
    step = graphs.layers(rows=512, width=32, batch=64, attention=False)
    step = replace(step, gradients={k: v for k, v in step.gradients.items() if k != "start"})
    problem = ShardingProblem(graph=step, mesh=(2, 2), costs=ByteCosts())
    free = problem.problem.solve()
    tight = problem.problem.solve(memory=0.75 * free.memory)
    assert tight is not None and tight.memory <= 0.75 * free.memory
    cut, rows = set(), set()
    for number, one in enumerate(problem.sharded(tight.values).strategies):
        node = step.nodes[number]
        for axis, placed in enumerate(one.outputs[0]):
            if node.op == "parameter" and node.source.endswith(("up", "down")) and placed.kind == "S":
                cut.add(axis)
            if node.op == "aten.gelu.default" and placed.kind == "S" and placed.dim == 0:
                rows.add(axis)
    assert cut and rows


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: RHINO(graph(), None), InputError, "as the links of the job"),
        (lambda: RHINO(None, LINKS), InputError, "a training step as a graph of operators"),
        (lambda: RHINO(graph(), LINKS, level="O4"), PlanError, "expected O2"),
        (
            lambda: RHINO(graph(), LINKS, recompute="all"),
            PlanError,
            "expected one of: nothing, cheap operators",
        ),
        (lambda: RHINO(graph(), LINKS, stages=3), PlanError, "no shape: 4 ranks, 3 stages"),
        (
            lambda: RHINO(graph(), LINKS, mesh=(3,)),
            PlanError,
            "expected stages times a mesh of one or two dimensions",
        ),
        (lambda: RHINO(graph(), LINKS, time_budget_s=float("nan")), PlanError, "got nan seconds"),
        (lambda: RHINO(graph(), LINKS, memory_bytes=0), InputError, "0.0 bytes of memory"),
        (
            lambda: RHINO(
                replace(graph(), nodes=tuple(replace(n, time_s=0.0) for n in graph().nodes)), LINKS
            ),
            InputError,
            "fill in their costs first",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(call, error, said):
    with pytest.raises(error, match=said):
        call()


@pytest.mark.slow
def test_o2_takes_one_dimension_after_the_other():
    plan = RHINO(graph(), LINKS, mesh=(2, 2), stages=1, level="O2")
    assert plan.level == "O2" and np.isfinite(plan.gap)
    plan.check_itself()
