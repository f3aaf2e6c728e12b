"""The wrapped model: weights of rank 0, recomputation, precision, fused ops, and changes of plan."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.harness.processes import run_ranks_as_processes
from tests.harness.threads import run_ranks_as_threads
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
)  # fmt: skip
from wirewise.errors import PlanError
from wirewise.runtime.data_parallel import changes, parallel


def run(build, plan, body, ranks: int = 2, **options) -> list[Any]:
    """`body(wrapped, optimizer, rank)` on every rank, which start with weights of their own."""

    def rank_body(rank: int, group: Any, store: Any) -> Any:
        model = made(build, seed=rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = parallel(model, plan, optimizer, group, store=store, timeout_s=20, **options)
        return body(wrapped, optimizer, rank)

    return run_ranks_as_threads(ranks, rank_body)


def backward(model: nn.Module, rank: int, step: int = 0, width: int = 12) -> None:
    x, y = batch(rank, step, width=width)
    nn.functional.cross_entropy(model(x), y).backward()


def gradients(wrapped: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in wrapped.module.named_parameters()}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


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


def test_recomputation_gives_equal_gradients():
    calls = []

    class Counting(nn.Tanh):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    def build():
        model = sequential()
        model[1] = Counting()
        return nn.Sequential(model[:3], model[3:])

    plan = whole(build(), 2, recompute=("0", "1.4"))

    def body(wrapped, optimizer, rank):
        backward(wrapped, rank)
        return gradients(wrapped)

    results = run(build, plan, body)
    assert len(calls) == 2 * 2
    for found in results:
        assert_equal(found, mean_gradients(made(build), 2))


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


@pytest.fixture
def compiled(monkeypatch):
    """torch.compile that notes what it is given and returns it."""
    found = []
    monkeypatch.setattr(torch, "compile", lambda f: (found.append(f), f)[1])
    changes.why_no_compiler.cache_clear()
    yield found
    changes.why_no_compiler.cache_clear()


def test_modules_of_a_sequential_run_as_one_op(compiled):
    plan = whole(sequential(), 1, fused_ops=(("0", "1", "2"), ("4",)), recompute=("1",))

    def body(wrapped, optimizer, rank):
        backward(wrapped, rank)
        return gradients(wrapped), list(wrapped.module.state_dict())

    ((found, names),) = run(sequential, plan, body, ranks=1)
    assert len(compiled) == 1 + 2  # the trial, and one for each group
    assert names == list(sequential().state_dict())
    assert_equal(found, mean_gradients(made(sequential), 1))


def test_modules_apart_are_compiled_alone(compiled):
    plan = whole(Branching(), 1, fused_ops=(("shared", "out"), ("inner.0", "inner.2")))

    def body(wrapped, optimizer, rank):
        backward(wrapped, rank)
        return gradients(wrapped)

    with pytest.warns(RuntimeWarning, match="do not follow each other"):
        (found,) = run(Branching, plan, body, ranks=1)
    assert len(compiled) == 1 + 4
    assert_equal(found, mean_gradients(made(Branching), 1))


def test_without_a_compiler_ops_stay_as_they_are(monkeypatch):
    def broken(f):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", broken)
    changes.why_no_compiler.cache_clear()

    def body(wrapped, optimizer, rank):
        backward(wrapped, rank)
        return gradients(wrapped)

    with pytest.warns(RuntimeWarning, match="fused ops stay as they are.*no C\\+\\+ compiler"):
        (found,) = run(sequential, whole(sequential(), 1, fused_ops=(("0", "1"),)), body, ranks=1)
    changes.why_no_compiler.cache_clear()
    assert_equal(found, mean_gradients(made(sequential), 1))


def compiled_for_real(rank: int) -> tuple[str, float]:
    """Why there is no compiler, if so, and the largest difference of a gradient from that without fused ops."""
    if reason := changes.why_no_compiler("cpu"):
        return reason, 0.0
    model = made(sequential)
    plan = whole(model, 1, fused_ops=(("0", "1", "2"),))
    backward(parallel(model, plan, torch.optim.SGD(model.parameters())), rank)
    expected = mean_gradients(made(sequential), 1)
    return "", max(float((p.grad - expected[name]).abs().max()) for name, p in model.named_parameters())


@pytest.mark.dist
@pytest.mark.slow
def test_fused_ops_are_compiled_for_real():
    # In a process of its own, since the compiler leaves threads and variables behind.
    ((reason, difference),) = run_ranks_as_processes(1, compiled_for_real)
    if reason:
        pytest.skip(reason)
    assert difference <= 1e-6


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
