"""What a plan changes inside the model: recomputation and fused ops."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.processes import run_ranks_as_processes
from tests.runtime.data_parallel.examples import Branching, made, mean_gradients, sequential, whole
from tests.runtime.data_parallel.wrapped import assert_equal, backward, gradients, run
from wirewise.runtime.data_parallel import changes, parallel


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


@pytest.fixture
def compiled(monkeypatch):
    """Stand-in of torch.compile that notes what it is given and returns it."""
    found = []
    monkeypatch.setattr(torch, "compile", lambda f: (found.append(f), f)[1])
    changes.compiler_obstacle.cache_clear()
    yield found
    changes.compiler_obstacle.cache_clear()


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
    changes.compiler_obstacle.cache_clear()

    def body(wrapped, optimizer, rank):
        backward(wrapped, rank)
        return gradients(wrapped)

    with pytest.warns(RuntimeWarning, match="fused ops stay as they are.*no C\\+\\+ compiler"):
        (found,) = run(sequential, whole(sequential(), 1, fused_ops=(("0", "1"),)), body, ranks=1)
    changes.compiler_obstacle.cache_clear()
    assert_equal(found, mean_gradients(made(sequential), 1))


def compiled_for_real(rank: int) -> tuple[str, float]:
    """Why there is no compiler, if so, and the largest difference of a gradient from that without fused ops."""
    if reason := changes.compiler_obstacle("cpu"):
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
