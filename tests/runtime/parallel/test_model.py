"""Models under parallel plans against one device: losses, gradients, weights, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.harness.processes import RankError, run_ranks_as_processes
from tests.harness.tiers import spread
from tests.runtime.parallel.plans import data_parallel, in_stages
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.buckets import assign_buckets
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel import parallelize
from wirewise.topology import lab_hosts
from wirewise_papers.parallel_models import MODELS

STEPS = 5
HALF = {
    "mlp": {"batch": 16},
    "gpt": {"batch": 4},
    "moe": {"batch": 4},
    "unet": {"batch": 4},
    "cnn": {"batch": 8},
}
"""Half of each model's batch."""


def captured(name, **sizes):
    return capture_step(*MODELS[name](**sizes))


def trained(model, inputs, seed=0):
    """Losses and gradients of some steps, and the weights behind them."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, gradients = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*inputs)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append({name: wholly(p.grad) for name, p in model.named_parameters()})
        optimizer.step()
    return losses, gradients, {name: wholly(p.detach()) for name, p in model.named_parameters()}


def wholly(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def same(got, wanted):
    """Whether all that `trained` tells is equal within 1e-5 of the largest value; stages tell of their own weights."""
    losses, gradients, _ = got
    torch.testing.assert_close(losses, wanted[0], rtol=1e-5, atol=1e-5)
    for own, one in zip(gradients, wanted[1], strict=True):
        for name, gradient in own.items():
            most = float(one[name].abs().max())
            torch.testing.assert_close(gradient, one[name], rtol=0, atol=1e-5 * max(most, 1.0), msg=name)


def one_rank(rank, names, settings):
    """A rank that trains several models one after the other; ranks have seeds of their own."""
    found = []
    for name, (plan, sizes, seed) in zip(names, settings, strict=True):
        model, inputs = MODELS[name](**sizes)
        micro = None
        if plan.microbatches > 1:
            micro = captured(name, **{**sizes, "batch": 2 * HALF[name]["batch"] // plan.microbatches})
        parallel = parallelize(model, plan, capture_step(model, inputs), microbatch=micro, timeout_s=30.0)
        found.append(trained(parallel, inputs, seed=seed + rank))
    return found


def together(plan, graph):
    """The plan with its gradients in buckets."""
    ends = set(graph.gradients.values())
    moves = tuple(msgspec.structs.replace(move, once=move.producer in ends) for move in plan.moves)
    return assign_buckets(msgspec.structs.replace(plan, moves=moves), graph, 1 << 12, 1 << 14)


@pytest.mark.dist
@pytest.mark.slow
def test_the_batch_in_parts_trains_as_one_device():
    names = list(HALF)
    plans = {}
    for name in names:
        model, inputs = MODELS[name]()
        step = capture_step(model, inputs)
        plan = data_parallel(step, captured(name, **HALF[name]), 4)
        # Gradients of every second model go together.
        plans[name] = together(plan, step.graph) if len(plans) % 2 else plan
    assert all(plans[name].buckets for name in names[1::2])
    found = run_ranks_as_processes(4, one_rank, names, [(plans[name], {}, 0) for name in names])
    for place, name in enumerate(names):
        wanted = trained(*MODELS[name]())
        for one in found:
            same(one[place], wanted)


@pytest.mark.dist
@pytest.mark.slow
def test_dropout_microbatches_and_stages_train_as_one_device():
    sizes = {"dropout": 0.2}
    dropped = capture_step(*MODELS["gpt"](**sizes))
    settings = [
        (data_parallel(dropped, captured("gpt", **sizes, **HALF["gpt"]), 4), sizes, 7),
    ]
    step = captured("gpt")
    plain = data_parallel(step, captured("gpt", **HALF["gpt"]), 4)
    ends = step.graph.gradients.values()
    once = tuple(
        msgspec.structs.replace(move, once=True) if move.producer in ends else move for move in plain.moves
    )
    settings.append((msgspec.structs.replace(plain, microbatches=2, moves=once), {}, 0))
    pairs = data_parallel(step, captured("gpt", **HALF["gpt"]), 2)
    staged = in_stages(step, pairs, stage_of_module, 2)
    settings.append((staged, {}, 0))
    settings.append((msgspec.structs.replace(staged, microbatches=4), {}, 0))
    for plan, _, _ in settings:
        plan.check_itself()
    found = run_ranks_as_processes(4, one_rank, ["gpt"] * len(settings), settings)
    wanted = [trained(*MODELS["gpt"](**one), seed=seed) for _, one, seed in settings]
    for own in found:
        for place, (got, one) in enumerate(zip(own, wanted, strict=True)):
            same(got, one)
            assert len(got[2]) == len(one[2]) or settings[place][0].stages > 1
    names = {name for own in found for name in own[2][2]}
    assert names == set(wanted[2][2]), "every parameter is on a stage"


def stage_of_module(name):
    if name.startswith(("tokens", "places", "blocks.0")):
        return 0
    return 1 if name.startswith(("blocks", "norm", "head")) else None


def planned(name, **shape):
    """A planner's plan of a model, for links so fast that splitting pays."""
    model, inputs = MODELS[name]()
    graph = capture_step(model, inputs).graph
    nodes = tuple(msgspec.structs.replace(node, time_s=node.flops / 1e8) for node in graph.nodes)
    links = Links.of(lab_hosts(["10gbit"] * 4))
    return make_plan(ParallelProblem(graph=msgspec.structs.replace(graph, nodes=nodes), links=links), **shape)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(4,), (2, 2)], ids=["4", "2x2"])
def test_p7_planned_models_train_as_one_device(mesh):
    names = spread(["mlp", "gpt", "moe", "unet", "gcn", "cnn"], 2, len(mesh) - 1)
    plans = [planned(name, stages=1, mesh=mesh) for name in names]
    assert all(plan.collective_bytes for plan in plans)
    found = run_ranks_as_processes(4, one_rank, names, [(plan, {}, 0) for plan in plans], timeout_s=200)
    for place, name in enumerate(names):
        wanted = trained(*MODELS[name]())
        for one in found:
            same(one[place], wanted)


@pytest.mark.dist
@pytest.mark.slow
def test_p7_planned_stages_train_as_one_device():
    shapes = {
        "mlp": {"stages": 2, "mesh": (2,), "microbatches": 2},
        "gpt": {"stages": 4, "mesh": (1,), "microbatches": 4},
        "moe": {"stages": 4, "mesh": (1,), "microbatches": 4},
    }
    plans = [planned(name, **shape) for name, shape in shapes.items()]
    found = run_ranks_as_processes(4, one_rank, list(shapes), [(plan, {}, 0) for plan in plans])
    for place, name in enumerate(shapes):
        assert set(plans[place].stage_of) == set(range(shapes[name]["stages"]))
        wanted = trained(*MODELS[name]())
        for one in found:
            same(one[place], wanted)


@pytest.mark.dist
@pytest.mark.slow
def test_plans_for_others_are_refused():
    step = captured("mlp")
    plan = data_parallel(step, captured("mlp", batch=16), 2)
    with pytest.raises(RankError, match="the plan is for 3 ranks, the process group has 2"):
        run_ranks_as_processes(
            2, one_rank, ["mlp"], [(data_parallel(step, captured("mlp", batch=16), 3), {}, 0)]
        )
    with pytest.raises(RankError, match=r"was made for the graph"):
        run_ranks_as_processes(2, one_rank, ["mlp"], [(plan, {"batch": 8}, 0)])


def refusals(rank, plan):
    """What a rank is told where it calls the model as it was not captured, and a loss that is right afterwards."""
    model, inputs = MODELS["mlp"]()
    parallel = parallelize(model, plan, capture_step(model, inputs), timeout_s=30.0)
    told = []

    def refused(call):
        with pytest.raises(InputError) as caught:
            call()
        told.append(str(caught.value))

    inner = list(parallel.modules())[-1]
    inner.eval()
    refused(lambda: parallel(*inputs))
    inner.train()
    with torch.autocast("cpu", torch.bfloat16):
        refused(lambda: parallel(*inputs))
    refused(lambda: parallel(dict(enumerate(inputs))))
    loss = parallel(*inputs)
    loss.backward(retain_graph=True)
    refused(loss.backward)
    return told, float(loss.detach())


def by_name(model, batch):
    """A loss of a batch with names."""
    return model(batch["x"], batch["target"])


def named_batch(rows=32):
    model, (x, target) = MODELS["mlp"](batch=rows)
    return model, {"x": x, "target": target}


def called_by_name(rank, plan):
    """Losses of a batch with names, given in other orders."""
    model, batch = named_batch()
    parallel = parallelize(model, plan, capture_step(model, batch, by_name), timeout_s=30.0)
    turned = dict(reversed(batch.items()))
    return [float(parallel(turned).detach()), float(parallel(**turned).detach())]


@pytest.mark.dist
@pytest.mark.slow
def test_a_batch_with_names_is_taken_in_any_order():
    step = capture_step(*named_batch(), by_name)
    plan = data_parallel(step, capture_step(*named_batch(16), by_name), 2)
    model, batch = named_batch()
    for found in run_ranks_as_processes(2, called_by_name, plan):
        assert found == pytest.approx([float(by_name(model, batch).detach())] * 2, rel=1e-5)


@pytest.mark.dist
@pytest.mark.slow
def test_calls_that_a_captured_step_would_ignore_are_refused():
    plan = data_parallel(captured("mlp"), captured("mlp", batch=16), 2)
    model, inputs = MODELS["mlp"]()
    wanted = float(model(*inputs).detach())
    for told, loss in run_ranks_as_processes(2, refusals, plan):
        for words, part in zip(
            told,
            (
                "captured in training mode and is in the other one now (train() or eval(), 1 modules)",
                "torch.autocast('cpu')",
                "the batch is 1 entries; expected 2 entries as captured",
                "twice",
            ),
            strict=True,
        ):
            assert part in words
        assert loss == pytest.approx(wanted, rel=1e-5)
