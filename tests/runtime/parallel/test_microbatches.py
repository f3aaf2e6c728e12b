"""Plans of a batch as plans of its microbatches: losses and gradients of one device, and what is refused."""

from __future__ import annotations

import itertools

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.runtime.parallel.compared import compare
from tests.runtime.parallel.ranks import on_mesh
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel.microbatches import of_microbatch
from wirewise.runtime.parallel.parts import part_of_mesh, whole_of_parts
from wirewise.runtime.parallel.step import StepRunner
from wirewise.sim.operator_times import DeviceFigures, roofline_times
from wirewise.topology import lab_hosts
from wirewise_papers.parallel_models import MODELS

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


class Ranked(nn.Module):
    """Scores of classes, and what losses need beside them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.scores, self.value = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 1)
        self.mixture = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.register_buffer("weights", torch.tensor([1.0, 2.0, 0.5, 3.0]))

    def forward(self, x):
        hidden = torch.tanh(self.hidden(x))
        return self.scores(hidden), self.value(hidden).squeeze(-1)


def batch():
    torch.manual_seed(1)
    target = torch.tensor([0, -100, -100, -100, 3, -100, 1, 2])
    return torch.randn(8, 12), target, target.clamp(min=0), torch.randn(8)


def penalised(model, inputs):
    return functional.cross_entropy(model(inputs[0])[0], inputs[2], reduction="sum") + sum(
        0.1 * one.square().sum() for one in model.parameters()
    )


def masked(model, inputs):
    x, target, filled, _ = inputs
    counts = (target != -100).float()
    each = functional.cross_entropy(model(x)[0], filled, reduction="none")
    return (each * counts).sum() / counts.sum().clamp(min=1)


def mixed(model, inputs):
    scores, value = model(inputs[0])
    first, second = model.mixture.softmax(0)
    return first * functional.cross_entropy(scores, inputs[2]) + second * functional.mse_loss(
        value, inputs[3]
    )


def numbered(model, inputs):
    rows = torch.arange(len(inputs[0]), dtype=torch.float32)
    return (model(inputs[0])[1] * rows).sum() / rows.sum()


def paired_inputs(model, inputs):
    same = (inputs[2][:, None] == inputs[2][None, :]).float().mean(1)
    return (model(inputs[0])[1] * same).mean()


def with_all(loss):
    """The loss, and a little of all parameters."""

    def found(model, inputs):
        scores, value = model(inputs[0])
        return loss(model, inputs) + 0.01 * (scores.mean() + value.mean()) * model.mixture.sum()

    return found


LOSSES = {
    "mean": lambda m, i: functional.cross_entropy(m(i[0])[0], i[2]),
    "sum": lambda m, i: functional.cross_entropy(m(i[0])[0], i[2], reduction="sum"),
    "targets left out": lambda m, i: functional.cross_entropy(m(i[0])[0], i[1]),
    "weights of classes": lambda m, i: functional.cross_entropy(m(i[0])[0], i[2], m.weights),
    "smoothed with weights": lambda m, i: functional.cross_entropy(
        m(i[0])[0], i[1], m.weights, label_smoothing=0.1
    ),
    "smoothed": lambda m, i: functional.cross_entropy(m(i[0])[0], i[1], label_smoothing=0.1),
    "divided by the rows": lambda m, i: m(i[0])[1].square().sum() / len(i[0]),
    "huber and others": lambda m, i: (
        functional.huber_loss(m(i[0])[1], i[3])
        + functional.binary_cross_entropy_with_logits(m(i[0])[1], i[3].sigmoid(), reduction="sum")
        + functional.smooth_l1_loss(m(i[0])[1], i[3], beta=0.5)
    ),
    "a penalty of the weights": penalised,
    "masked": masked,
    "mixed by a parameter": mixed,
    "rows with numbers": numbered,
    "inputs compared": paired_inputs,
}


@pytest.mark.sweep(keep=6)
@pytest.mark.sample(6)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("microbatches", [2, 4])
def test_any_loss_of_microbatches_has_the_gradients_of_the_batch(name, microbatches):
    compare(Ranked(), batch(), with_all(LOSSES[name]), mesh=(2,), microbatches=microbatches, rate=1e12)


REFUSED = {
    "rows compared": (lambda m, i: (m(i[0])[0] @ m(i[0])[0].T).logsumexp(1).mean(), "mm_\\d"),
    "statistics": (
        lambda m, i: functional.batch_norm(m(i[0])[0], None, None, training=True).square().sum(),
        "norm",
    ),
    "a root of a mean": (lambda m, i: functional.mse_loss(m(i[0])[1], i[3]).sqrt(), "sqrt"),
    "the largest": (lambda m, i: m(i[0])[1].max(), "max"),
    "a deviation": (lambda m, i: m(i[0])[1].std(), "std|var"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sum_over_microbatches_is_refused_and_not_planned(name):
    loss, operator = with_all(REFUSED[name][0]), REFUSED[name][1]
    with pytest.raises(PlanError, match=f"{operator}.*microbatches would train another model"):
        compare(Ranked(), batch(), loss, mesh=(2,), microbatches=2)
    step = capture_step(Ranked(), batch(), loss)
    graph = roofline_times(step.graph, DeviceFigures(1e8, 1e8, 1e9, 1e-5))
    found = make_plan(ParallelProblem(graph=graph, links=Links.of(lab_hosts(["100mbit"] * 2))), stages=2)
    assert found.microbatches == 1


def test_random_numbers_keep_the_planner_to_one_stage():
    model = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.1), nn.Linear(12, 12))
    step = capture_step(model, (torch.randn(8, 12),), lambda m, i: m(*i).square().mean())
    graph = roofline_times(step.graph, DeviceFigures(1e8, 1e8, 1e9, 1e-5))
    problem = ParallelProblem(graph=graph, links=Links.of(lab_hosts(["100mbit"] * 2)))
    assert make_plan(problem).stages == 1
    with pytest.raises(PlanError, match="dropout draws random numbers"):
        make_plan(problem, stages=2)
