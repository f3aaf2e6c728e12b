"""Plans of a batch as plans of its microbatches: losses and gradients of one device, and what is refused."""

from __future__ import annotations

import itertools

import msgspec
import pytest
import torch

from tests.runtime.parallel.ranks import on_mesh
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.recipes.parallel_models import MODELS
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel.microbatches import of_microbatch
from wirewise.runtime.parallel.parts import part_of_mesh, whole_of_parts
from wirewise.runtime.parallel.step import StepRunner
from wirewise.sim.operator_times import DeviceFigures, roofline_times
from wirewise.topology import lab_hosts

SIZES = {"batch": 8, "length": 16, "width": 32, "heads": 8, "layers": 1, "vocabulary": 64}


def captured(microbatches=1):
    return capture_step(*MODELS["gpt"](**{**SIZES, "batch": SIZES["batch"] // microbatches}))


def planned(step, mesh, microbatches, rate="100mbit"):
    graph = roofline_times(step.graph, DeviceFigures(1e8, 1e8, 1e9, 1e-5))
    problem = ParallelProblem(graph=graph, links=Links.of(lab_hosts([rate] * 4)))
    return make_plan(problem, stages=1, mesh=mesh, microbatches=microbatches)


def one_rank(groups, step, plan, inputs, state):
    runner = StepRunner(step, plan, groups)
    own = {
        name: part_of_mesh(state[name], runner.program.placements(number), groups.mesh, groups.place)
        for name, number in (runner.parameters | runner.buffers).items()
    }
    return runner(inputs, own)[:2]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(4,), (2, 2)], ids=["4", "2x2"])
def test_any_plan_of_microbatches_has_the_gradients_of_one_device(mesh):
    model, inputs = MODELS["gpt"](**SIZES)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: one.detach() for name, one in state.items()}
    step, loss = captured(), model(*inputs)
    loss.backward()
    numbers = {node.source: n for n, node in enumerate(step.graph.nodes) if node.op == "parameter"}
    for microbatches, rate in itertools.product((2, 4), ("100mbit", "10gbit")):
        plan = planned(step, mesh, microbatches, rate)
        part, own = of_microbatch(plan, step, captured(microbatches))
        found = on_mesh(mesh, one_rank, part, own, inputs, state)
        torch.testing.assert_close(found[0][0], loss.detach())
        for name, parameter in model.named_parameters():
            got = whole_of_parts([one[1][name] for one in found], plan.placement_of(numbers[name]), mesh)
            most = float(parameter.grad.abs().max())
            torch.testing.assert_close(got, parameter.grad, rtol=0, atol=1e-5 * max(most, 1.0), msg=name)


def test_blocks_of_a_cut_are_as_long_as_in_the_batch():
    step, part = captured(), captured(2)
    plan = planned(step, (4,), 1)
    # Rows of all texts, cut within each of the 8 texts.
    shapes = [[node.shape for node in one.graph.nodes] for one in (step, part)]
    number = list(zip(*shapes, strict=True)).index(((128, 32), (64, 32)))
    placements = list(plan.placements)
    placements[number] = ("S0/8",)
    moved = msgspec.structs.replace(plan, placements=tuple(placements), moves=(), microbatches=2)
    assert of_microbatch(moved, step, part)[1].placements[number] == ("S0/4",)
    placements[number] = ("S0/2",)
    few = msgspec.structs.replace(moved, placements=tuple(placements), microbatches=4)
    with pytest.raises(PlanError, match="in 2 blocks of which 4 microbatches have no whole ones"):
        of_microbatch(few, step, captured(4))
    with pytest.raises(InputError, match="the plan has 2 microbatches; expected `microbatch`"):
        of_microbatch(moved, step, None)
    with pytest.raises(InputError, match="expected the same operators on smaller tensors"):
        of_microbatch(moved, step, capture_step(*MODELS["mlp"]()))
