"""A plan with regions through `parallel`: the step of one process, next to plans of other kinds, or a refusal."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.captured import (
    BUILDS,
    alone,
    duplicated,
    example,
    fused,
    in_regions,
    loss_of,
)
from tests.runtime.data_parallel.examples import made, whole
from tests.runtime.data_parallel.test_compiled import TOLERANCE, assert_same, eager
from wirewise.errors import InputError, PlanError
from wirewise.runtime.data_parallel import AllReduce, TrainingStep, parallel, transport_of
from wirewise.runtime.data_parallel.capture import capture


def step_of(name: str) -> TrainingStep:
    return TrainingStep(loss_of, example(name), compiler="none")


def regions_of(name: str, length: int = 5) -> tuple[tuple[str, ...], ...]:
    return fused(capture(made(BUILDS[name]), loss_of, example(name)).operators, length)


def wrapped(name: str, plan: Any, group: Any = None, **options: Any) -> tuple[Any, torch.optim.Optimizer]:
    model = made(BUILDS[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return parallel(model, plan, optimizer, group or alone(), **options), optimizer


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", BUILDS)
def test_steps_under_regions_are_those_of_one_process(name):
    reference = made(BUILDS[name])
    graph = capture(reference, loss_of, example(name)).operators
    model, optimizer = wrapped(name, in_regions(reference, duplicated(graph, 0)), step=step_of(name))
    own = torch.optim.SGD(reference.parameters(), lr=0.1)
    for number in range(3):
        batch = example(name, step=number)
        optimizer.zero_grad()
        torch.testing.assert_close(model.step(batch), eager(reference, batch), **TOLERANCE)
        assert_same(model.module, reference)
        optimizer.step()
        own.step()


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("own", [False, True], ids=["all-reduces of torch", "a collective of one's own"])
def test_gradients_are_the_mean_over_ranks_under_one_plan_after_another(own):
    """Regions, one bucket without them, and regions again, each from the weights of the step before."""
    summed: list[int] = []
    name, regions = "cnn", regions_of("cnn")
    fuse = in_regions(made(BUILDS[name]), regions, ranks=2)
    plain = whole(made(BUILDS[name]), 2)

    def body(rank: int, group: Any, store: Any) -> list[dict[str, torch.Tensor]]:
        transport = transport_of(group, timeout_s=20, store=store)
        ring = AllReduce(transport)
        collective = (lambda flat: (summed.append(flat.numel()), ring(flat))) if own else None
        model = made(BUILDS[name], seed=rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapper = parallel(model, fuse, optimizer, transport, step=step_of(name), collective=collective)
        found = []
        for number, plan in enumerate((fuse, plain, fuse)):
            wrapper.use(plan)
            optimizer.zero_grad()
            wrapper.step(example(name, rank, number))
            optimizer.step()
            found.append({name: p.grad.clone() for name, p in model.named_parameters()})
        return found

    results = run_ranks_as_threads(2, body)
    models = [made(BUILDS[name]) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for number in range(3):
        # Statistics of rank 0 are those of all.
        models[1].load_state_dict(models[0].state_dict())
        for rank, model in enumerate(models):
            eager(model, example(name, rank, number))
        for parameter, _ in models[0].named_parameters():
            mean = sum(dict(m.named_parameters())[parameter].grad for m in models) / 2
            for found in results:
                torch.testing.assert_close(found[number][parameter], mean, **TOLERANCE)
            for model in models:
                dict(model.named_parameters())[parameter].grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    # Two buckets, one, and two again, on each rank.
    assert len(summed) == (2 * (2 + 1 + 2) if own else 0)


def test_the_same_loop_carries_out_a_plan_without_regions():
    reference = made(BUILDS["mlp"])
    plan = whole(reference, 1, accumulation=2, recompute=("0",))
    model, optimizer = wrapped("mlp", plan, step=step_of("mlp"))
    batches = [example("mlp", step=number) for number in range(2)]
    optimizer.zero_grad()
    losses = [model.step(batch) for batch in batches]
    for batch, loss in zip(batches, losses, strict=True):
        expected = loss_of(reference, batch)
        expected.backward()
        assert not loss.requires_grad
        torch.testing.assert_close(loss, expected.detach(), **TOLERANCE)
    assert_same(model.module, reference)


def test_regions_without_a_step_are_refused_and_leave_the_model_alone():
    reference = made(BUILDS["mlp"])
    plan = in_regions(reference, regions_of("mlp"))
    model = copy.deepcopy(reference)
    with pytest.raises(
        PlanError, match=r"has regions, .*give parallel\(.*step=TrainingStep\(.*model\.step\(batch\)"
    ):
        parallel(model, plan, torch.optim.SGD(model.parameters()), alone())
    assert not model._forward_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    wrapper, _ = wrapped("mlp", whole(reference, 1))
    with pytest.raises(PlanError, match="has regions, which need the whole step"):
        wrapper.use(plan)
    assert wrapper.plan == whole(reference, 1)
    loss_of(wrapper, example("mlp")).backward()
    eager(reference, example("mlp"))
    assert_same(wrapper.module, reference)
    with pytest.raises(InputError, match=r"step\(batch\) needs the loss; give parallel\("):
        wrapper.step(example("mlp"))


def test_a_call_of_the_model_does_not_pass_over_its_regions():
    model, _ = wrapped("mlp", in_regions(made(BUILDS["mlp"]), regions_of("mlp")), step=step_of("mlp"))
    x, _ = example("mlp")
    with pytest.raises(PlanError, match=r"has regions, which a call .* call loss = model\.step\(batch\)"):
        model(x)
    with pytest.raises(PlanError, match="has regions; a captured step reduces its gradients each time"):
        model.no_sync()
    with torch.no_grad():
        expected = model.module(x)
        torch.testing.assert_close(model(x), expected)
    model.eval()
    torch.testing.assert_close(model(x), expected)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    "changes",
    [
        {"accumulation": 2},
        {"precision": "bfloat16"},
        {"recompute": ("0",)},
        {"fused_ops": (("0", "1"),)},
        {"codec": "fp16"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_captured_step_cannot_carry_out_is_named(changes):
    plan = in_regions(made(BUILDS["mlp"]), regions_of("mlp"))
    if "codec" in changes:
        changed = tuple(msgspec.structs.replace(bucket, **changes) for bucket in plan.buckets)
        plan = msgspec.structs.replace(plan, buckets=changed)
    else:
        plan = msgspec.structs.replace(plan, **changes)
    with pytest.raises(PlanError, match=f"decides on .*{next(iter(changes))}.*; a captured step carries out"):
        wrapped("mlp", plan, step=step_of("mlp"))
