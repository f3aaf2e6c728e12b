from __future__ import annotations

import pytest

from tests.planners.pipeline.problems import random_trace
from tests.sim.pipeline_jobs import chain, links
from wirewise.cost import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS, pipeline
from wirewise.sim import predict
from wirewise.sim.lowering.stages import costs_of_plan
from wirewise.sim.stage_memory import peak_bytes

PLANS = PLANNERS["stages"]


@pytest.mark.sweep
@pytest.mark.parametrize("method", pipeline.METHODS)
def test_a_plan_is_checked_predicted_and_within_memory(method):
    trace, on = random_trace(4, 10), Links.uniform(4, 3000.0, 0.01)
    plan = PLANS[method](trace, on, batch=32, memory_bytes=4e4)
    plan.check_itself()
    assert plan.planner == method and plan.style in pipeline.METHODS[method]
    assert predict(plan, trace, on).step_s == plan.predicted_s > 0
    assert plan.predicted_bytes == peak_bytes(plan, costs_of_plan(plan, trace))
    assert max(plan.predicted_bytes) <= 4e4
    assert plan.replicas * plan.microbatches * plan.microbatch_size == 32
    assert len(plan.message_s) == len(plan.all_edges) and len(plan.pass_s) == len(plan.stages)


def test_two_versions_beat_flushes_where_stages_are_needed():
    """A rank has room for a third of the model, so that stages are needed."""
    trace, on = chain(12, 0.2, parameter_bytes=1000.0), links(4)
    given = {"batch": 16, "memory_bytes": 17e3, "stages": 4}
    found = {name: PLANS[name](trace, on, **given).predicted_s for name in ("two-bw", "1f1b", "eager")}
    assert found["two-bw"] < found["eager"] < found["1f1b"]


def test_messages_move_the_cut():
    """The third module hands on ten times as much as others."""
    plain = chain(6, 0.1)
    modules = list(plain.modules)
    modules[2] = type(modules[2])(name="m2", forward_s=(1.0,), backward_s=(2.0,), output_bytes=20_000.0)
    heavy = type(plain)(modules=tuple(modules))
    cuts = [
        PLANS["1f1b"](trace, links(2), batch=8, stages=2, microbatch_size=1).stages[0].modules
        for trace in (plain, heavy)
    ]
    assert cuts[0] == ("m0", "m1", "m2") and cuts[1] != cuts[0]


def test_seconds_of_messages_can_be_those_of_another_plan():
    trace, on = chain(4, 1.0), links(4)

    def edge_s(source, target, size_bytes):
        return 0.25

    plan = PLANS["eager"](trace, on, batch=16, edge_s=edge_s, stages=4, microbatch_size=1)
    assert plan.message_s == (0.25,) * 3
    assert (
        predict(plan, trace, on, edge_s=edge_s).step_s == plan.predicted_s < predict(plan, trace, on).step_s
    )


def test_it_is_said_why_not_more_stages():
    plan = PLANS["1f1b"](chain(4, 3.0, parameter_bytes=500.0), links(4), batch=16, memory_bytes=7e3)
    notes = " | ".join(plan.notes)
    assert plan.positions == 2
    assert "4 stages, 1 replica: 1." in notes and "round trips of microbatches" in notes
    assert "1 stage: a rank needs" in notes


@pytest.mark.parametrize(
    ("message_s", "batch", "style"),
    [(0.0, 4, "interleaved"), (0.05, 8, "interleaved"), (0.5, 8, "zero-bubble")],
)
def test_interleaved_stages_are_taken_where_they_win(message_s, batch, style):
    """Few microbatches make bubbles long; long messages make many stages slow."""
    trace, on = chain(16, message_s, parameter_bytes=1000.0), links(4)
    given = {"batch": batch, "stages": 4, "microbatch_size": 1}
    names = ("eager", "eager-split", "zero-bubble", "interleaved")
    each = {name: PLANS[name](trace, on, **given) for name in names}
    plan = PLANS["one-version"](trace, on, **given)
    assert plan.style == style and plan.predicted_s == min(one.predicted_s for one in each.values())
    assert predict(plan, trace, on).step_s == plan.predicted_s
    assert predict(each["interleaved"], trace, on).step_s == each["interleaved"].predicted_s
    notes = " | ".join(plan.notes)
    assert "timetable eager: " in notes and ("4 stages a position fill" in notes) == (style == "interleaved")
    assert len(plan.stages) == (16 if style == "interleaved" else 4)


def test_interleaved_stages_without_room_are_left_out():
    """Activations of more microbatches are in flight than under other timetables."""
    trace, on = chain(16, 0.05, parameter_bytes=1000.0, saved_bytes=500.0), links(4)
    given = {"batch": 8, "stages": 4, "microbatch_size": 1, "recompute": False}
    free = PLANS["one-version"](trace, on, **given)
    tight = PLANS["one-version"](trace, on, **given, memory_bytes=max(free.predicted_bytes) - 1)
    assert free.style == "interleaved" != tight.style
    assert max(tight.predicted_bytes) < max(free.predicted_bytes)
    assert "stages a position: a rank needs" in " | ".join(tight.notes)
    with pytest.raises(PlanError, match="no interleaved timetable of 16 modules has room"):
        PLANS["interleaved"](trace, on, **given, memory_bytes=max(tight.predicted_bytes) - 1)
    assert len(PLANS["interleaved"](chain(4), on, batch=8, stages=4).stages) == 4


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: PLANS["eager"](chain(4), None), InputError, "as the links of the job"),
        (lambda: PLANS["eager"](None, links(4)), InputError, "a model as a list of modules"),
        (lambda: PLANS["eager"](chain(4), links(4), batch=0), InputError, "got 0 samples"),
        (lambda: PLANS["eager"](chain(4), links(4), memory_bytes=0), InputError, "0 bytes of memory"),
        (lambda: PLANS["eager"](chain(4), links(4), candidates=0), PlanError, "candidates is 0"),
        (lambda: PLANS["eager"](chain(4), links(4), time_budget_s=1.0), PlanError, "no search that time"),
        (lambda: pipeline.plan(pipeline.problem_of(chain(4), links(4)), method="x"), PlanError, "unknown planner"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(call, kind, said):
    with pytest.raises(kind, match=said):
        call()
