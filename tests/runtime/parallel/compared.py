"""Captured steps under plans, ranks as threads, compared with eager autograd of one process."""

from __future__ import annotations

import copy
from math import prod

import torch
from torch.utils import _pytree as pytree

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.parallel.ranks import on_mesh
from wirewise.cost.links import Links
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.runtime.joint_graph import capture_step, model_loss
from wirewise.runtime.parallel.groups import ThreadGroups
from wirewise.runtime.parallel.microbatches import of_microbatch
from wirewise.runtime.parallel.parts import part_of_mesh, whole_of_parts
from wirewise.runtime.parallel.step import StepRunner
from wirewise.runtime.transport import transport_of
from wirewise.sim.operator_times import DeviceFigures, roofline_times

SLOW = DeviceFigures(1e8, 1e8, 1e9, 1e-6)
"""A device so slow that plans cut what they can."""
TOLERANCE = 1e-5


def compare(model, inputs, loss=model_loss, *, mesh=(4,), microbatches=1, stages=1, rate=1e9, **knobs):
    """Plan a step and carry it out; loss, gradients and buffers are those of eager autograd.

    Returns:
        The plan.

    Raises:
        WirewiseError: The step, the plan or its execution is refused.
        AssertionError: Names the first gradient or buffer that differs.
    """
    step = capture_step(model, inputs, loss)
    links = Links.uniform(stages * prod(mesh), rate, 1e-5)
    problem = ParallelProblem(graph=roofline_times(step.graph, SLOW), links=links)
    plan = make_plan(problem, stages=stages, mesh=mesh, microbatches=microbatches, time_limit_s=20.0, **knobs)
    own, of_part = step, plan
    if microbatches > 1:
        part = pytree.tree_map(lambda one: one.chunk(microbatches)[0], inputs)
        own, of_part = of_microbatch(plan, step, capture_step(model, part, loss))
    wanted, gradients, buffers = eager(model, inputs, loss)
    leaves = pytree.tree_leaves(inputs)
    state = {name: one.detach() for name, one in (*model.named_parameters(), *model.named_buffers())}
    if stages == 1:
        found = on_mesh(mesh, one_rank, own, of_part, leaves, state)
    else:
        found = in_stages(own, of_part, leaves, state)
    numbers = {node.source: n for n, node in enumerate(step.graph.nodes) if node.op == "parameter"}
    # What is rounded to half precision inside is rounded elsewhere where tensors are cut.
    coarse = 2**10 if any(node.dtype in ("bfloat16", "float16") for node in step.graph.nodes) else 1
    for loss_of_rank, _, changed in found:
        close(loss_of_rank, wanted, "the loss", coarse=coarse)
        for name, value in changed.items():
            close(value, buffers[name], name, coarse=coarse)
    largest = max(float(one.abs().max()) for one in gradients.values() if one is not None)
    for name, gradient in gradients.items():
        # Each stage has its own parameters.
        having = [rank for rank in range(len(found)) if name in found[rank][1]]
        parts = [found[rank][1][name] for rank in having] or [None] * prod(mesh)
        assert len(parts) == prod(mesh), f"ranks {having} have a gradient of {name}"
        if gradient is None:
            assert parts == [None] * len(parts), f"{name} has a gradient, in eager mode none"
        else:
            close(
                whole_of_parts(parts, of_part.placement_of(numbers[name]), mesh),
                gradient,
                name,
                0.1 * largest,
                coarse,
            )
    return plan


def one_rank(groups, step, plan, inputs, state, stage=0, world=None):
    """A step of a rank from whole tensors."""
    runner = StepRunner(step, plan, groups, stage, world)
    own = {
        name: part_of_mesh(state[name], runner.program.placements(number), groups.mesh, groups.place)
        for name, number in (runner.parameters | runner.buffers).items()
    }
    return runner(inputs, own)


def in_stages(step, plan, inputs, state):
    """A step of all ranks of a plan with several stages, threads with messages over gloo."""
    meetings = [ThreadGroups.create_rendezvous(prod(plan.mesh), timeout_s=30.0) for _ in plan.ranks]

    def body(rank, group, store):
        stage, place = plan.place_of(rank)
        world = transport_of(group, timeout_s=30.0, store=store)
        return one_rank(
            ThreadGroups(plan.mesh, place, meetings[stage]), step, plan, inputs, state, stage, world
        )

    return run_ranks_as_threads(plan.world_size, body)


def eager(model, inputs, loss):
    """Loss, gradients and buffers of a copy of the model."""
    own = copy.deepcopy(model)
    found = loss(own, inputs)
    found.backward()
    gradients = {name: one.grad for name, one in own.named_parameters() if one.requires_grad}
    return found.detach(), gradients, dict(own.named_buffers())


def close(got, wanted, name, floor=1e-2, coarse=1):
    """Equal within 1e-5 of the largest value, or of `floor` where that is larger: gradients that cancel are noise."""
    assert got.shape == wanted.shape, f"{name}: {list(got.shape)}, expected {list(wanted.shape)}"
    if not wanted.is_floating_point():
        assert torch.equal(got, wanted), name
        return
    most = max(float(wanted.abs().max()) if wanted.numel() else 0.0, floor)
    torch.testing.assert_close(
        got, wanted, rtol=0, atol=TOLERANCE * coarse * most, msg=lambda m: f"{name}: {m}"
    )
