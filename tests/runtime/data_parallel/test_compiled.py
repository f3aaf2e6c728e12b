"""Acceptance E1: a captured step gives the loss, gradients and statistics of eager mode, however it is fused."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

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
from tests.runtime.data_parallel.examples import made
from wirewise.errors import InputError, PlanError
from wirewise.runtime.data_parallel.capture import capture
from wirewise.runtime.data_parallel.compiled import compile_step

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
REGIONS = {
    "nothing fused": lambda graph: (),
    "all fused": fused,
    "copies": lambda graph: duplicated(graph, 0),
}


def eager(model: nn.Module, batch: Any) -> torch.Tensor:
    model.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    return loss.detach()


def assert_same(model: nn.Module, reference: nn.Module) -> None:
    for name, parameter in reference.named_parameters():
        found = dict(model.named_parameters())[name].grad
        torch.testing.assert_close(found, parameter.grad, **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name], buffer, **TOLERANCE)


@pytest.fixture(scope="module")
def graphs() -> dict[str, Any]:
    """What planners see of each model's step."""
    return {name: capture(made(build), loss_of, example(name)).operators for name, build in BUILDS.items()}


@pytest.mark.sweep
@pytest.mark.parametrize("regions", REGIONS)
@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.sample(5)
def test_e1_fused_steps_are_those_of_eager_mode(name, regions, graphs):
    model, group = made(BUILDS[name]), alone()
    reference = copy.deepcopy(model)
    plan = in_regions(model, REGIONS[regions](graphs[name]))
    step = compile_step(model, loss_of, example(name), plan, group, compiler="none")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for number in range(3):
        batch = example(name, step=number)
        torch.testing.assert_close(step(batch), eager(reference, batch), **TOLERANCE)
        assert_same(model, reference)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.slow
def test_e1_compiled_regions_are_those_of_eager_mode():
    worker = "tests.runtime.data_parallel.compiled_worker"
    done = subprocess.run(
        [sys.executable, "-m", worker, "mlp", "gcn"],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[3],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name, found in json.loads(done.stdout.splitlines()[-1]).items():
        assert found["fallbacks"] == {}, name
        assert found["compiled"] > 0
        assert found["loss"] < 1e-5
        assert found["gradients"] < 1e-5


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("buckets", [1, 3])
def test_gradients_are_the_mean_over_ranks(buckets, graphs):
    """Rank 1 starts from other weights and takes those of rank 0."""

    def body(rank: int, group: Any, store: Any) -> dict[str, torch.Tensor]:
        model = made(BUILDS["cnn"], seed=rank)
        plan = in_regions(model, fused(graphs["cnn"], 5), ranks=2, buckets=buckets)
        plan = msgspec.structs.replace(
            plan, buckets=tuple(msgspec.structs.replace(b, chunks=2) for b in plan.buckets)
        )
        step = compile_step(
            model, loss_of, example("cnn"), plan, group, compiler="none", store=store, timeout_s=20
        )
        step(example("cnn", rank))
        return {name: p.grad for name, p in model.named_parameters()}

    found = run_ranks_as_threads(2, body)
    models = [made(BUILDS["cnn"]) for _ in range(2)]
    for rank, model in enumerate(models):
        eager(model, example("cnn", rank))
    for name, _ in models[0].named_parameters():
        mean = sum(dict(m.named_parameters())[name].grad for m in models) / 2
        for own in found:
            torch.testing.assert_close(own[name], mean, **TOLERANCE)


def test_buckets_leave_in_the_order_of_the_plan_and_before_the_graph_ends(graphs):
    model = made(BUILDS["mlp"])
    step = compile_step(
        model, loss_of, example("mlp"), in_regions(model, buckets=3), alone(), compiler="none"
    )
    launched = [call.launches for call in step._calls]
    assert [bucket for places in launched for bucket in places] == [0, 1, 2]
    assert any(launched[:-1])


def test_a_shared_parameter_by_either_name(graphs):
    class Tied(nn.Module):
        """A module in two places, and a weight in two modules."""

        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again = self.first
            self.last = nn.Linear(4, 4, bias=False)
            self.last.weight = self.first.weight
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.last(self.again(torch.tanh(self.first(x)))))

    model = made(Tied)
    reference = copy.deepcopy(model)
    plan = in_regions(model)
    renamed = [
        msgspec.structs.replace(b, parameters=tuple(n.replace("first", "again") for n in b.parameters))
        for b in plan.buckets
    ]
    plan = msgspec.structs.replace(plan, buckets=tuple(renamed))
    step = compile_step(model, loss_of, example("mlp"), plan, alone(), compiler="none")
    step(example("mlp"))
    eager(reference, example("mlp"))
    assert_same(model, reference)


def test_without_a_compiler_regions_run_operator_by_operator(monkeypatch, graphs):
    monkeypatch.setattr("wirewise.runtime.data_parallel.compiled.compiler_obstacle", lambda device: "no g++")
    model = made(BUILDS["mlp"])
    reference = copy.deepcopy(model)
    with pytest.warns(RuntimeWarning, match=r"parts run operator by operator.*no g\+\+"):
        step = compile_step(model, loss_of, example("mlp"), in_regions(model, fused(graphs["mlp"])), alone())
    assert set(step.fallbacks.values()) == {"no g++"}
    step(example("mlp"))
    eager(reference, example("mlp"))
    assert_same(model, reference)


def refused(message: str, error=PlanError, model=None, **changes: Any) -> None:
    model = model or made(BUILDS["mlp"])
    plan = msgspec.structs.replace(in_regions(model), **changes)
    with pytest.raises(error, match=message):
        compile_step(model, loss_of, example("mlp"), plan, alone(), compiler="none")


def test_plans_that_do_not_fit_are_refused(graphs):
    refused("operators that the captured step does not have: nothing", regions=(("nothing",),))
    refused("decides on recompute", recompute=("0",))
    refused("made for world size 3", world_size=3)
    first, *_, last = [one.name for one in graphs["mlp"].operators if one.category == "matmul"]
    refused("regions wait for each other: .*" + first, regions=((first, last),))


def test_other_batches_and_modes_are_refused():
    model = made(BUILDS["mlp"])
    step = compile_step(model, loss_of, example("mlp"), in_regions(model), alone(), compiler="none")
    x, y = example("mlp")
    with pytest.raises(InputError, match=r"got a batch of float32\[5, 4\], int64\[5\].*float32\[6, 4\]"):
        step((x[:5], y[:5]))
    with pytest.raises(InputError, match="got compiler='gcc'"):
        compile_step(model, loss_of, example("mlp"), in_regions(model), alone(), compiler="gcc")
    model.eval()
    with pytest.raises(InputError, match=r"captured with model\.training=True, which is False"):
        step((x, y))
