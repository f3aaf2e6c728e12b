"""The wrapped model: weights of rank 0, recomputation, precision, fused ops, and changes of plan."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

from tests.runtime.data_parallel.examples import (
    Branching,
    batch,
    convolutional,
    made,
    mean_gradients,
    names_of,
    plan_of,
    random_plan,
    sequential,
    whole,
)
from tests.runtime.data_parallel.wrapped import assert_equal, backward, gradients, run
from wirewise.errors import PlanError


def test_all_ranks_start_with_the_weights_of_rank_0():
    def body(wrapped, optimizer, rank):
        return {k: v.clone() for k, v in wrapped.module.state_dict().items()}

    expected = made(convolutional, seed=0).state_dict()
    for found in run(convolutional, whole(convolutional(), 3), body, ranks=3):
        assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("until", ["backward", "step"])
def test_weights_stay_equal_over_steps(until):
    def body(wrapped, optimizer, rank):
        for step in range(4):
            optimizer.zero_grad()
            backward(wrapped, rank, step)
            optimizer.step()
        return [p.detach().clone() for p in wrapped.parameters()]

    results = run(Branching, random_plan(Branching(), 2, 7), body, until=until)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("follow", [True, False])
def test_buffers_follow_rank_0_if_they_shall(follow):
    def body(wrapped, optimizer, rank):
        seen = []
        wrapped.module.register_forward_pre_hook(lambda m, _: seen.append(m[2].running_mean.clone()))
        for step in range(3):
            backward(wrapped, rank, step, width=36)
        return seen

    first, second = run(convolutional, whole(convolutional(), 2), body, broadcast_buffers=follow)
    assert all(torch.equal(a, b) == (follow or not a.any()) for a, b in zip(first, second, strict=True))
    assert first[2].any()


def test_bfloat16_computes_in_bfloat16_and_gives_float32():
    seen = set()

    def body(wrapped, optimizer, rank):
        wrapped.module[0].register_forward_hook(lambda m, i, o: seen.add(o.dtype))
        backward(wrapped, rank)
        assert wrapped(batch(rank, 0)[0]).dtype == torch.float32
        assert all(p.grad.dtype == p.dtype == torch.float32 for p in wrapped.parameters())
        return gradients(wrapped)

    for found in run(sequential, whole(sequential(), 2, precision="bfloat16"), body):
        for name, value in mean_gradients(made(sequential), 2).items():
            assert (found[name] - value).norm() < 0.05 * value.norm()
    assert seen == {torch.bfloat16}


def test_containers_of_outputs_become_float32():
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(12, 2)

        def forward(self, x):
            y = self.one(x)
            return {"a": y, "b": [y, (y, 3)], "c": torch.max(y, dim=1)}

    def body(wrapped, optimizer, rank):
        found = wrapped(torch.ones(2, 12))
        b, (c, three) = found["b"]
        return {t.dtype for t in (found["a"], b, c, found["c"].values)}, three, found["c"].indices.dtype

    for dtypes, three, index in run(Several, whole(Several(), 2, precision="bfloat16"), body):
        assert dtypes == {torch.float32} and three == 3 and index == torch.int64


def test_another_plan_takes_over_between_steps():
    first = whole(sequential(), 2, recompute=("0",))
    names = names_of(sequential())
    second = plan_of(sequential(), [names[:3], names[3:]], 2, chunks=2, precision="bfloat16")

    def body(wrapped, optimizer, rank):
        for step, plan in enumerate((first, second, first)):
            wrapped.use(plan)
            assert ("forward" in wrapped.module[0].__dict__) == bool(plan.recompute)
            optimizer.zero_grad()
            backward(wrapped, rank, step)
        return gradients(wrapped)

    for found in run(sequential, first, body):
        assert_equal(found, mean_gradients(made(sequential), 2, 2))


def test_a_plan_that_does_not_fit_leaves_the_present_one():
    plan = whole(sequential(), 2, recompute=("0",))

    def body(wrapped, optimizer, rank):
        for wrong in (
            msgspec.structs.replace(plan, recompute=("ghost",)),
            msgspec.structs.replace(plan, fused_ops=(("0", "phantom"),)),
            msgspec.structs.replace(plan, world_size=3),
        ):
            with pytest.raises(PlanError, match=r"ghost|phantom|world size"):
                wrapped.use(wrong)
        assert wrapped.plan == plan and "forward" in wrapped.module[0].__dict__
        backward(wrapped, rank)
        return gradients(wrapped)

    for found in run(sequential, plan, body):
        assert_equal(found, mean_gradients(made(sequential), 2))
