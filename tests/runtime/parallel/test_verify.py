"""A plan is compared with one device node by node, without process groups: right ones pass, a wrong one is named."""

from __future__ import annotations

import msgspec
import pytest

from tests.runtime.parallel.plans import data_parallel
from wirewise.errors import InputError, PlanError
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel import verify
from wirewise.runtime.parallel.rebuilt import rebuild_step
from wirewise_papers.parallel_models import MODELS


def split(name, **half):
    model, inputs = MODELS[name]()
    step = capture_step(model, inputs)
    plan = data_parallel(step, capture_step(*MODELS[name](**half)), 4)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return plan, step, inputs, {key: value.detach() for key, value in state.items()}


def test_a_right_plan_passes_of_a_step_made_again_from_its_record_too():
    plan, step, inputs, state = split("mlp", batch=16)
    verify(plan, step, inputs, state)
    verify(plan, rebuild_step(step.graph), inputs, state)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "half"), [("gpt", 4), ("moe", 4), ("unet", 4), ("cnn", 8)])
def test_a_right_plan_passes_of_every_model(name, half):
    plan, step, inputs, state = split(name, batch=half)
    verify(plan, rebuild_step(step.graph), inputs, state)


def test_a_wrong_placement_is_named():
    plan, step, inputs, state = split("mlp", batch=16)
    number = next(n for n, node in enumerate(step.graph.nodes) if node.op == "aten.mse_loss.default")
    places = list(plan.placements)
    places[number] = ("R",)
    wrong = msgspec.structs.replace(
        plan, placements=tuple(places), moves=tuple(m for m in plan.moves if m.producer != number)
    )
    with pytest.raises(PlanError, match=r"node 'mse_loss'.*placed R and takes .* S0"):
        verify(wrong, step, inputs, state)


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused():
    plan, step, inputs, state = split("mlp", batch=16)
    with pytest.raises(InputError, match="1 stages and 2 microbatches; expected one of each"):
        verify(msgspec.structs.replace(plan, microbatches=2), step, inputs, state)
    model, inputs = MODELS["gpt"](dropout=0.1)
    with pytest.raises(InputError, match="expected a step without dropout"):
        verify(plan, capture_step(model, inputs), inputs, {})
